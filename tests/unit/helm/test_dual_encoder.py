"""The small vision-language model: what is said of its pictures, its loss, and that a stopped training goes on bit-exactly."""

import numpy as np
import pytest
import torch
from odd_clock import ends_the_same
from torch.nn import functional as F

from recollect.artifacts.run import Run
from recollect.common.language_models import LanguageModel, random_model
from recollect.common.optimiser import Adam
from recollect.helm.vision import captioned_tiles, dual_encoder, dual_encoder_training
from recollect.helm.vision import sentences as sentence_vectors
from recollect.helm.vision.captioned_tiles import AGENT, TILE, VIEW, Thing, captions, draw_scenes
from recollect.helm.vision.dual_encoder import DualEncoder, Hyperparameters, Network, contrastive_loss, train
from recollect.helm.vision.sentences import SentenceEncoder
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of

TINY = Hyperparameters(width=8, channels=8, pictures=64, steps=12, batch_size=8, negatives=4, checkpoint_every=4)


def sentences(texts) -> torch.Tensor:
    """Sentence vectors without a language model: the sum of a vector per word."""

    def word(text: str) -> torch.Tensor:
        return torch.randn(32, generator=torch.Generator().manual_seed(seed_of("word", text)))

    return torch.stack([F.normalize(sum(word(w) for w in text.split()), dim=0) for text in texts])


@pytest.fixture(scope="module")
def scenes():
    return draw_scenes(300, np.random.default_rng(0))


# --------------------------------------------------------------------------------------------------------------- pictures


def test_what_is_said_of_a_picture_is_true_and_all_things_in_view_are_named(scenes):
    columns = captions()
    assert len(set(columns)) == len(columns)
    for weights, things in zip(scenes.weights_NC, scenes.seen, strict=True):
        said = {columns[i] for i in np.flatnonzero(weights)}
        true = {word for thing in things for word in thing.words()}
        assert said - true <= {"wall", "floor"} and true <= said
        np.testing.assert_allclose(weights.sum(), 1, atol=1e-5)
        if len(things) == 1:
            assert columns[int(weights.argmax())] == things[0].name


def test_a_picture_shows_the_tiles_of_minigrid_where_the_things_are(scenes):
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import Ball, Key

    found = 0
    for image, things in zip(scenes.images_NCHW, scenes.seen, strict=True):
        for thing in things:
            if thing.name in ("key", "ball") and (thing.x, thing.y) != AGENT:
                tile = Grid.render_tile({"key": Key, "ball": Ball}[thing.name](thing.colour), None, True, TILE)
                cut = image[:, thing.y * TILE : (thing.y + 1) * TILE, thing.x * TILE : (thing.x + 1) * TILE]
                np.testing.assert_array_equal(cut.transpose(1, 2, 0), tile.astype(np.uint8))
                found += 1
    assert found > 30 and scenes.images_NCHW.shape[1:] == (3, VIEW * TILE, VIEW * TILE)


def test_things_that_are_hidden_are_not_named():
    scenes = draw_scenes(400, np.random.default_rng(2))
    dark = Thing("key", "red", 0, 0)
    assert dark.words()["key"] > dark.words()["red key"] > dark.words()["red"]
    checked = 0
    for image, things in zip(scenes.images_NCHW, scenes.seen, strict=True):
        for thing in things:
            corner = image[:, thing.y * TILE + 2, thing.x * TILE + 1]
            checked += 1
            assert corner.max() > 0, "a named thing stands in darkness"
    assert checked > 200


def test_nearer_things_weigh_more(scenes):
    columns, checked = captions(), 0
    for weights, things in zip(scenes.weights_NC, scenes.seen, strict=True):
        names = [thing.name for thing in things]
        if len(set(names)) == len(names) == 2 and not {"goal", "lava"} & set(names):
            away = [abs(thing.x - AGENT[0]) + abs(thing.y - AGENT[1]) for thing in things]
            said = [weights[columns.index(name)] for name in names]
            assert said[0] / said[1] == pytest.approx((1 + away[1]) / (1 + away[0]), rel=1e-4)
            checked += away[0] != away[1]
    assert checked > 5


