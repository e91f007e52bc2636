"""Token vocabularies, the retrieval of words from frames, the frame cache, and HELMv2's read-out."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from recollect.artifacts.sealed import write_arrays
from recollect.helm.feature_rescaling import FeatureRescaling
from recollect.helm.frame_cache import FrameCache
from recollect.helm.language.language_vocabulary import vocabulary as words_of
from recollect.helm.shelm import TokenReader
from recollect.helm.vision.token_vocabulary import KIND, TokenVocabulary, embedded, usable
from recollect.helm.vision.vision_language import RandomModel
from recollect.settings.errors import UserError
from recollect.settings.schema import LanguageModelSettings

WORDS = ("key", "ball", "box", "door", "wall", "red", "blue")
LM_IDS = torch.tensor([30, 2, 17, 5, 80, 41, 11])


@pytest.fixture
def model():
    return RandomModel(16, 0, "cpu")


@pytest.fixture
def vocabulary(model):
    return TokenVocabulary(WORDS, LM_IDS, torch.from_numpy(embedded(WORDS, ("{}",), model.texts)), {})


# -------------------------------------------------------------------------------------------------------------- matching


def test_only_exact_strings_match_unless_told_otherwise():
    clip = ["key", "ma", "maze ", "paris ", "ball ", "b", "key ", "�", " ", "nasa "]
    lm = ["<unk>", "key", "maze", "Paris", "ball", "KEY", "b", "", "NASA"]
    assert usable(clip, lm, "exact") == ([0, 5], [1, 6])
    assert usable(clip, lm, "stripped") == ([0, 2, 4, 5], [1, 2, 4, 6])
    assert usable(clip, lm, "cased") == ([0, 2, 3, 4, 5], [1, 2, 3, 4, 6])
    # A word that its own vocabulary writes in capitals is found in lower case, and of two equal strings the first id is used.
    assert usable(["Ball", "ball"], ["x", "ball", "ball"], "cased") == ([0], [1])
    assert usable(["KEY"], ["Key", "key"], "cased") == ([0], [1])  # lower case before a capital


def test_where_words_begin_with_a_space_that_spelling_is_the_word():
    lm = ["key", " key", " ball", "box", " Paris", " "]
    assert usable(["key", "ball ", "box", "paris", " "], lm, "stripped") == ([0, 1, 2], [1, 2, 3])
    assert usable(["key", "ball ", "box", "paris", " "], lm, "cased") == ([0, 1, 2, 3], [1, 2, 3, 4])
    assert usable(["key", "ball ", " "], lm, "exact") == ([0, 2], [0, 5])


def test_a_vocabulary_of_bytes_is_read_as_text(tmp_path):
    """GPT-2's writes the space in front of a word as a letter."""
    (tmp_path / "vocab.json").write_text(json.dumps({"key": 1, "\u0120key": 0, "\u0120ball": 3, "\u00e6": 2}))
    settings = LanguageModelSettings(source="package", kind="gpt2")
    strings = words_of(settings, tmp_path)
    assert strings == (" key", "key", "<\u00e6>", " ball")
    assert usable(["key", "ball "], strings, "stripped") == ([0, 1], [0, 3])


def test_a_line_of_a_vocabulary_is_a_word_whatever_else_could_end_a_line(tmp_path):
    """Else all words behind it would have another's id."""
    words = ("key", "a\u2028b", "\x85", "c\x0bd", "ball")
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="\n")
    assert words_of(LanguageModelSettings(source="package", kind="encoder"), tmp_path) == words


