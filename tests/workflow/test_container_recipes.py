"""Promises of envs/container that can be kept without a builder: both recipes make the same image, of what is here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = (ROOT / "envs/container/Containerfile").read_text()
APPTAINER = (ROOT / "envs/container/recollect.def").read_text()


def copied(recipe: str) -> list[tuple[str, str]]:
    """What a recipe copies -> where to."""
    if recipe == APPTAINER:
        section = re.search(r"^%files\n((?: .*\n)+)", recipe, re.MULTILINE)
        assert section
        return [(line.split()[0], line.split()[1]) for line in section[1].splitlines()]
    folder = re.search(r"^WORKDIR (\S+)\nCOPY", recipe, re.MULTILINE)
    assert folder
    lines = [line.split()[1:] for line in re.findall(r"^COPY .*$", recipe, re.MULTILINE)]
    return [(source, f"{folder[1]}/{source}") for *sources, _ in lines for source in sources]


@pytest.mark.parametrize("recipe", [CONTAINERFILE, APPTAINER], ids=["Containerfile", "recollect.def"])
def test_a_recipe_installs_the_locked_packages_of_the_files_that_it_copies(recipe: str) -> None:
    names = [source for source, _ in copied(recipe)]
    assert all((ROOT / name).exists() for name in names)
    assert {"envs", "src", "pyproject.toml"} <= set(names)
    assert re.search(r"python3 (/usr/local/recollect/)?envs/setup.py --family \S", recipe)
    assert "pip install" not in recipe, "nothing beside the locks"
    assert re.search(r"FAMILY=base$", recipe, re.MULTILINE)


def test_what_is_copied_is_sent_to_the_builder_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {source for source, _ in copied(CONTAINERFILE)}


def test_both_recipes_make_the_same_image() -> None:
    assert sorted(copied(CONTAINERFILE)) == sorted(copied(APPTAINER))
    packages = [
        re.search(r"--no-install-recommends (.*?)(?: \\)?$", x, re.MULTILINE) for x in (CONTAINERFILE, APPTAINER)
    ]
    assert packages[0] and packages[1] and packages[0][1] == packages[1][1]
    assert "debian:bookworm-slim" in CONTAINERFILE and "debian:bookworm-slim" in APPTAINER
