"""The documentation as a site: it is built, it is whole, it needs no network, and what pages quote of the program is there."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import Unavailable, browser
from typer.testing import CliRunner

from recollect.cli import app
from recollect.settings.claims import claims_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAPERS = {"RA-DT": "radt", "Memory-RL": "memory_rl", "AMAGO": "amago", "HELM": "helm"}
NUMBER = r"\d+(?:\.\d+)?"
CITATIONS = (
    rf"[Ss]pecification(?: sections?)? ({NUMBER}(?:(?:,| and| to|-| \([^)]*\))+ ?{NUMBER})*)",
    rf"({NUMBER}(?:(?:, | and |-){NUMBER})*) of (?:our|the|its) specification",
)

pytestmark = pytest.mark.usefixtures("in_the_repository")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a dead link or anchor fails."""
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


# ------------------------------------------------------------------------------------------------------------ the site


def test_every_page_and_every_claim_is_in_the_site(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file(), page
    for path in (ROOT / "config/claims").glob("*.yaml"):
        assert (site / "claims" / f"{path.stem}.html").is_file(), path


def test_every_page_can_be_reached_by_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    tabs = re.findall(r'href="([\w/]+\.html)" class="md-tabs__link"', home)
    linked = {target for tab in ("index.html", *tabs) for target in links(site / tab, site)}
    pages = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")}
    assert pages <= linked


def links(page: Path, site: Path) -> Iterator[str]:
    for link in re.findall(r'href="([^"#:]+\.html)', page.read_text(encoding="utf-8")):
        yield (page.parent / link).resolve().relative_to(site.resolve()).as_posix()


def test_the_gallery_shows_each_picture_and_the_verdicts_of_the_recorded_run(site: Path) -> None:
    gallery = (site / "gallery.html").read_text(encoding="utf-8")
    recorded = (DOCS / "recorded/demo/claims.csv").read_text(encoding="utf-8")
    for picture in (DOCS / "figures").glob("*.png"):
        known = (ROOT / "config/figures" / f"{picture.stem}.yaml").is_file()
        assert (f'src="figures/{picture.name}"' in gallery) == known, picture
    for claim in claims_of("demo"):
        shown = re.search(rf'<td>[✓✗?–] ([a-z ]+)</td>\s*<td><a href="claims/{claim.name}.html">', gallery)
        assert (shown is not None) == (f"\n{claim.name}," in recorded), claim.name
        if shown:
            assert f",{shown[1]}," in next(line for line in recorded.splitlines() if line.startswith(f"{claim.name},"))


def test_every_link_and_picture_is_in_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if page.name == "404.html":
            continue
        for link in set(re.findall(r'(?:href|src)="([^"#?]+)', text)):
            if not re.match(r"[a-z]+:", link):
                target = (page.parent / unquote(link)).resolve()
                assert target.is_relative_to(site.resolve()) and target.exists(), f"{page.name}: {link}"


def test_nothing_is_fetched_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'(?:src="|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href=")(https?://[^"]+)', text)
        assert not fetched, page


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_search_finds_a_word_without_a_server(site: Path, tmp_path: Path) -> None:
    try:
        with browser(tmp_path) as tab:
            tab.open(site / "index.html")
            tab.evaluate("document.querySelector('.md-search__input').focus()")
            tab.evaluate(
                "(() => { const box = document.querySelector('.md-search__input'); box.value = 'FrozenHopfield';"
                "box.dispatchEvent(new Event('input', {bubbles: true}));"
                "box.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})); })()"
            )
            tab.wait("document.querySelectorAll('.md-search-result__item').length > 0")
            assert "helm" in tab.evaluate("document.querySelector('.md-search-result__list').innerHTML")
            assert all(url.startswith(("file:", "blob:", "data:", "about:")) for url in tab.requests), tab.requests
            assert not tab.errors
    except Unavailable as error:
        pytest.skip(str(error))


# ------------------------------------------------------------------------------------------------------- specifications


def cited() -> Iterator[tuple[str, str, str]]:
    """(file, paper, section) of each citation of a specification in code and configuration."""
    for folder in ("src", "config", "plugins"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".yaml"):
                continue
            text = " ".join(path.read_text(encoding="utf-8").replace("#", " ").split())
            for pattern in CITATIONS:
                for found in re.finditer(pattern, text):
                    for section in re.findall(NUMBER, re.sub(r"\([^)]*\)", "", found[1])):
                        yield str(path.relative_to(ROOT)), paper_of(path, text, found.start()), section


def paper_of(path: Path, text: str, place: int) -> str:
    """The paper whose folder a file lies in, else the one that is named nearest to the citation."""
    folder = path.relative_to(ROOT).parts[2]
    if folder in PAPERS.values():
        return folder
    named = [(abs(found.start() - place), found[0]) for found in re.finditer("|".join(PAPERS), text)]
    assert named and min(named)[0] < 150, f"{path}: name the paper whose specification is meant"
    return PAPERS[min(named)[1]]


def test_every_section_of_a_specification_that_code_cites_is_there() -> None:
    sections = {
        paper: set(re.findall(rf"^##+ ({NUMBER})\.? ", (DOCS / f"specifications/{paper}.md").read_text(), re.MULTILINE))
        for paper in PAPERS.values()
    }
    citations = list(cited())
    assert len(citations) > 100 and {paper for _, paper, _ in citations} == set(PAPERS.values())
    assert not [one for one in citations if one[2] not in sections[one[1]]]


# --------------------------------------------------------------------------------------------- what pages quote of us


def test_every_message_of_the_troubleshooting_page_is_one_of_the_program() -> None:
    files = [*(ROOT / "src").rglob("*.py"), ROOT / "envs/setup.py"]
    said = "\n".join(file.read_text(encoding="utf-8") for file in files)
    messages = re.findall(r"^### `(.+)`$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(messages) > 20
    for message in messages:
        for part in message.split("…"):
            assert part.strip(" '") in said, message


def test_the_tutorials_figure_needs_five_new_runs_and_shares_ten(workdir: Path) -> None:
    from recollect.stages.plan import plan

    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"```yaml\n# mine/(config/figures/short_memory.yaml)\n(.*?)```", page, re.DOTALL)
    (workdir / written[0]).write_text(written[1])
    needs = plan("demo", ["amago_dark_key_door", "short_memory"]).figures
    first, own = ({job for job in jobs if job.stage == "run"} for jobs in needs.values())
    assert (len(first), len(own - first), len(own & first)) == (10, 5, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "figures", "pages"), [("demo", "demo_all", 1), ("paper", "all", 2)])
def test_the_tables_of_costs_are_the_forecast_of_today(scale: str, figures: str, pages: int, tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) for name in ("metaworld", "miniworld", "pybullet")):
        pytest.skip("with packages of more worlds a forecast knows more of them than in a fresh clone")
    held = [DOCS / name for name in ("costs.md", "scale.md")[:pages]]
    today = [Path(shutil.copy(page, tmp_path)) for page in held]
    words = ["forecast", "--scale", scale, figures, *(word for page in today for word in ("--write", str(page)))]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    for page, written in zip(held, today, strict=True):
        assert page.read_text(encoding="utf-8") == written.read_text(encoding="utf-8"), (
            f"`recollect forecast --scale {scale} {figures} --write {page.relative_to(ROOT)}` brings it up to date"
        )
