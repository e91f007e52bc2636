"""`python -m attack [KIND ...] [--share 0.05] [--write docs/reliability.md]`: see `make attack`."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attack import KINDS, campaign, kills, published, table
from attack.campaign import Plan, Trial
from attack.jobs import LANGUAGE_MODELS, ROOT, Reference, preloaded
from recollect.settings.errors import nearest
from recollect.stages.circumstances import commit


def trials(plan: Plan, kinds: Sequence[str]) -> Iterator[Trial]:
    for kind in kinds:
        yield from importlib.import_module(f"attack.{kind}").trials(plan)


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack, print the table, and return the exit status: 0 where every promise held."""
    known = "\n".join(f"  {name:13} {what}" for name, what in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m attack",
        description="Attack what docs/reliability.md promises. Kinds of attack:\n" + known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="which kinds; all if none is named")
    parser.add_argument("--share", type=float, default=1.0, help="the share of the trials that is made (default: all)")
    parser.add_argument("--only", default="", help="only trials with this word in their name")
    parser.add_argument("--seed", type=int, default=0, help="of every random draw (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="trials side by side (default 2)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also put the table between the marks of a page")
    chosen = parser.parse_args(arguments)
    for kind in chosen.kinds:
        if kind not in KINDS:
            print(f"error: unknown kind of attack '{kind}': {nearest(kind, KINDS)}", file=sys.stderr)
            return 2
    began = time.monotonic()
    kinds = chosen.kinds or list(KINDS)
    if not {"kills", "flips"}.isdisjoint(kinds):
        preloaded.MORE[:] = LANGUAGE_MODELS
    preloaded.address()  # the Python that forks: no job is to wait for it
    with tempfile.TemporaryDirectory(prefix="recollect-attack-") as place:
        reference = Reference(Path(place) / "reference", chosen.workers)
        if not {"kills", "flips", "bad_files"}.isdisjoint(kinds):
            published.write(reference.folder / "files")
        plan = Plan(reference, chosen.share, chosen.seed)
        planned = [trial for trial in trials(plan, kinds) if chosen.only in trial.name]
        results = campaign.run(planned, Path(place), chosen.workers)
        reference.close()
    minutes = (time.monotonic() - began) / 60
    whole = chosen.share >= 1 and not chosen.kinds and not chosen.only
    short = table.too_few(results) if whole else []
    said = f"Commit {commit(ROOT) or 'unknown'}; {minutes:.0f} minutes, {chosen.workers} trials side by side; "
    said += f"{len(kills.RESUMED)} of the killed jobs went on from a checkpoint."
    said += "" if whole else " Not the whole campaign."
    content = f"{table.text(results)}\n\n{said}"
    print(content)
    if chosen.write:
        table.write(chosen.write, content)
    for result in results:
        if result.failure is not None:
            print(f"FAILED {result.trial.name}: {result.failure}", file=sys.stderr)
    for what in short:
        print(f"FAILED {what}", file=sys.stderr)
    return int(bool(short) or any(result.failure is not None for result in results) or not results)


if __name__ == "__main__":
    sys.exit(main())
