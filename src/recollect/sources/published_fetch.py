"""Fetches published data sets once, and knows their files again afterwards.

A data set is a folder of files as the hub has them at one commit, and an index of their hashes, written last: the
folder is whole if the index is there. A fetch that was interrupted goes on with the files that are missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from fnmatch import filter as fnmatch_filter
from pathlib import Path

from recollect.artifacts.hub import check_request, download, listing
from recollect.artifacts.lock import run_lock
from recollect.artifacts.sealed import read_json, sha256_of, write_json
from recollect.settings.errors import UserError
from recollect.settings.schema import PublishedDataSettings

KIND = "published data"


def fetch(name: str, chosen: PublishedDataSettings, index: Path, revision: str | None = None) -> str:
    """Fetch a data set into the folder of its index, and say in a sentence what was fetched.

    `revision` is a commit to fetch instead of the pinned one; its hashes are those that the hub lists.
    """
    where = f"config/published_data.yaml: {name}"
    folder = index.parent
    repository = chosen.repository
    commit = revision or chosen.revision
    if commit is None:
        raise UserError(
            f"no revision of {repository} is pinned",
            where=where,
            do='take the newest commit (40 digits) from "Files and versions" on the hub\'s page of this data set, try '
            f"it with `recollect fetch --data {name} --revision COMMIT`, and write it there as `revision:`",
        )
    offline = (
        "check the network and the names; on a machine without network, copy the folder "
        f"{folder.as_posix()} from one that has it, or name a folder of your own in source.hyperparameters.folder"
    )
    pinned = dict(chosen.sha256) if commit == chosen.revision else {}
    check_request(repository, commit, pinned, instead="name files of arrays")
    if not pinned:
        listed = listing(repository, commit, offline=offline)
        for pattern in chosen.files:
            pinned |= {file: listed[file] for file in fnmatch_filter(listed, pattern)}
        if not pinned:
            message = f"{repository} has no files like {', '.join(chosen.files)} there ({len(listed)} others)"
            raise UserError(message, where=where, do="correct `files`, or name another commit")
        check_request(repository, commit, pinned, instead="correct `files`")
    fetched = 0
    scratch = folder / ".fetching"
    origin = {"repository": repository, "revision": commit}
    with run_lock(folder):
        try:
            for file, sha256 in sorted(pinned.items()):
                target = folder / file
                if not target.is_file() or sha256_of(target) != sha256:
                    got = download(repository, commit, file, sha256, scratch, offline=offline, dataset=True)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(got, target)
                    fetched += 1
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        write_json(index, {**origin, "files": dict(sorted(pinned.items()))}, kind=KIND, provenance=origin)
    said = f"{repository} at {commit}: {len(pinned)} files in {folder.as_posix()}, {fetched} of them fetched now"
    if commit != chosen.revision:
        said += f"; to pin this commit, write `revision: {commit}` in {where}"
    return said


def hashes(sources: Sequence[Path], index: Path | None = None) -> dict[str, str]:
    """The sha256 of files, and of folders (of the names and hashes of all files in them).

    `index` is of the data set that they belong to; a UserError says if they are not as they were fetched.
    """
    listed = {} if index is None else read_json(index, kind=KIND)["files"]
    found = {}
    for source in sources:
        lines = sha256 = ""
        inside = sorted(source.rglob("*")) if source.is_dir() else [source]
        for path in inside:
            if path.is_dir():
                continue
            try:
                sha256 = sha256_of(path)
            except OSError as error:  # a link to nowhere or to itself, or another user's file
                do = "fetch it again, or get the right to read it"
                raise UserError(f"this file cannot be read: {error}", where=path, do=do) from error
            if index is not None and listed.get(path.relative_to(index.parent).as_posix()) != sha256:
                do = f"fetch it again (`recollect fetch --data {index.parent.name}`), or put your own files elsewhere"
                raise UserError("this file is not as it was fetched", where=path, do=do)
            lines += f"{sha256} {path.relative_to(source).as_posix()}\n"
        found[source.as_posix()] = hashlib.sha256(lines.encode()).hexdigest() if source.is_dir() else sha256
    return found
