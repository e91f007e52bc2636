"""Files from the Hugging Face hub: at a full commit hash, checked against a sha256, and no pickle but to be converted.

The only place that uses the network. Everything that is fetched is fetched once, by a rule of its own; jobs work
offline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import sha256_of
from recollect.settings.errors import UserError

PICKLED = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".h5", ".msgpack"}


def check_request(
    repository: str, revision: str, sha256s: Mapping[str, str], *, instead: str, convert: bool = False
) -> None:
    """Refuse what must not be fetched: a revision that is no full commit, pickles, files outside, missing hashes.

    Args:
        sha256s: file in the repository -> its expected hash.
        instead: what to ask for instead of a pickle.
        convert: a process of its own will convert the files: pickles may be fetched, and a file without a hash too, so
            that its hash can be told.
    """
    where = f"{repository}@{revision}"
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise UserError("The revision is not a full commit hash.", where=where, do="Pin the 40 digits of a commit.")
    for file, sha256 in sha256s.items():
        if Path(file).suffix.lower() in PICKLED and not convert:
            raise UserError(f"'{file}' may hold a pickle, which can run code when it is read.", where=where, do=instead)
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise UserError(f"'{file}' points outside the folder.", where=where, do="Use a path inside the repository.")
        if not re.fullmatch(r"[0-9a-f]{64}", sha256) and not (convert and sha256 == ""):
            raise UserError(f"'{file}' has no expected sha256.", where=where, do="Add its 64 hex digits to the config.")


def download(
    repository: str, revision: str, file: str, sha256: str, folder: Path, *, offline: str, dataset: bool = False
) -> Path:
    """Fetch one file into a scratch folder and check it.

    Args:
        sha256: of the file; "": not known, and the caller must not open it.
        offline: what to do where there is no network.
        dataset: the repository is one of data, not of a model.

    Raises:
        UserError: there is no network, the file is not there, its hash differs, or huggingface_hub is not installed.
    """
    hub = _hub()
    where = f"{repository}@{revision}: {file}"
    kind = {"repo_type": "dataset"} if dataset else {}
    try:
        got = Path(hub.hf_hub_download(repository, file, revision=revision, local_dir=str(folder), **kind))
    except Exception as error:  # the hub raises many kinds for one thing: it could not be fetched
        raise _failed("The file could not be fetched", error, where, offline) from error
    found = sha256_of(got)
    if sha256 and found != sha256:
        raise UserError(
            f"The fetched file has sha256 {found}, but {sha256} is expected.",
            where=where,
            do="Do not use it. Check the pinned revision and hash in the config.",
        )
    return got


def listing(repository: str, revision: str, *, offline: str) -> dict[str, str]:
    """The files of a repository of data at a revision, and the sha256 that the hub keeps of each (or "")."""
    hub = _hub()
    try:
        tree: Iterable[Any] = hub.HfApi().list_repo_tree(
            repository, recursive=True, revision=revision, repo_type="dataset"
        )
        files = {item.path: item.lfs.sha256 if item.lfs else "" for item in tree if isinstance(item, hub.RepoFile)}
    except Exception as error:
        raise _failed("The list of files could not be fetched", error, f"{repository}@{revision}", offline) from error
    return dict(sorted(files.items()))


def _failed(what: str, error: Exception, where: str, offline: str) -> UserError:
    said = (str(error).splitlines() or [""])[0]
    return UserError(f"{what} ({type(error).__name__}: {said}).", where=where, do=offline)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            "huggingface_hub is not installed.", where="fetching from the hub", do="Run `pip install huggingface_hub`."
        ) from None
    return huggingface_hub
