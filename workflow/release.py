"""What `make release` does before a tag is set (CONTRIBUTING, "A release"): look, build, try, and publish the demo's results.

- The version stands in src/recollect/__init__.py. CITATION.cff and CHANGELOG.md must name it with one date.
- Wheel and source distribution are built of the last commit, in dist/. The wheel is installed into an environment of its
  own and tried outside of a clone, then with the unpacked source distribution around it.
- Where DVC has a default remote: `dvc repro`, `dvc push`, and a fresh clone pulls, where neither DVC nor Snakemake may have
  anything to do. Then dvc.lock and metrics/ are the release's, to be committed. Without a remote there is no dvc.lock: it
  would name bytes that nobody can get.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import yaml

from recollect.settings.errors import UserError

BIN = Path(sys.executable).parent
OURS = ("dvc.lock", "metrics/")  # what this may change


def version_of(root: Path) -> str:
    """The version of a working tree."""
    text = (root / "src/recollect/__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(version)


def check(root: Path) -> str:
    """Returns the version, which every file names.

    Raises:
        UserError: a file names another, or no date.
    """
    version = version_of(root)
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    if str(cited["version"]) != version:
        raise UserError(f"version {cited['version']}, not {version}", where=root / "CITATION.cff", do="write it there")
    headings = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    dates = dict(headings)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", dates.get(version, "")):
        what, do = f"version {version} has no date", f"head its changes with `## [{version}] - ` and the date of today"
        raise UserError(what, where=root / "CHANGELOG.md", do=do)
    if str(cited.get("date-released")) != dates[version]:
        raise UserError(
            "another date than in CHANGELOG.md", where=root / "CITATION.cff", do="write date-released there"
        )
    return version


def check_repository(version: str) -> None:
    """Raises UserError where git knows the version already, or has changes that are not committed."""
    if said("git", "tag", "--list", f"v{version}"):
        raise UserError(f"the tag v{version} is there", where="git tag", do="raise the version, or delete the tag")
    lines = said("git", "status", "--porcelain").splitlines()
    if changed := [path for path in (line.split(maxsplit=1)[1] for line in lines) if not path.startswith(OURS)]:
        raise UserError(f"not committed: {', '.join(changed)}", where="git status", do="commit or ignore it")


def package(version: str, dist: Path) -> None:
    """Build, and try what was built as a stranger has it."""
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source, empty = Path(folder) / "source", Path(folder) / "empty"
        said("git", "clone", "--quiet", ".", str(source))
        say("source distribution and wheel")
        said(str(BIN / "uv"), "build", "--quiet", "--no-build-isolation", "--python", sys.executable, cwd=source)
        shutil.copytree(source / "dist", dist)
        (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        kept = set(said("git", "ls-files", cwd=source).splitlines())
        shutil.rmtree(source)
        shutil.unpack_archive(archive, source)
        (unpacked,) = source.iterdir()
        if missing := sorted(path for path in kept if not (unpacked / path).exists()):
            raise UserError(f"missing: {', '.join(missing)}", where=archive, do="add it to MANIFEST.in")

        say("the wheel in an environment of its own")
        venv.create(empty / "venv", with_pip=True)
        python, command = str(empty / "venv/bin/python"), str(empty / "venv/bin/recollect")
        said(python, "-m", "pip", "install", "--quiet", "--no-input", str(wheel), cwd=empty, alone=True)
        imported = said(python, "-c", "import recollect; print(recollect.__version__)", cwd=empty, alone=True)
        expect(version, imported)
        expect(f"recollect {version}", said(command, "--version", cwd=empty, alone=True))
        expect("to do: ", said(command, "list", "scales", cwd=empty, status=2, alone=True))
        expect("demo", said(command, "list", "scales", cwd=unpacked, alone=True))


def results() -> bool:
    """Bring the demo up to date, push it, and see that a fresh clone gets all of it. False where there is no remote."""
    if subprocess.run(["dvc", "remote", "default"], capture_output=True).returncode:
        return False
    say("dvc repro")
    subprocess.run(["dvc", "repro"], check=True)
    say("dvc push")
    said("dvc", "push")
    say("a fresh clone pulls")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        said("git", "clone", "--quiet", ".", str(clone))
        for name in ("dvc.lock", ".dvc/config", ".dvc/config.local"):
            if Path(name).exists():
                shutil.copy2(name, clone / name)
        shutil.copytree("metrics", clone / "metrics", dirs_exist_ok=True)
        said("dvc", "pull", cwd=clone)
        expect("up to date", said("dvc", "status", cwd=clone))
        expect("Nothing to be done", said("snakemake", "--dry-run", cwd=clone, source=clone / "src"))
    return True


def expect(wanted: str, found: str) -> None:
    """Raises UserError unless what was said has the wanted text in it."""
    if wanted not in found:
        raise UserError(f"{wanted!r} was not said", where=f"this was: {found}", do="mend what the last step tried")


def say(line: str) -> None:
    """One line for the person who waits."""
    print(f"release: {line}", flush=True)


def said(
    *command: str, cwd: Path | None = None, status: int = 0, alone: bool = False, source: Path | None = None
) -> str:
    """What a command says, stdout and stderr together; UserError where it ends with another status.

    Args:
        alone: it does not see the packages that PYTHONPATH names.
        source: where the package lies that it takes.
    """
    environment = {key: value for key, value in os.environ.items() if not (alone and key == "PYTHONPATH")}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != status:
        what = f"this ended with status {done.returncode}: {' '.join(command)}"
        raise UserError(f"{what}\n{done.stdout}", where=cwd or Path.cwd(), do="mend what it says")
    return done.stdout.strip()


def main(*steps: str) -> None:
    """All steps, or the results alone; from the repository's root."""
    if steps not in ((), ("results",)):
        sys.exit("usage: python workflow/release.py [results]")
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    try:
        version = check(Path.cwd()) if not steps else ""
        if not steps:
            check_repository(version)
            package(version, Path.cwd() / "dist")
        pulled = results()
    except UserError as error:
        sys.exit(f"release: {error}")
    say(
        "the demo's results were pushed, and a clone pulled them" if pulled else "no results: DVC has no default remote"
    )
    if not steps:
        commit = f"git add {' '.join(OURS)} && git commit -m 'chore: release {version}' && " if pulled else ""
        say(f"dist/ is tried. To do: {commit}git tag v{version} && git push origin HEAD v{version}")


if __name__ == "__main__":
    main(*sys.argv[1:])
