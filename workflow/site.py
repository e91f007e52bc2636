"""What the documentation site has beyond the pages of docs/: its navigation, the gallery, and a page for each claim.

A new page of docs/ is a how-to, and one of docs/reference/ is reference: there is no list to edit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from recollect.settings.catalogue import PAPERS
from recollect.settings.loading import read_yaml
from recollect.stages.gallery import gallery
from recollect.stages.recorded_tables import FOLDER

ROOT = Path(__file__).resolve().parents[1]
START, RESULTS = ["index", "tutorial"], ["gallery", "claims", "costs"]
REFERENCE = ["commands", "formats", "troubleshooting"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sections of pages, in the order in which a stranger needs them."""
    docs = Path(config.docs_dir)

    def found(folder: str) -> list[str]:
        return sorted(path.relative_to(docs).as_posix() for path in docs.glob(f"{folder}*.md"))

    def there(names: list[str], folder: str = "") -> list[str]:
        return [page for name in names if (docs / (page := f"{folder}{name}.md")).is_file()]

    placed = there([*START, *PAPERS, *RESULTS, *REFERENCE])
    config.nav = [
        {"Start": there(START)},
        {"Papers": there(PAPERS)},
        {"Results": there(RESULTS)},
        {"How to": [page for page in found("") if page not in placed]},
        {"Reference": [*there(REFERENCE), *found("reference/")]},
        {"Specifications": there(["index", *PAPERS], "specifications/")},
        {"How the demo was sized": found("choices/")},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files of claims, which lie outside docs/, as pages."""
    for path in sorted((ROOT / "config" / "claims").glob("*.yaml")):
        claim = read_yaml(path)
        text = f"# {claim['short']}\n\n{claim['statement']} ({claim['paper']}, {claim['source']})\n\n"
        text += f"It is judged as `config/claims/{path.name}` says ([what a verdict means](../claims.md)):\n\n"
        text += f"```yaml\n{path.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, f"claims/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The gallery. And links stay inside: one to a claim's file leads to its page, and of another file its path is named."""
    if page.file.src_uri == "gallery.md":
        markdown = gallery(FOLDER / "demo")
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def inside(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = Path(os.path.normpath(folder / target)).relative_to(ROOT)
        up = "../" * page.file.src_uri.count("/")
        if path.parts[:2] == ("config", "claims"):
            return f"[{text}]({up}claims/{path.stem}.md)"
        if path.parts[:2] == ("docs", "recorded"):
            return f"[{text}]({target}/numbers.csv)"
        return link[0] if path.parts[0] == "docs" else f"{text} (`{path}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(((?![a-z]+:|#)[^)\s]+)\)", inside, markdown)
