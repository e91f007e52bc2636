"""A small `conda` for `snakemake --sdm conda` where no conda is to be had: real packages, solved and linked by py-rattler.

Every channel is the folder $STAND_IN_CHANNEL, which `make_channel` fills. It knows what Snakemake calls and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import json
import os
import sys
import tarfile
from pathlib import Path

CONDA = """#!/bin/sh
STAND_IN_ROOT={root} STAND_IN_CHANNEL={channel} PYTHONPATH={packages} exec {python} {stand_in} "$@"
"""
ACTIVATE = 'export CONDA_PREFIX="$1" PATH="$1/bin:$PATH"\nunset PYTHONHOME\n'


def pack(channel: Path, name: str, version: str, files: dict[str, bytes], links: dict[str, str]) -> None:
    """Write one package."""
    index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": [], "subdir": "linux-64"}
    paths = [
        {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
        for path, data in files.items()
    ]
    empty = hashlib.sha256(b"").hexdigest()
    paths += [{"_path": path, "path_type": "softlink", "sha256": empty, "size_in_bytes": 0} for path in links]
    about = {
        "info/index.json": json.dumps({**index, "timestamp": 0}).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/files": "".join(f"{path}\n" for path in [*files, *links]).encode(),
    }
    folder = channel / "linux-64"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{version}-0.tar.bz2", "w:bz2") as package:
        for path, data in {**files, **about}.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            package.addfile(entry, io.BytesIO(data))
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            package.addfile(entry)


def make_channel(channel: Path) -> None:
    """A channel whose `python` is the one that runs this; pip comes with it (ensurepip)."""
    from rattler.index import index_fs

    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    version = "{}.{}.{}".format(*sys.version_info[:3])
    minor = "{}.{}".format(*sys.version_info[:2])
    home = f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    files = {"pyvenv.cfg": home.encode(), f"lib/python{minor}/site-packages/.keep": b""}
    pack(channel, "python", version, files, {"bin/python": "python3", "bin/python3": str(python)})
    pack(channel, "pip", "1.0", {"share/pip/.keep": b""}, {})
    (channel / "noarch").mkdir()
    asyncio.run(_indexed(index_fs(channel)))


async def _indexed(result: object) -> None:
    if hasattr(result, "__await__"):
        await result


def make_commands(folder: Path, packages: Path, channel: Path) -> None:
    """`conda` and its `activate`."""
    folder.mkdir(parents=True)
    conda = CONDA.format(
        root=folder.parent, channel=channel, packages=packages, python=sys.executable, stand_in=__file__
    )
    (folder / "conda").write_text(conda)
    (folder / "conda").chmod(0o755)
    (folder / "activate").write_text(ACTIVATE)


async def create(file: str, prefix: str) -> None:
    """Solve an environment file against the channel and link what it needs."""
    import yaml
    from rattler import Channel, VirtualPackage, install, solve
    from rattler.platform import Platform

    wanted = yaml.safe_load(Path(file).read_text())["dependencies"]
    channel = Channel(f"file://{os.environ['STAND_IN_CHANNEL']}")
    platforms = [Platform("linux-64"), Platform("noarch")]
    records = await solve([channel], wanted, platforms=platforms, virtual_packages=VirtualPackage.detect())
    await install(records, target_prefix=prefix, show_progress=False)


def main(words: list[str]) -> None:
    """What Snakemake calls."""
    root = os.environ["STAND_IN_ROOT"]
    options = dict(itertools.pairwise(words))
    if words == ["info", "--json"]:
        print(
            json.dumps({"conda_prefix": root, "platform": "linux-64", "conda_version": "24.11.1", "root_prefix": root})
        )
    elif words == ["--version"]:
        print("conda 24.11.1")
    elif words[:2] == ["config", "--get"]:
        print(json.dumps({"get": {"channel_priority": "strict"}}))
    elif words[:2] == ["env", "create"]:
        asyncio.run(create(options["--file"], options["--prefix"]))
    elif words[:2] == ["env", "export"]:
        print("channels: []\ndependencies: []")
    elif words[:1] != ["clean"]:
        sys.exit(f"the stand-in for conda does not know {words}")


def end() -> None:
    """End well at once: py-rattler's threads may outlive the interpreter, which then aborts after all has been done."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
    end()