@pytest.mark.slow
def test_no_training_picture_has_a_held_out_thing_and_held_out_pictures_have_nothing_else(scenes):
    assert not any(thing.held_out for things in scenes.seen for thing in things)
    judged = draw_scenes(60, np.random.default_rng(1), held_out=True, single=True)
    assert all(len(things) == 1 and things[0].held_out for things in judged.seen)
    pairs = {(things[0].colour, things[0].name) for things in judged.seen}
    assert pairs & captioned_tiles.HELD_OUT_PAIRS and AGENT not in captioned_tiles.HELD_OUT_CELLS
    same = draw_scenes(60, np.random.default_rng(1), held_out=True, single=True)
    assert np.array_equal(judged.images_NCHW, same.images_NCHW) and judged.seen == same.seen


# ------------------------------------------------------------------------------------------------------------------- loss


def test_with_one_caption_each_the_loss_is_clips():
    g = torch.Generator().manual_seed(0)
    images, texts = torch.randn(5, 8, generator=g), torch.randn(5, 8, generator=g)
    logits = 7 * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T
    clip = (F.cross_entropy(logits, torch.arange(5)) + F.cross_entropy(logits.T, torch.arange(5))) / 2
    torch.testing.assert_close(contrastive_loss(images, texts, torch.eye(5), torch.tensor(7.0)), clip)


def test_shared_captions_are_no_mistakes_and_words_of_no_picture_are_wrong_answers():
    pictures = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    texts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    weights = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = contrastive_loss(pictures, texts, weights, torch.tensor(2.0))
    e = np.exp
    of_red = -np.log(e(2) / (e(2) + e(0) + e(-2)))
    of_blue = -np.log(e(2) / (e(2) + 2 * e(0)))
    to_red, to_blue = -np.log(e(2) / (2 * e(2) + 1)), -np.log(e(2) / (2 + e(2)))
    np.testing.assert_allclose(found, ((2 * of_red + of_blue) / 3 + (to_red + to_blue) / 2) / 2, rtol=1e-5)


# --------------------------------------------------------------------------------------------------------------- training


class Stop(Exception):
    pass


def run_in(folder, settings="a") -> Run:
    return Run(folder, folder, settings_text=settings)


@pytest.mark.parametrize("stopped_at", [2, 5, 11])
def test_a_training_that_was_stopped_ends_with_the_same_bytes(tmp_path, monkeypatch, stopped_at):
    words = ["horse", "music", "river", "window"]
    whole = train(TINY, sentences, words, run_in(tmp_path / "whole"))
    calls = 0

    def stopping(*arguments):
        nonlocal calls
        calls += 1
        if calls > stopped_at:
            raise Stop
        return contrastive_loss(*arguments)

    monkeypatch.setattr(dual_encoder, "contrastive_loss", stopping)
    with pytest.raises(Stop):
        train(TINY, sentences, words, run_in(tmp_path / "killed"))
    calls = -100
    resumed = train(TINY, sentences, words, run_in(tmp_path / "killed"))
    assert calls == -100 + TINY.steps - stopped_at // 4 * 4  # it went on and did not begin again
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    assert bool((whole.image.linear.weight - fresh().image.linear.weight).abs().max() > 0)


