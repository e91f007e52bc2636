"""The files of a user's own that docs/adding.md shows, and docs/claims.md of a claim of one's own."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
ADDING, CLAIMS = ((DOCS / page).read_text() for page in ("adding.md", "claims.md"))
PAGES = ADDING + CLAIMS.partition("## A claim of your own")[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGES, flags=re.DOTALL | re.MULTILINE)


def files_of_the_page() -> dict[str, str]:
    """Path -> text, of the user's own folder alone: nothing of the repository is edited."""
    texts: dict[str, str] = {}
    for language, text in BLOCKS:
        if language not in ("python", "yaml"):
            continue
        first, _, rest = text.partition("\n")
        named = re.fullmatch(r"# (mine/\S+\.(?:py|yaml))", first)
        assert named, f"a block of a page does not begin with the name of its file: {first!r}"
        texts[named.group(1)] = rest
    return texts
