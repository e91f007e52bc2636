"""A release: one version everywhere, hosted checks that are targets of the Makefile, and what `make release` refuses."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

from recollect import __version__
from recollect.settings.errors import UserError
from recollect.settings.strict_yaml import parsed

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "workflow"))
import release  # noqa: E402

HOSTED = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_version_stands_in_one_place_and_is_said_alike_by_the_others() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"] and "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "recollect.__version__"}
    assert release.version_of(ROOT) == __version__
    assert fast_yaml.load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", __version__]


def test_of_each_paper_the_citation_names_authors_and_place() -> None:
    cited = fast_yaml.load((ROOT / "CITATION.cff").read_text())["references"]
    assert len(cited) == 7 and len({paper["title"] for paper in cited}) == 7
    for paper in cited:
        assert len(paper["authors"]) > 2 and paper["year"] in range(2022, 2026), paper["title"]
        pages = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
        assert any(paper["url"] in page or paper["title"] in re.sub(r"\s+", " ", page) for page in pages), paper[
            "title"
        ]


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A tree of which version 1.2.3 can be released."""
    (tmp_path / "src/recollect").mkdir(parents=True)
    (tmp_path / "src/recollect/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\ndate-released: 2031-02-03\n")
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2031-02-03\n")
    return tmp_path


def test_a_tree_that_names_one_version_and_date_can_be_released(ready: Path) -> None:
    assert release.check(ready) == "1.2.3"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("src/recollect/__init__.py", "1.2.3", "1.3.0", "version 1.2.3, not 1.3.0"),
        ("CHANGELOG.md", " - 2031-02-03", "", "version 1.2.3 has no date"),
        ("CHANGELOG.md", "2031-02-03", "not tagged yet", "version 1.2.3 has no date"),
        ("CHANGELOG.md", "## [1.2.3] - 2031-02-03", "", "version 1.2.3 has no date"),
        ("CITATION.cff", "02-03", "02-04", "another date than in CHANGELOG.md"),
    ],
)
def test_files_that_disagree_stop_a_release_by_name(ready: Path, file: str, old: str, new: str, said: str) -> None:
    (ready / file).write_text((ready / file).read_text().replace(old, new))
    with pytest.raises(UserError, match=said):
        release.check(ready)


@pytest.mark.parametrize("file", HOSTED, ids=lambda path: path.name)
def test_hosted_checks_run_targets_of_the_makefile_and_nothing_else(file: Path) -> None:
    hosted: dict[str, Any] = parsed(file)
    assert hosted["permissions"] == {"contents": "read"} and hosted["concurrency"]["cancel-in-progress"]
    targets = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
    for job in hosted["jobs"].values():
        matrix = job["strategy"]["matrix"]
        steps = [step["run"] for step in job["steps"] if "run" in step]
        assert steps == ["make ${{ matrix.target }}"]
        asked = {*matrix["target"], *(one["target"] for one in matrix["include"])}
        assert asked <= targets and {"lint", "dry-run", "test", "docs", "smoke"} <= asked


@pytest.mark.parametrize("file", HOSTED, ids=lambda path: path.name)
def test_hosted_checks_take_actions_by_hash_and_the_oldest_and_newest_python(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)", text)
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+(\.\d+)*", one) for one in used), used
    assert "PYTHON: python${{ matrix.python }}" in text and "PYTHON ?= " in MAKEFILE
    known = sorted({int(minor) for minor in re.findall(r"python3\.(\d+)", MAKEFILE.split("CORES")[0])})
    tested = sorted({int(minor) for minor in re.findall(r'"3\.(\d+)"', text)})
    assert tested == [known[0], known[-1]]
    assert f">=3.{known[0]}" in (ROOT / "pyproject.toml").read_text()


def test_there_are_hosted_checks() -> None:
    assert HOSTED
