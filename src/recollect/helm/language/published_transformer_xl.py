"""Transformer-XL as it is published: two pickles, turned once into sealed arrays and a list of words.

A pickle can run code when it is read. So these two are fetched at a pinned commit, checked against pinned hashes, and
read in a process of their own that does nothing else: the weights by torch's reader of plain tensors, the vocabulary by
one that knows no class but two kinds of dictionary. Nothing else in the project opens a pickle.

Run as ``python -I -m recollect.helm.language.published_transformer_xl``; ``fetch_and_convert`` does.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.hub import check_request, download
from recollect.artifacts.sealed import read_arrays, read_json, sealing, sha256_of, write_arrays, write_json
from recollect.common.language_models import KIND, OFFLINE, WEIGHTS
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings
from recollect.settings.errors import UserError
from recollect.settings.schema import LanguageModelSettings

CONFIG, PICKLED_WEIGHTS, PICKLED_WORDS, WORDS = "config.json", "pytorch_model.bin", "vocab.bin", "vocab.txt"
FILES = (CONFIG, PICKLED_WEIGHTS, PICKLED_WORDS)
NAMES = {  # of a layer's arrays: published -> ours
    "dec_attn.qkv_net.weight": "qkv.weight",
    "dec_attn.r_net.weight": "positions.weight",
    "dec_attn.o_net.weight": "attention_out.weight",
    "dec_attn.r_w_bias": "content_bias",
    "dec_attn.r_r_bias": "position_bias",
    "dec_attn.layer_norm": "norm_attention",
    "pos_ff.CoreNet.0": "mlp_in",
    "pos_ff.CoreNet.3": "mlp_out",
    "pos_ff.layer_norm": "norm_mlp",
}
MUST_BE = {"untie_r": True, "pre_lnorm": False, "same_length": True, "attn_type": 0}
TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # the first object of a file that torch wrote before it wrote zip files


def load(folder: Path, *, layers: int | None = None) -> TransformerXL:
    """The first layers (None: all) of a converted model.

    Raises:
        UserError: it is missing or corrupted, or has fewer layers.
    """
    folder = folder.parent if folder.name == WEIGHTS else folder
    settings = TransformerXLSettings(**read_json(folder / CONFIG, kind=KIND))
    settings = shortened(settings, layers)
    with torch.device("meta"):
        model = TransformerXL(settings)
    arrays = read_arrays(folder / WEIGHTS, kind=KIND)
    model.load_state_dict({name: torch.from_numpy(arrays[name].copy()) for name in model.state_dict()}, assign=True)
    return model.eval().requires_grad_(False)


def shortened(settings: TransformerXLSettings, layers: int | None) -> TransformerXLSettings:
    """The settings of the first layers only. Raises UserError if there are not so many."""
    if layers is not None and not 1 <= layers <= settings.layers:
        raise UserError(
            f"This language model has {settings.layers} layers, not {layers}.",
            where="layers",
            do=f"Set layers to 1..{settings.layers}, or to null for all.",
        )
    return settings if layers is None else settings.model_copy(update={"layers": layers})


def fetch_and_convert(settings: LanguageModelSettings, folder: Path) -> None:
    sha256s = {file: settings.sha256.get(file, "") for file in FILES}
    repository, revision = settings.repository or "", settings.revision or ""
    check_request(repository, revision, sha256s, instead="", convert=True)
    origin = {"name": repository, "revision": revision, "sha256": sha256s}
    with tempfile.TemporaryDirectory(prefix="recollect-fetch-") as scratch:
        for file, sha256 in sha256s.items():
            download(repository, revision, file, sha256, Path(scratch), offline=OFFLINE)
        unpinned = [f"{file}: {sha256_of(Path(scratch) / file)}" for file, sha256 in sha256s.items() if not sha256]
        if unpinned:
            raise UserError(
                f"Files without an expected sha256 are not opened. What the hub gave has: {', '.join(unpinned)}.",
                where=f"{repository}@{revision}",
                do="Compare with what the hub's pages of the files show, then write them in config/language_models.yaml.",
            )
        convert_apart(Path(scratch), folder, origin)


CONVERTERS = {"transformer_xl": fetch_and_convert}
"""What `common.language_model_files.provide` is given: this kind of model is converted when it is fetched."""


def convert_apart(source: Path, folder: Path, origin: dict[str, Any]) -> None:
    """Run `convert` in a process of its own; `origin["sha256"]` holds the hash of each file."""
    command = [sys.executable, "-I", "-m", __spec__.name, str(source), str(folder.absolute()), json.dumps(origin)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stdout.strip() or (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise UserError(
            f"The published model was not converted: {said}",
            where=f"{origin.get('name')}@{origin.get('revision')}",
            do="Check the pinned revision and hashes in config/language_models.yaml.",
        )


def convert(source: Path, folder: Path, origin: dict[str, Any]) -> None:
    """Check, read and seal: `config.json`, `vocab.txt` and, last, `model.safetensors`.

    Raises:
        UserError: a hash differs (before anything is opened), or a file is not what it should be.
    """
    for file in FILES:
        found = sha256_of(source / file)
        if found != origin["sha256"][file]:
            raise UserError(f"{file} has sha256 {found}", where=source, do="Do not use it.")
    settings = translated(json.loads((source / CONFIG).read_text(encoding="utf-8")))
    try:
        weights = torch.load(source / PICKLED_WEIGHTS, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise _strange(f"{PICKLED_WEIGHTS} does not hold tensors alone ({type(error).__name__})") from error
    arrays = renamed(weights, settings)
    with (source / PICKLED_WORDS).open("rb") as file_:
        words = read_words(file_)
    if len(words) != settings.vocabulary:
        raise _strange(f"there are {len(words)} words, but embeddings of {settings.vocabulary}")
    write_json(folder / CONFIG, settings.model_dump(mode="json"), kind=KIND, provenance=origin)
    with sealing(folder / WORDS, kind=KIND, provenance=origin) as temp:
        temp.write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="\n")
    write_arrays(folder / WEIGHTS, arrays, kind=KIND, provenance=origin)


def translated(config: dict[str, Any]) -> TransformerXLSettings:
    """Our settings from the published ones; what they do not name is as the published class has it."""
    different = {key: config[key] for key in MUST_BE if config.get(key, MUST_BE[key]) != MUST_BE[key]}
    if different or config.get("d_embed", config["d_model"]) != config["d_model"]:
        raise _strange(f"config.json has {different or 'embeddings of another width than the layers'}")
    return TransformerXLSettings(
        vocabulary=config.get("vocab_size", config.get("n_token")),
        cutoffs=tuple(config["cutoffs"]),
        division=config["div_val"],
        width=config["d_model"],
        layers=config["n_layer"],
        heads=config["n_head"],
        head_width=config["d_head"],
        inner=config["d_inner"],
        clamp=config["clamp_len"],
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
    )


def renamed(published: dict[str, Tensor], settings: TransformerXLSettings) -> dict[str, np.ndarray]:
    """The arrays under our names. Those that only predict words (`crit.`) are left out."""
    found = {}
    for name, array in published.items():
        name = name.removeprefix("transformer.")
        name = re.sub(r"^word_emb\.emb_layers\.(\d+)\.weight$", r"embeddings.\1", name)
        name = re.sub(r"^word_emb\.emb_projs\.(\d+)$", r"projections.\1", name)
        for theirs, ours in NAMES.items():
            name = re.sub(rf"^(layers\.\d+\.){re.escape(theirs)}", rf"\g<1>{ours}", name)
        if not name.startswith(("crit.", "pos_emb.")):
            found[name] = array.float().numpy()
    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in TransformerXL(settings).state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    if shapes != expected:
        name = min(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
        raise _strange(f"array '{name}' has shape {shapes.get(name)}, expected {expected.get(name)}")
    return found


class _Words(pickle.Unpickler):
    """Reads plain values and two kinds of dictionary; whatever else a pickle names is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        known = {("collections", "OrderedDict"): OrderedDict, ("collections", "Counter"): Counter}
        if (module, name) not in known:
            raise _strange(f"{PICKLED_WORDS} names {module}.{name}, which no list of words needs")
        return known[module, name]


def read_words(file: BinaryIO) -> list[str]:
    """The words by id. Raises UserError if the file holds something else."""
    try:
        content = _Words(file).load()
        if content == TORCH_MAGIC:  # the version and facts on the writer's machine precede the value
            content = [_Words(file).load() for _ in range(3)][2]
        words = content["idx2sym"]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _strange(f"{PICKLED_WORDS} holds no list of words ({type(error).__name__}: {error})") from error
    if not isinstance(words, list) or not all(isinstance(word, str) and "\n" not in word for word in words):
        raise _strange(f"{PICKLED_WORDS} has an `idx2sym` that is no list of words")
    return words


def _strange(what: str) -> UserError:
    return UserError(what, where="a published Transformer-XL", do="Use the revision that the config pins.")


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    except UserError as problem:
        print(problem.what)
        sys.exit(2)
