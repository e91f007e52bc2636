"""Write what a scale's figures and claims come to as numbers, into two small files that git keeps.

    python workflow/metrics.py demo

So `dvc metrics diff` and `dvc exp show` compare the scores of two commits, also where neither was pulled. Read are the
CSV files of the figures that config/config.yaml selects, which hold exactly what is drawn: the last value of every curve, and
every bar. Of a picture (a map, a matrix, words) the last place would mean nothing: only the kinds of `SCORES` are read. And the
claims, as they were judged: each verdict, and the effect and interval of each contrast.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

from provenance import write_whole  # its neighbour: a script finds what stands beside it

from recollect.stages import paths
from recollect.stages.selection import default_selection

NUMBERS = {"holds": 1, "undecided": 0, "contradicted": -1, "not run": None}
COLUMNS = {"panel", "method", "x", "y"}
SCORES = {
    "bars",
    "curve_panels",
    "in_context_curve",
    "length_aggregation",
    "result_table",
    "throughput",
}  # kinds of figures


def last_values(table: Path) -> dict[str, dict[str, float]]:
    """Panel -> method -> y at the largest x, of the methods that were run here; nothing of a figure that shows no scores.

    Args:
        table: the CSV file of a figure. What kind of figure it is says the JSON file beside it.
    """
    with table.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not COLUMNS.issubset(reader.fieldnames or ()):
            return {}
        rows = [row for row in reader if ":" not in row["method"]]  # not `published:ad`, not `line:...`
    if json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))["kind"] not in SCORES:
        return {}
    last: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        of, point = (row["panel"], row["method"]), (float(row["x"]), float(row["y"]))
        last[of] = max(last.get(of, point), point)
    found: dict[str, dict[str, float]] = {}
    for (panel, method), (_, y) in last.items():
        found.setdefault(panel, {})[method] = y
    return found


def verdicts(judged: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Claim -> verdict (1 holds, 0 undecided, -1 contradicted, null not run) and, by contrast, effect, low and high."""
    found: dict[str, dict[str, Any]] = {}
    for claim in judged:
        found[claim["name"]] = {"verdict": NUMBERS[claim["verdict"]]}
        for contrast in claim["contrasts"]:
            numbers = {"effect": contrast.get("value"), "low": contrast.get("low"), "high": contrast.get("high")}
            found[claim["name"]][contrast["says"]] = numbers
    return found


def main(scale: str) -> None:
    """Write `metrics/{scale}.json` and `metrics/{scale}_claims.json`; run from the repository's root."""
    tables = {figure: paths.FIGURE_FILES["csv"](scale, figure) for figure in default_selection().figures_at(scale)}
    values = {figure: found for figure, table in tables.items() if table.is_file() and (found := last_values(table))}
    judged = json.loads(paths.claims(scale).read_text(encoding="utf-8"))["claims"]
    for name, content in ((scale, values), (f"{scale}_claims", verdicts(judged))):
        write_whole(Path("metrics", f"{name}.json"), json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python workflow/metrics.py SCALE")
    main(sys.argv[1])
