"""Putting language models into their folders, once: what the workflow runs before anything reads them.

A model of the hub is fetched at a pinned revision with checked hashes; one of a package is copied out of it; a random one
is written. Jobs then read the sealed files without a network.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recollect.artifacts.hub import check_request, download
from recollect.artifacts.sealed import sealing, verify, write_arrays, write_json
from recollect.common.language_models import KIND, OFFLINE, PACKAGE, WEIGHTS, package_folder, random_model
from recollect.settings.errors import UserError
from recollect.settings.schema import LanguageModelSettings

Converter = Callable[[LanguageModelSettings, Path], None]
"""Fetches a model that was published in another form, and seals it in a folder in ours."""


def provide(settings: LanguageModelSettings, folder: Path, converters: Mapping[str, Converter] | None = None) -> None:
    """Put a language model into a folder, sealed: ``config.json`` and ``model.safetensors``.

    What the workflow runs once. ``hub`` fetches it; ``package`` copies it out of the installed package, so that all
    that is computed from it has a file to point at; ``random`` writes the seeded weights.

    Args:
        converters: kind of model -> what puts those of the hub there in place of `fetch`.

    Raises:
        UserError: see ``fetch``; or the package is missing or another version.
    """
    folder = Path(folder)
    if settings.source == "hub":
        if not settings.repository or not settings.revision or not settings.sha256:
            raise UserError(
                "A model from the hub needs a repository, a revision, and the files that are read with their sha256.",
                where="config/language_models.yaml",
                do="Add what is missing; the revision is the 40 digits of a commit.",
            )
        if converters is not None and settings.kind in converters:
            return converters[settings.kind](settings, folder)
        fetch(settings.repository, settings.revision, list(settings.sha256), settings.sha256, folder)
    elif settings.kind == "llama":
        raise UserError(
            "A model of this kind is read where its package lies; there is nothing to put anywhere.",
            where="config/language_models.yaml",
            do="Use it as it is.",
        )
    elif settings.source == "package":
        source = package_folder(settings)
        for file in ("config.json", WEIGHTS, "vocab.txt"):
            _seal_copy(source / file, folder / file, {"package": settings.package or PACKAGE, "file": file})
    else:
        model = random_model(settings.kind)
        arrays = {name: weight.numpy() for name, weight in model.state_dict().items()}
        write_json(folder / "config.json", json.loads(model.config.to_json_string()), kind=KIND)
        write_arrays(folder / WEIGHTS, arrays, kind=KIND, metadata={"format": "pt"})


def fetch(name: str, revision: str, files: Sequence[str], sha256s: Mapping[str, str], folder: Path) -> None:
    """Fetch files of a model from the Hugging Face hub once, check them and seal them in ``folder``.

    A file that already stands there sealed with the right hash is not fetched again.

    Args:
        revision: a full commit hash, so that what is fetched can never change.
        folder: where they go, ``data/models/<name>``.

    Raises:
        UserError: a pickled file is asked for, the revision is not pinned, a hash is missing or differs, there is no
            network, or huggingface_hub is not installed.
    """
    expected = {file: sha256s.get(file, "") for file in files}
    check_request(name, revision, expected, instead=f"Ask for {WEIGHTS}; choose a revision that has it.")
    for file, sha256 in expected.items():
        fetch_sealed(name, revision, file, sha256, Path(folder) / file, kind=KIND, offline=OFFLINE)


def fetch_sealed(name: str, revision: str, file: str, sha256: str, target: Path, *, kind: str, offline: str) -> None:
    """Fetch one file of the hub and seal it, unless it stands there sealed with this hash; see `fetch` for errors."""
    try:
        stands = bool(verify(target, kind=kind)["sha256"] == sha256)
    except UserError:
        stands = False
    if not stands:
        with tempfile.TemporaryDirectory(prefix="recollect-fetch-") as scratch:
            got = download(name, revision, file, sha256, Path(scratch), offline=offline)
            with sealing(target, kind=kind, provenance={"name": name, "revision": revision, "file": file}) as temp:
                shutil.copyfile(got, temp)


def _seal_copy(source: Path, target: Path, provenance: dict[str, str]) -> None:
    with sealing(target, kind=KIND, provenance=provenance) as temp:
        shutil.copyfile(source, temp)
