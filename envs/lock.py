"""Write envs/locks/*.txt, the hash-locked packages, from pyproject.toml (`make lock`; needs the network).

- One resolution for everything, so that two families never disagree about a version; then one file per use:
  uv.txt, torch.txt, torch-cpu.txt, cuda.txt (what the CUDA build of torch needs), models.txt (installed without what it
  declares), one complete file per rule family (amago.txt, base.txt, control.txt, ...), and workflow.txt, dev.txt and docs.txt,
  each of which comes on top of base.txt and those before it.
- Pins stay as they are unless pyproject.toml asks for another; `--upgrade` takes the newest instead.
- The worlds that another Python plays have locks of their own, in envs/worlds.
- No file names a package index or a path: the same lock works behind any mirror.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ENVS = Path(__file__).resolve().parent
LOCKS = ENVS / "locks"
HEADER = "# Written by `make lock` from pyproject.toml; do not edit.\n"

# CPU wheels of torch for Linux carry a local version (2.13.0+cpu) and stand in PyTorch's own index alone. The sha256 of the
# first was taken of the wheel; the others were read in locks that two or more unrelated projects made from that index.
TORCH_CPU_WHEELS = {
    "2.13.0": {
        "cp311-cp311-manylinux_2_28_x86_64": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
        "cp312-cp312-manylinux_2_28_x86_64": "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
        "cp313-cp313-manylinux_2_28_x86_64": "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
        "cp314-cp314-manylinux_2_28_x86_64": "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",
        "cp311-cp311-manylinux_2_28_aarch64": "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
        "cp312-cp312-manylinux_2_28_aarch64": "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",
        "cp313-cp313-manylinux_2_28_aarch64": "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
        "cp314-cp314-manylinux_2_28_aarch64": "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",
    }
}
CUDA = re.compile(r"^(nvidia-|cuda-|triton$)")
# A rule family is the package's own dependencies, some replaced, and the extra of the family's name if there is one.
FAMILIES: dict[str, dict[str, str]] = {
    "amago": {},
    "base": {},
    "control": {},
    "gpu": {"faiss-cpu": "faiss-gpu==1.15.1"},
    "miniworld": {},
    "pybullet": {},
    "sac": {},
}

# Worlds that another Python plays: its version, what it needs, and what is left out of that. Nothing is shared with ours.
# gym, which procgen declares, has no wheel, and the worker does without it.
WORLDS = {"procgen": ("3.10", ["procgen==0.10.7"], ["gym", "gym-notices", "cloudpickle"])}

Lock = dict[str, str]  # package -> its whole block of lines (a package may stand twice, with markers)


def package(requirement: str) -> str:
    """The normalised name at the start of a requirement."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement.strip())[0]).lower()  # type: ignore[index]


def parse(text: str) -> Lock:
    """Split the text of a lock into one block per package."""
    lock: Lock = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", "\n".join(x for x in text.splitlines() if not x.startswith("#"))):
        if block.strip():
            lock[package(block)] = lock.get(package(block), "") + block.rstrip() + "\n"
    return lock


def pins(*locks: Lock) -> str:
    """What a lock pins, without hashes: what the next resolution shall keep."""
    lines = {x.rstrip(" \\") for lock in locks for block in lock.values() for x in block.splitlines() if x[0] != " "}
    return "\n".join(sorted(lines)) + "\n"


