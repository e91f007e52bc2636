"""`python -m benchmarks.jobs demo paper_cpu`: what the finished jobs of these scales took -> config/recorded_jobs.csv.

To be run where they were made, with nothing else beside them. Jobs of other scales stay in the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import exit_status
from recollect.artifacts.sealed import write_bytes
from recollect.stages import recorded_jobs
from recollect.stages.forecast import measurements


def write(scales: Sequence[str]) -> str:
    """Write the file anew; gives what was done, as text."""
    found = recorded_jobs.recorded(measurements().values(), scales)
    others = [one for one in recorded_jobs.read() if one.scale not in scales]
    write_bytes(recorded_jobs.path(), recorded_jobs.text([*others, *found]).encode())
    return f"{recorded_jobs.path()}: {len(found)} jobs of {', '.join(scales)}, {len(others)} of other scales kept"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("scales", nargs="+", metavar="SCALE", help="of the jobs that were finished here")
    scales = parser.parse_args(arguments).scales
    return exit_status(lambda: print(write(scales)))


if __name__ == "__main__":
    sys.exit(main())