def test_a_words_vector_has_length_one_along_the_plain_mean_over_templates():
    texts = {"a key": [3.0, 0.0], "no key": [0.0, 1.0], "a box": [0.0, 2.0], "no box": [0.0, 2.0]}
    found = embedded(["key", "box"], ["a {}", "no {}"], lambda strings: torch.tensor([texts[s] for s in strings]))
    np.testing.assert_allclose(found, [np.array([1.5, 0.5]) / np.hypot(1.5, 0.5), [0.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(embedded(["k{}y"], ["{} "], lambda s: torch.tensor([[len(s[0]), 0.0]])), [[1, 0]])


def test_a_words_own_vector_retrieves_it_first_and_the_rest_in_order(model, vocabulary):
    scores, positions = vocabulary.nearest(5.0 * model.texts(WORDS), 3)
    assert positions[:, 0].tolist() == list(range(len(WORDS)))
    torch.testing.assert_close(scores[:, 0], torch.ones(len(WORDS)))
    assert bool((scores[:, :-1] >= scores[:, 1:]).all())
    expected = (F.normalize(model.texts(WORDS), dim=1) @ vocabulary.embeddings_VW.T).argsort(dim=1, descending=True)
    assert torch.equal(positions, expected[:, :3])


def test_more_words_than_there_are_and_images_of_another_model_are_refused(vocabulary):
    with pytest.raises(UserError, match="8 tokens are asked for, of a vocabulary of 7"):
        vocabulary.nearest(torch.ones(1, 16), 8)
    with pytest.raises(UserError, match="0 tokens are asked for"):
        vocabulary.nearest(torch.ones(1, 16), 0)
    assert sorted(vocabulary.nearest(torch.ones(1, 16), 7)[1][0].tolist()) == list(range(7))  # all that there are
    with pytest.raises(UserError, match="images of width 15 meet words of width 16"):
        vocabulary.nearest(torch.ones(1, 15), 1)


def test_a_vocabulary_is_read_as_it_was_written_and_a_damaged_one_refused(tmp_path, vocabulary):
    path = tmp_path / "words.safetensors"
    arrays = {"embeddings": vocabulary.embeddings_VW.numpy(), "lm_ids": LM_IDS.numpy(), "clip_ids": np.arange(7)}
    about = json.dumps({"strings": WORDS, "match": "exact"})
    write_arrays(path, arrays, kind=KIND, metadata={"about": about})
    read = TokenVocabulary.open(path)
    assert read.strings == WORDS and torch.equal(read.lm_ids_V, LM_IDS) and read.about == {"match": "exact"}
    assert torch.equal(read.embeddings_VW, vocabulary.embeddings_VW)
    held = TokenVocabulary.on("cpu", path)
    assert TokenVocabulary.on("cpu", path) is held and torch.equal(held.lm_ids_V, LM_IDS)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match="sha256"):
        TokenVocabulary.open(path)
    path.write_bytes(bytes(content[:-8]))
    with pytest.raises(UserError, match="cut short"):
        TokenVocabulary.open(path)
    write_arrays(path, arrays, kind="embeddings", metadata={"about": about})
    with pytest.raises(UserError, match="not 'token vocabulary'"):
        TokenVocabulary.open(path)


# ------------------------------------------------------------------------------------------------------------- retrieval


def frames(count: int, seed: int = 0, shape=(3, 16, 16)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize("channels", ["first", "last"])
@pytest.mark.parametrize("k", [1, 3])
def test_retrieved_tokens_are_those_of_a_plain_loop(model, vocabulary, k, channels):
    words_VD = torch.randn(90, 5, generator=torch.Generator().manual_seed(0))  # of the language model
    reader = TokenReader(model, vocabulary, words_VD, topk=k, frames=100)
    seen = frames(20)[np.random.default_rng(1).integers(0, 20, (6, 8))]  # steps x agents, with repetitions
    for step in seen:
        shown = step if channels == "first" else np.ascontiguousarray(step.transpose(0, 2, 3, 1))
        inputs_BKD, found = reader(shown), reader.traced(np.arange(8))
        for frame, inputs_KD, ids, scores in zip(step, inputs_BKD, found["tokens"], found["token_scores"], strict=True):
            image = model.images(torch.from_numpy(frame[None]))[0]
            cosines = [float(F.cosine_similarity(image, word, dim=0)) for word in model.texts(WORDS)]
            best = sorted(range(len(WORDS)), key=lambda i: -cosines[i])[:k]
            assert ids.tolist() == LM_IDS[best].tolist() and torch.equal(inputs_KD, words_VD[LM_IDS[best]])
            np.testing.assert_allclose(scores, [cosines[i] for i in best], atol=1e-6)
    assert found["tokens"].dtype == np.int64 and found["token_scores"].dtype == np.float32


def test_the_different_images_of_a_step_that_are_new_go_through_the_eyes_in_one_pass(model, vocabulary):
    passes: list[int] = []

    class Counting:
        width = model.width

        def images(self, images_NCHW):
            passes.append(len(images_NCHW))
            return model.images(images_NCHW)

    reader, seen = TokenReader(Counting(), vocabulary, torch.zeros(90, 5), topk=2, frames=100), frames(12)
    reader(seen[[0, 1, 2, 1, 0, 3]])
    reader(seen[[3, 4, 5, 4, 0, 6]])
    reader(seen[[6, 6, 0, 1, 2, 3]])
    assert passes == [4, 3]


# ------------------------------------------------------------------------------------------------------------ frame cache


def summed(asked: list[int]):
    """A function of frames that notes how many it is given."""

    def function(batch: np.ndarray) -> torch.Tensor:
        asked.append(len(batch))
        flat = torch.from_numpy(batch.reshape(len(batch), -1).astype(np.float32))
        return torch.stack([flat.sum(1), flat[:, 0]], dim=1)

    return function


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_a_cached_function_says_what_the_function_says_and_remembers_no_more_than_its_size(size):
    asked: list[int] = []
    cache, plain = FrameCache(summed(asked), size), summed([])
    few, draws = frames(12, shape=(2, 3)), np.random.default_rng(3)
    for _ in range(60):
        batch = few[draws.integers(0, 12, draws.integers(1, 9))]
        assert torch.equal(cache(batch), plain(batch))
        assert len(cache.arrays()["keys"]) <= size
    assert 0 not in asked and (sum(asked) == 12) == (size == 100)


def test_the_frames_used_longest_ago_are_forgotten_first_and_misses_come_in_one_batch():
    asked: list[int] = []
    cache, (a, b, c, d) = FrameCache(summed(asked), 3), frames(4)
    cache(np.stack([a, b, c, a]))
    assert asked == [3]
    cache(np.stack([a]))  # now b was used longest ago
    cache(np.stack([d]))
    cache(np.stack([a, c, d]))
    assert asked == [3, 1]
    cache(np.stack([b]))
    assert asked == [3, 1, 1]


def test_frames_of_the_same_bytes_but_another_shape_are_different():
    cache = FrameCache(lambda batch: torch.full((len(batch), 1), float(batch.shape[1])), 10)
    assert cache(np.zeros((1, 2, 3), np.uint8)).item() == 2 and cache(np.zeros((1, 3, 2), np.uint8)).item() == 3


def test_a_cache_that_was_saved_goes_on_as_if_it_had_not_been():
    few, draws = frames(10, shape=(2, 3)), np.random.default_rng(5)
    batches = [few[draws.integers(0, 10, 4)] for _ in range(40)]
    logs: tuple[list[int], list[int]] = ([], [])
    whole, first = FrameCache(summed(logs[0]), 4), FrameCache(summed([]), 4)
    for batch in batches[:20]:
        whole(batch), first(batch)
    del logs[0][:]
    second = FrameCache(summed(logs[1]), 4)
    second.load({name: array.clone() for name, array in first.arrays().items()})
    for batch in batches[20:]:
        assert torch.equal(whole(batch), second(batch))
    assert logs[0] == logs[1]
    second.load({})
    assert second.arrays() == {} == FrameCache(summed([]), 4).arrays()


# ------------------------------------------------------------------------------------------------------ HELMv2's read-out


@pytest.fixture
def embeddings():
    g = torch.Generator().manual_seed(0)
    return torch.randn(500, 6, generator=g) * torch.tensor([1, 2, 3, 4, 5, 6.0]) + torch.arange(6)


def features(count: int, seed: int = 0) -> torch.Tensor:
    return 7 + 3 * torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def test_a_batchs_mean_and_spread_become_those_of_the_embeddings(embeddings):
    found = FeatureRescaling.like(embeddings, "batch")(features(16))
    torch.testing.assert_close(found.mean(0), embeddings.mean(0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.std(0), embeddings.std(0), atol=1e-4, rtol=1e-4)
    y = features(16)
    by_hand = (y - y.mean(0)) / (y.std(0, correction=1) + 1e-8) * embeddings.std(0, correction=1) + embeddings.mean(0)
    torch.testing.assert_close(found, by_hand)


def test_agents_that_see_the_same_get_the_mean_embedding_and_one_alone_is_refused(embeddings):
    same = FeatureRescaling.like(embeddings, "batch")(features(1).expand(4, 6))
    torch.testing.assert_close(same, embeddings.mean(0).expand(4, 6), atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="one agent alone"):
        FeatureRescaling.like(embeddings, "batch")(features(1))


def test_frozen_statistics_do_not_move_and_one_agent_alone_is_enough(embeddings):
    rescaling = FeatureRescaling.like(embeddings, "frozen")
    with pytest.raises(UserError, match="stand on 0 images"):
        rescaling(features(1))
    rescaling.take_in(features(400))
    together = rescaling(features(400))
    torch.testing.assert_close(together.std(0), embeddings.std(0), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(rescaling(features(400)[:1]), together[:1])  # whatever the others see
    before = rescaling.arrays()
    rescaling(features(50, seed=9))
    assert all(np.array_equal(before[name], array) for name, array in rescaling.arrays().items())


def test_the_first_image_of_an_agent_alone_becomes_the_mean_embedding(embeddings):
    rescaling = FeatureRescaling.like(embeddings, "running")
    with pytest.raises(UserError, match="stand on 0 images"):
        rescaling(features(1), update=False)
    torch.testing.assert_close(rescaling(features(1))[0], embeddings.mean(0), atol=1e-4, rtol=1e-4)
    both = torch.cat([features(1), features(1, seed=1)])
    expected = (both[1] - both.mean(0)) / both.std(0) * embeddings.std(0) + embeddings.mean(0)
    torch.testing.assert_close(rescaling(both[1:])[0], expected, atol=1e-3, rtol=1e-3)
    frozen = FeatureRescaling.like(embeddings, "frozen")
    frozen.take_in(features(1))
    with pytest.raises(UserError, match="stand on 1 images"):
        frozen(features(1))


def test_running_statistics_are_those_of_all_features_so_far_and_survive_a_resume(embeddings):
    rescaling = FeatureRescaling.like(embeddings, "running")
    parts = [features(n, seed=n) + n for n in (5, 1, 8, 2)]
    for i, part in enumerate(parts):
        found = rescaling(part)
        so_far = torch.cat(parts[: i + 1]).double()
        expected = (part - so_far.mean(0)) / so_far.std(0) * embeddings.std(0) + embeddings.mean(0)
        torch.testing.assert_close(found, expected.float(), atol=1e-4, rtol=1e-4)
    resumed = FeatureRescaling.like(embeddings, "running")
    resumed.load_arrays(rescaling.arrays())
    assert torch.equal(resumed(parts[0], update=False), rescaling(parts[0], update=False))
    assert torch.equal(resumed(parts[0]), rescaling(parts[0]))


def test_features_of_another_width_are_refused(embeddings):
    with pytest.raises(UserError, match="width 5"):
        FeatureRescaling.like(embeddings)(torch.zeros(4, 5))
