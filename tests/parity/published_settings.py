"""What was published beside what runs at scale `paper` resolve to, from the tables in published_settings/*.yaml.

`python tests/parity/published_settings.py` writes the lines that differ into the papers' pages of docs.

A table has groups of runs (patterns of ENVIRONMENT/METHOD) with lines `key: [value, source]`, or a mapping where the
publication says two things or we do another: `published` or `paper` and `released`, `ours`, `source`, `because`.
Of several groups with a run and a key, the last decides. Keys under `ours` stand in no publication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import write_bytes
from recollect.settings.still import held_still
from recollect.settings.strict_yaml import parsed
from recollect.stages.between_marks import put_between
from recollect.stages.inputs import figure_runs
from recollect.stages.provenance import embedder_of
from recollect.stages.settings import run_settings

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted((ROOT / "tests/parity/published_settings").glob("*.yaml"))
MARKS = "settings that differ"
NOTHING = object()


@dataclass
class Line:
    """What is published of one setting, where it stands, and what we do."""

    key: str
    runs: list[str]
    source: str
    ours: Any
    paper: Any = NOTHING
    released: Any = NOTHING
    because: str = ""
    used: int = field(default=0, compare=False)

    @property
    def differs(self) -> bool:
        return self.paper is not NOTHING


def flattened(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting by its key; lists are values."""
    if not isinstance(values, Mapping) or not values:
        yield path, values
        return
    for key, inner in values.items():
        yield from flattened(inner, f"{path}.{key}" if path else key)


def lines_of(table: Mapping[str, Any]) -> list[Line]:
    """The lines of a table in its order, each checked to be complete."""
    lines = []
    for group in table["groups"]:
        for key, said in group["settings"].items():
            if isinstance(said, list):
                value, source = said
                line = Line(key, group["runs"], source, value)
            else:
                given = dict(said)
                published = given.pop("published", NOTHING)
                paper, released = given.pop("paper", published), given.pop("released", published)
                line = Line(key, group["runs"], paper=paper, released=released, **given)
                assert line.paper is not NOTHING and line.released is not NOTHING, f"{key}: what is published?"
                one_of_theirs = any(same(line.ours, theirs) for theirs in (line.paper, line.released))
                assert one_of_theirs or line.because, f"{key}: ours is neither; say why"
            assert len(line.source) > 5, f"{key}: no source"
            lines.append(line)
    return lines


def same(ours: Any, theirs: Any) -> bool:
    """Equal, where true is not 1."""
    return bool(ours == theirs) and isinstance(ours, bool) == isinstance(theirs, bool)


def runs_of(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Environment and method of each run of the table's figures at scale `paper`, and of each run whose policy embeds for one."""
    figures = sorted((ROOT / "config/figures").glob(f"{table['figures']}*.yaml"))
    runs = {(env, method) for path in figures for env, method, _ in figure_runs("paper", path.stem)}
    embedders = {(env, *embedder_of("paper", env, method)[:2]) for env, method in runs}
    return sorted(runs | {(env, name) for env, kind, name in embedders if kind == "method"})


def compare(table: Mapping[str, Any]) -> Iterator[str]:
    """Each setting that the table does not cover or contradicts, each line that nothing uses."""
    lines = lines_of(table)
    unused = set(table["ours"])
    for env, method in runs_of(table):
        run = f"{env}/{method}"
        matching = [line for line in lines if any(fnmatchcase(run, pattern) for pattern in line.runs)]
        deciding = {line.key: line for line in matching}  # the last of each key
        for key, value in flattened(run_settings("paper", env, method)):
            line = deciding.get(key)
            if line is not None:
                line.used += 1
                if not same(value, line.ours):
                    yield f"{run}: {key} is {value!r}, the table says {line.ours!r} ({line.source})"
                continue
            patterns = [pattern for pattern in table["ours"] if fnmatchcase(key, pattern)]
            unused.difference_update(patterns)
            if not patterns:
                yield f"{run}: {key} = {value!r} stands in no line of the table"
    for line in lines:
        if not line.used:
            yield f"no run has the line {line.key} of {line.runs}"
    for pattern in sorted(unused):
        yield f"no key is matched by {pattern} under `ours`"


def differences(table: Mapping[str, Any]) -> str:
    """The lines that differ, as a table of Markdown."""
    rows = [
        "| setting | runs | paper | released code | ours | where it stands | why |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines_of(table):
        if line.differs:
            values = [_shown(value) for value in (line.paper, line.released, line.ours)]
            runs = ", ".join(f"`{pattern}`" for pattern in line.runs)
            key = line.key.removeprefix("method.").removeprefix("hyperparameters.")
            rows.append(f"| `{key}` | {runs} | {' | '.join(values)} | {line.source} | {line.because} |")
    return "\n".join(rows)


def _shown(value: Any) -> str:
    return str(value).replace("|", "\\|")


def page_of(path: Path) -> Path:
    return ROOT / "docs" / f"{path.stem}.md"


def written(text: str, table: Mapping[str, Any]) -> str:
    """The page with today's table between the two marks."""
    return put_between(text, MARKS, differences(table), "the paper's page of docs")


def main() -> None:
    for path in TABLES:
        page = page_of(path)
        write_bytes(page, written(page.read_text(encoding="utf-8"), parsed(path)).encode())


if __name__ == "__main__":
    with held_still():
        main()