def test_each_batch_is_another_the_step_size_falls_and_the_temperature_stays_at_a_hundredth_or_more(
    tmp_path, monkeypatch
):
    rates, batches, scales = [], [], []

    class Watched(Adam):
        def step(self):
            rates.append(self.lr)
            super().step()
            self.parameters[self.names.index("log_scale")].data.add_(0.5)

    def watched(images_NW, texts_TW, weights_NT, scale):
        batches.append(weights_NT.numpy().tobytes())
        scales.append(float(scale))
        return contrastive_loss(images_NW, texts_TW, weights_NT, scale)

    monkeypatch.setattr(dual_encoder, "Adam", Watched)
    monkeypatch.setattr(dual_encoder, "contrastive_loss", watched)
    train(TINY, sentences, ["horse"], run_in(tmp_path))
    np.testing.assert_allclose(rates, 2e-3 * np.cos(np.pi * np.arange(12) / 24) ** 2)
    assert len(set(batches)) == 12
    assert scales[0] == pytest.approx(14) and scales[-1] == max(scales) == pytest.approx(100)


def test_a_checkpoint_of_other_settings_is_not_used(tmp_path):
    short, words = TINY.model_copy(update={"steps": 6}), ["horse"]
    train(short, sentences, words, run_in(tmp_path))
    learned_more = TINY.model_copy(update={"learning_rate": 0.1, "steps": 6})
    other = train(learned_more, sentences, words, run_in(tmp_path, "b"))
    afresh = train(learned_more, sentences, words, run_in(tmp_path / "new", "b"))
    assert torch.equal(other.text.weight, afresh.text.weight)


def fresh() -> Network:
    with torch.device("meta"):
        network = Network(TINY.width, TINY.channels, 32)
    return network.to_empty(device="cpu").draw(TINY.seed)


def test_frames_of_any_size_and_type_are_seen():
    model = DualEncoder(fresh(), "minilm", "cpu")
    picture = torch.zeros(1, 3, 56, 56, dtype=torch.uint8)
    picture[:, 0, 16:24, 8:16] = 200
    torch.testing.assert_close(model.images(picture), model.images(picture.float() / 255))
    assert model.images(torch.zeros(2, 3, 60, 80)).shape == (2, TINY.width)
    assert not torch.equal(model.images(picture), model.images(torch.zeros_like(picture)))


def test_frames_that_are_not_of_colours_are_refused():
    model = DualEncoder(fresh(), "minilm", "cpu")
    with pytest.raises(UserError, match=r"images have shape \[N, 3, H, W\], these \[2, 1, 56, 56\]"):
        model.images(torch.zeros(2, 1, 56, 56))


def test_frames_of_another_size_are_resized_smoothly():
    model, frame = (
        DualEncoder(fresh(), "minilm", "cpu"),
        torch.rand(1, 3, 150, 200, generator=torch.Generator().manual_seed(0)),
    )
    resized = F.interpolate(frame, (56, 56), mode="bilinear", align_corners=False, antialias=True)
    torch.testing.assert_close(model.images(frame), model.images(resized))


def test_a_picture_becomes_what_the_network_written_plainly_makes_of_it():
    net, x = fresh().image, torch.rand(3, 3, 56, 56, generator=torch.Generator().manual_seed(0))
    of = {
        name: (getattr(net, name).weight, getattr(net, name).bias) for name in ("tiles", "mix", "neighbours", "linear")
    }
    mixed = F.conv2d(F.conv2d(2 * x - 1, *of["tiles"], stride=TILE).relu(), *of["mix"]).relu()
    both = torch.cat([mixed, F.conv2d(mixed, *of["neighbours"], padding=1).relu()], 1)
    cells = torch.arange(VIEW)
    near = 1 / (1 + (cells[:, None] - AGENT[1]).abs() + (cells - AGENT[0]).abs())
    read = torch.cat([both.mean((2, 3)), both.amax((2, 3)), (both * near).amax((2, 3))], 1)
    torch.testing.assert_close(net(x), F.linear(read, *of["linear"]))


