"""The one conversion of pickles: apart, hashes first, nothing run."""

import hashlib
import json
import pickle
import re
from collections import Counter, OrderedDict
from io import BytesIO
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from recollect.common.language_model_files import provide
from recollect.helm.language import published_transformer_xl
from recollect.helm.language.language_vocabulary import vocabulary
from recollect.helm.language.published_transformer_xl import CONVERTERS, FILES, convert, convert_apart, load, read_words
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model
from recollect.settings.schema import LanguageModelSettings
from recollect.stages.fetch import fetch

RECORDED = Path(__file__).parents[2] / "parity" / "transfo_xl.safetensors"
REVISION = "40a186da79458c9f9de846edfaea79c412137f97"
WORDS = ["<eos>", "the", ",", "naïve", *(f"w{i}" for i in range(56))]


class Runs:
    """Reading its pickle would make a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def hashes(folder: Path) -> dict[str, str]:
    return {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in FILES}


def vocabulary_value() -> dict:
    symbols = OrderedDict((word, i) for i, word in enumerate(WORDS))
    return {"counter": Counter(WORDS), "special": ["<eos>"], "min_freq": 0, "idx2sym": WORDS, "sym2idx": symbols}


@pytest.fixture
def published(tmp_path) -> Path:
    """The recorded model in the files that the hub has."""
    folder = tmp_path / "published"
    folder.mkdir()
    with safe_open(RECORDED, framework="pt") as file:
        ours = json.loads(file.metadata()["settings"])
    weights = {
        name.removeprefix("weights/"): value
        for name, value in load_file(RECORDED).items()
        if name.startswith("weights/")
    }
    weights["crit.out_layers.0.bias"] = torch.zeros(3)
    torch.save(OrderedDict(weights), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    torch.save(vocabulary_value(), folder / "vocab.bin", _use_new_zipfile_serialization=False)
    config = {
        "architectures": ["TransfoXLLMHeadModel"],
        "vocab_size": ours["vocabulary"],
        "cutoffs": ours["cutoffs"],
        "div_val": ours["division"],
        "d_model": ours["width"],
        "d_embed": ours["width"],
        "n_layer": ours["layers"],
        "n_head": ours["heads"],
        "d_head": ours["head_width"],
        "d_inner": ours["inner"],
        "clamp_len": ours["clamp"],
        "untie_r": True,
        "pre_lnorm": False,
        "same_length": True,
        "attn_type": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def hub(published, monkeypatch):
    """A hub that has the published files, and the list of what was asked of it."""
    asked = []

    def download(repo_id, filename, *, revision, local_dir):
        asked.append(filename)
        target = Path(local_dir) / filename
        target.write_bytes((published / filename).read_bytes())
        return str(target)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def entry(**sha256s: str) -> LanguageModelSettings:
    return LanguageModelSettings(
        source="hub", kind="transformer_xl", repository="transfo-xl/small", revision=REVISION, sha256=sha256s
    )


@pytest.mark.slow
def test_a_fetched_model_is_converted_whole_and_only_the_first_layers_are_read_where_so_asked(tmp_path, published, hub):
    target = tmp_path / "model"
    settings = entry(**hashes(published))
    provide(settings, target, CONVERTERS)
    assert sorted(hub) == sorted(FILES)
    sealed = ("config.json", "model.safetensors", "vocab.txt")
    assert {path.name for path in target.iterdir()} == {*sealed, *(f"{name}.manifest.json" for name in sealed)}
    model = load(target / "model.safetensors")
    torch.testing.assert_close(model.table(), load_file(RECORDED)["table"], rtol=0, atol=1e-6)
    assert model.settings.layers == 2 and model.settings.clamp == 5 and not model.training
    one = load(target, layers=1)
    assert len(one.layers) == 1 and torch.equal(one.layers[0].qkv.weight, model.layers[0].qkv.weight)
    assert vocabulary(settings, target) == tuple(WORDS)
    with pytest.raises(UserError, match="2 layers, not 3"):
        load(target, layers=3)


@pytest.mark.slow
def test_the_conversion_happens_in_another_process(tmp_path, published, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was opened here")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(published_transformer_xl, "read_words", refuse)
    convert_apart(published, tmp_path / "model", {"sha256": hashes(published)})
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_files_without_a_pinned_hash_are_refused_with_the_hashes_they_have(tmp_path, published, hub):
    pinned = hashes(published)
    found = [f"{file}: {pinned.pop(file)}" for file in FILES[1:]]
    with pytest.raises(UserError, match=", ".join(found)):
        provide(entry(**pinned), tmp_path / "model", CONVERTERS)
    assert not (tmp_path / "model").exists()


def test_the_configured_model_is_fetched_or_refused_by_the_stage(workdir, published, hub):
    chosen = language_model("transfo-xl-wt103")
    assert chosen.kind == "transformer_xl" and chosen.revision == REVISION and set(chosen.sha256) == set(FILES)
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in chosen.sha256.values())
    with pytest.raises(UserError, match="sha256"):  # another file than the real one
        fetch("transfo-xl-wt103")
    assert hub and not (workdir / "data").exists()


def test_hashes_are_checked_before_anything_is_opened(tmp_path, published, hub):
    pinned, trace = hashes(published), tmp_path / "ran"
    (published / "vocab.bin").write_bytes(pickle.dumps(Runs(trace)))
    with pytest.raises(UserError, match="is expected"):
        provide(entry(**pinned), tmp_path / "model", CONVERTERS)
    with pytest.raises(
        UserError, match=r"was not converted: vocab\.bin has sha256"
    ):  # also by the process that would open it
        convert_apart(published, tmp_path / "model", {"sha256": pinned})
    assert not trace.exists() and not (tmp_path / "model").exists()


@pytest.mark.parametrize("file", ["vocab.bin", "pytorch_model.bin"])
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path, published, file):
    trace = tmp_path / "ran"
    if file == "vocab.bin":
        (published / file).write_bytes(pickle.dumps(vocabulary_value() | {"more": Runs(trace)}))
    else:
        torch.save({"weight": Runs(trace)}, published / file)
    with pytest.raises(UserError, match=r"no list of words needs|does not hold tensors alone"):
        convert(published, tmp_path / "model", {"sha256": hashes(published)})
    assert not trace.exists() and not (tmp_path / "model").exists()
    if file == "vocab.bin":  # the trap works
        pickle.loads((published / file).read_bytes())
        assert trace.exists()


@pytest.mark.parametrize(
    "callable_", [eval, exec, __import__, getattr, print, Path.unlink], ids=lambda value: value.__name__
)
def test_the_reader_of_words_knows_no_function(callable_):
    class Calls:
        def __reduce__(self):
            return callable_, ("1",)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(UserError, match="no list of words needs"):
            read_words(BytesIO(pickle.dumps({"idx2sym": Calls()}, protocol=protocol)))


def test_words_are_read_from_either_form_of_file():
    plain = BytesIO(pickle.dumps(vocabulary_value(), protocol=4))
    by_torch = BytesIO()
    torch.save(vocabulary_value(), by_torch, _use_new_zipfile_serialization=False)
    by_torch.seek(0)
    assert read_words(plain) == read_words(by_torch) == WORDS


@pytest.mark.parametrize("value", [{}, [], 3, {"idx2sym": "the"}, {"idx2sym": [1]}, {"idx2sym": ["a\nb"]}])
def test_what_is_no_list_of_words_is_refused(value):
    with pytest.raises(UserError, match="list of words"):
        read_words(BytesIO(pickle.dumps(value)))
    with pytest.raises(UserError, match="list of words"):
        read_words(BytesIO(pickle.dumps(value)[:-1]))


def change_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"untie_r": False}, "untie_r"),
        ({"pre_lnorm": True}, "pre_lnorm"),
        ({"same_length": False}, "same_length"),
        ({"attn_type": 1}, "attn_type"),
        ({"d_embed": 8}, "another width"),
        ({"n_layer": 3}, "layers.2"),
        ({"d_inner": 20}, "mlp_in"),
    ],
)
def test_a_model_of_another_make_is_refused(tmp_path, published, changes, message):
    change_config(published, **changes)
    with pytest.raises(UserError, match=message):
        convert(published, tmp_path / "model", {"sha256": hashes(published)})
    assert not (tmp_path / "model").exists()


def test_what_config_does_not_name_is_as_published():
    published = {"vocab_size": 267735, "cutoffs": [20000, 40000, 200000], "div_val": 4, "d_model": 1024, "n_layer": 18}
    published |= {"n_head": 16, "d_head": 64, "d_inner": 4096, "clamp_len": 1000}
    assert published_transformer_xl.translated(published) == TransformerXLSettings()
    with torch.device("meta"):
        TransformerXL(TransformerXLSettings())
