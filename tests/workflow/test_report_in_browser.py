"""The report as a person opens it: from a file, without a network. In a real Chromium (fetched from Debian where none is here)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from browser import Page, Unavailable, browser

ROOT = Path(__file__).resolve().parents[2]
FIGURE = "radt_dark_room_10x10"
CLICK = """((said) => { const found = [...document.querySelectorAll('a, button, li, span')].filter(
    (e) => e.innerText && e.innerText.trim() == said).pop(); if (found) found.click(); return Boolean(found) })"""
SHOW = """[...[...document.querySelectorAll('tr')].find((row) => row.innerText.includes('KIND'))
    .querySelectorAll('a')][WHICH].click()"""

pytestmark = pytest.mark.slow


def test_figures_and_captions_are_shown_without_a_network_and_without_an_error(finished: Any, tmp_path: Path) -> None:
    drawn = ROOT / f"docs/figures/{FIGURE}.png"
    shutil.copyfile(drawn, finished.folder / f"results/demo/figures/{FIGURE}.png")  # the stand-in's is no picture
    finished.snakemake("--cores", "1", "report")
    (tmp_path / "browser").mkdir()
    try:
        with browser(tmp_path / "browser") as page:
            look(page, finished.folder / "results/demo/report.html")
    except Unavailable as error:
        pytest.skip(str(error))


def look(page: Page, report: Path) -> None:
    page.open(report)
    page.wait("document.body.innerText.includes('RA-DT')")
    assert page.evaluate(f"{CLICK}('RA-DT')")
    page.wait("document.querySelectorAll('tr').length > 1")
    rows = page.evaluate("[...document.querySelectorAll('tr')].map((row) => row.innerText).join('\\n')")
    assert all(kind in rows for kind in ("PDF", "picture", "what is drawn", "provenance"))
    page.evaluate(SHOW.replace("KIND", "picture").replace("WHICH", "0"))
    page.wait("[...document.querySelectorAll('img')].some((image) => image.naturalWidth > 500)")
    page.evaluate(SHOW.replace("KIND", "picture").replace("WHICH", "1"))
    page.wait("document.body.innerText.includes('Evaluation starts with an empty memory')")
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.errors == []