def test_a_model_is_judged_by_pictures_of_kinds_that_it_never_saw(monkeypatch):
    drawn = []

    def drawing(*given, **options):
        drawn.append(draw_scenes(*given, **options))
        return drawn[-1]

    class Fixed:
        """Says the same words of every picture, the first of them first."""

        def texts(self, words):
            return torch.eye(len(words))

        def images(self, images):
            return torch.arange(6, 0, -1.0).expand(len(images), 6)

    monkeypatch.setattr(captioned_tiles, "draw_scenes", drawing)
    words = ["ball", "wall", "horse", "red", "door", "key"]
    found = dual_encoder.accuracy(Fixed(), words, TINY.model_copy(update={"held_out": 25}))
    assert list(found) == ["single", "single_known", "many"]
    assert all(len(things) == 1 and things[0].held_out for things in drawn[0].seen)
    assert not any(thing.held_out for scenes in drawn[1:] for things in scenes.seen for thing in things)
    for (kind, shares), scenes in zip(found.items(), drawn, strict=True):
        true = [{word for thing in things for word in thing.words()} for things in scenes.seen]
        names = [{thing.name for thing in things} for things in scenes.seen if things]
        walls = {"wall", "floor"} if kind == "many" else set()
        first, five = (np.mean([bool((said | walls) & set(words[:n])) for said in true]) for n in (1, 5))
        assert (shares["top_1"], shares["top_5"], shares["pictures"]) == (first, five, 25)
        assert shares["name_first"] == pytest.approx(np.mean(["ball" in said for said in names]))


def test_a_model_is_judged_by_words_that_it_never_learned_from(tmp_path, monkeypatch):
    learned, judged = [], []

    def trained(settings, encoder, others, run):
        learned.extend(others)
        return fresh()

    def judging(model, words, settings):
        judged.extend(words)
        return {}

    monkeypatch.setattr(dual_encoder, "train", trained)
    monkeypatch.setattr(dual_encoder, "accuracy", judging)
    monkeypatch.setattr(dual_encoder_training, "SentenceEncoder", lambda name: sentences)
    _, about, counts = dual_encoder_training.trained_encoder(TINY, "minilm", run_in(tmp_path))
    said = {caption for caption in captions() if " " not in caption}
    assert set(judged[: counts["words"]]) == said and len(judged) == counts["words"] + counts["other_words"]
    assert len(learned) > 500 < counts["other_words"] and not set(learned) & set(judged)
    assert about["sentence_width"] == 32 and about["language_model"] == "minilm"


def test_a_sentence_vector_is_the_mean_of_its_own_tokens_in_any_company(monkeypatch):
    """With random weights behind MiniLM's tokens."""
    model = LanguageModel(random_model("bert", vocabulary=30_522), 512)
    monkeypatch.setattr(sentence_vectors, "load_language_model", lambda *_, **__: model)
    encoder = SentenceEncoder("minilm")
    texts = ["a red key", "the door behind the wall is locked and nobody has seen the yellow key", "ball"]
    for text, found in zip(texts, encoder(texts), strict=True):
        ids = torch.tensor([encoder.tokenizer.encode(text).ids])
        states = model.forward(model.embeddings[ids])[0]
        torch.testing.assert_close(found, F.normalize(states.mean(0), dim=0), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_after_a_short_training_the_nearest_word_names_what_is_seen(tmp_path):
    settings = Hyperparameters(pictures=4096, steps=400, held_out=200)
    others = ["horse", "music", "river", "window", "money", "flower", "paper", "garden", "bread", "bird"]
    network = train(settings, SentenceEncoder("minilm"), others[:5], run_in(tmp_path))
    words = [caption for caption in captions() if " " not in caption]
    judged = dual_encoder.accuracy(DualEncoder(network, "minilm", "cpu"), [*words, *others], settings)
    assert judged["single"]["top_1"] > 0.85 and judged["single_known"]["name_first"] > 0.95
    assert judged["single"]["top_5"] > 0.95 and judged["many"]["top_1"] > 0.9


@pytest.mark.slow
def test_checkpoints_at_odd_moments_change_nothing(tmp_path):
    def trained(run):
        return train(TINY, sentences, ["lamp", "sky"], run).state_dict()

    assert ends_the_same(trained, tmp_path, (4, 5)) == 2
