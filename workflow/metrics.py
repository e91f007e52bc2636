"""Write the last value of every curve of a scale's figures to one small file that git keeps.

    python workflow/metrics.py demo

So `dvc metrics diff` and `dvc exp show` compare the scores of two commits, also where neither was pulled. Read are the
figures' CSV files, which hold exactly what is drawn; a figure that is no set of curves has no such value.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from provenance import write_whole  # its neighbour: a script finds what stands beside it

CURVE = {"panel", "method", "x", "y"}


def last_values(table: Path) -> dict[str, dict[str, float]]:
    """Panel -> method -> y at the largest x, of the methods that were run here."""
    with table.open(newline="") as file:
        reader = csv.DictReader(file)
        if not CURVE.issubset(reader.fieldnames or ()):
            return {}
        rows = [row for row in reader if ":" not in row["method"]]  # not `published:ad`, not `line:...`
    last: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        of, point = (row["panel"], row["method"]), (float(row["x"]), float(row["y"]))
        last[of] = max(last.get(of, point), point)
    found: dict[str, dict[str, float]] = {}
    for (panel, method), (_, y) in last.items():
        found.setdefault(panel, {})[method] = y
    return found


def main(scale: str) -> None:
    """Write `metrics/{scale}.json`; run from the repository's root."""
    tables = sorted(Path("results", scale, "figures").glob("*.csv"))
    values = {table.stem: found for table in tables if (found := last_values(table))}
    write_whole(Path("metrics", f"{scale}.json"), json.dumps(values, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python workflow/metrics.py SCALE")
    main(sys.argv[1])