def resolve(
    requirements: list[str],
    prefer: str,
    *options: str,
    how: tuple[str, ...] = ("--universal", "--python-version", "3.11", "--fork-strategy", "fewest"),
) -> Lock:
    """Resolve for every platform (markers in the lock), with the hashes of every file of each package.

    Args:
        requirements: as in pyproject.toml.
        prefer: pins to keep wherever the requirements allow them.
        options: for `uv pip compile`.
        how: for which Python.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted, result = Path(folder, "wanted.in"), Path(folder, "result.txt")
        wanted.write_text("\n".join(requirements) + "\n")
        result.write_text(prefer)  # uv keeps what the output file of a former run pins, where it can
        command = [
            str(Path(sys.executable).with_name("uv")),
            "pip",
            "compile",
            str(wanted),
            "-o",
            str(result),
            "--quiet",
        ]
        subprocess.run(
            [*command, *how, "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", *options],
            check=True,
        )
        return parse(result.read_text())


def write(name: str, lock: Lock, note: str, folder: str = "locks", header: str = HEADER) -> None:
    """Write one lock, in alphabetical order."""
    text = f"{header}# {note}\n" + "".join(lock[x] for x in sorted(lock))
    (ENVS / folder / f"{name}.txt").write_text(text)
    print(f"envs/{folder}/{name}.txt: {len(lock)} packages")


def lock_worlds(upgrade: bool) -> None:
    """Write the locks of the worlds that another Python plays."""
    for world, (python, wanted, left_out) in WORLDS.items():
        path = ENVS / "worlds" / f"{world}.txt"
        present = pins(parse(path.read_text())) if path.exists() and not upgrade else ""
        options = [word for name in left_out for word in ("--no-emit-package", name)]
        lock = resolve(wanted, present, *options, how=("--python-version", python))
        header = HEADER.replace("pyproject.toml", "WORLDS in envs/lock.py")
        write(world, lock, f"All that the worker of `{world}` needs, for Python {python}.", "worlds", header)


def digest(names: list[str]) -> str:
    """One sha256 over several locks; it stands in each envs/*.yaml, so that a changed lock makes a new environment."""
    return hashlib.sha256(b"".join((ENVS / name).read_bytes() for name in names)).hexdigest()


def stamp_environments() -> None:
    """Renew the line `# locks-sha256:` of every conda environment file."""
    for path in sorted(ENVS.glob("*.yaml")):
        text = path.read_text()
        names = re.findall(r"locks/[a-z0-9_-]+\.txt", text)
        path.write_text(re.sub(r"# locks-sha256: \w*", f"# locks-sha256: {digest(names)}", text))


def main() -> None:
    """Write every lock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions instead of the present pins")
    chosen = parser.parse_args()

    project = tomllib.loads((ENVS.parent / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    runtime: list[str] = project["dependencies"]

    locked = [path for path in sorted(LOCKS.glob("*.txt")) if path.stem != "torch-cpu"]  # no registry has that build
    present = "" if chosen.upgrade else pins(*(parse(path.read_text()) for path in locked))
    torch = resolve([x for x in runtime if package(x) == "torch"], present)
    everything = resolve([*runtime, *extras["workflow"], *extras["dev"], *extras["docs"]], present)
    known = pins({**{x: b for x, b in parse(present).items() if x not in everything}, **everything})

    version = re.match(r"torch==(\S+)", torch["torch"])[1]  # type: ignore[index]
    if version not in TORCH_CPU_WHEELS:
        sys.exit(f"envs/lock.py: add the sha256 of the CPU wheels of torch {version} to TORCH_CPU_WHEELS")
    write("torch", {"torch": torch["torch"]}, "The registry's wheels.")
    hashes = sorted(TORCH_CPU_WHEELS[version].values())
    block = f"torch=={version}+cpu" + "".join(f" \\\n    --hash=sha256:{x}" for x in hashes) + "\n"
    write("torch-cpu", {"torch": block}, "The CPU wheels for Linux, of PyTorch's own index or offered to pip.")
    of_torch = {"torch", *(x for x in torch if CUDA.match(x))}
    cuda = {x: block for x, block in everything.items() if x in of_torch and x != "torch"}
    write("cuda", cuda, "What the CUDA build of torch needs; left out where torch is a CPU build.")

    locks: dict[str, Lock] = {}
    for family, replaced in FAMILIES.items():
        wanted = [replaced.get(package(x), x) for x in runtime] + extras.get(family, [])
        locks[family] = {x: b for x, b in resolve(wanted, known).items() if x not in of_torch}
        write(family, locks[family], f"All that rule family `{family}` needs beside torch.txt and models.txt.")
    below = ["base"]
    for extra in ("workflow", "dev", "docs"):
        new = resolve([*runtime, *extras[extra]], known)
        # The whole block is compared: what base needs on Windows alone, `workflow` may need everywhere.
        there = {block for name in below for block in locks[name].values()}
        locks[extra] = {x: b for x, b in new.items() if x not in of_torch and b not in there}
        write(extra, locks[extra], f"What `{extra}` adds to {', '.join(f'{name}.txt' for name in below)}.")
        below.append(extra)
    write("models", resolve(extras["models"], present, "--no-deps"), "Installed without what it declares.")
    write("uv", resolve(["uv"], present), "The installer of all but itself and torch.")
    lock_worlds(chosen.upgrade)
    stamp_environments()


if __name__ == "__main__":
    main()
