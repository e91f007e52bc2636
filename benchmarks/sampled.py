"""Where a command's time goes: the stack of its main thread, looked at every few milliseconds.

python -m benchmarks.sampled --after 10 run --scale paper --env tmaze_active_20 --method dqn_gpt --seed 1

It runs `recollect` with what follows the options, and prints in the end (SIGTERM and Ctrl-C included) of each function of the
project the share of samples that were within it, and the lines in which most were. A GPU is seen where the host waits for it.
"""

from __future__ import annotations

import argparse
import atexit
import sys
import threading
import time
from collections import Counter
from types import FrameType

EVERY = 0.002  # seconds
OURS = ("/recollect/", "/benchmarks/")
MOST = 30  # functions and lines that are printed


class Sampler:
    """Looks at the stack of the thread that made it, from `after` seconds on."""

    def __init__(self, after: float = 0.0, every: float = EVERY) -> None:
        self.samples = 0
        self.within: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self._watched, self._every, self._stopped = threading.get_ident(), every, threading.Event()
        self._thread = threading.Thread(target=self._look, args=(after,), daemon=True)
        self._thread.start()

    def _look(self, after: float) -> None:
        self._stopped.wait(after)
        while not self._stopped.wait(self._every):
            frame = sys._current_frames().get(self._watched)
            if frame is not None:
                self.add(frame)

    def add(self, frame: FrameType | None) -> None:
        """Count a stack."""
        ours: list[FrameType] = []
        while frame is not None:
            if any(part in frame.f_code.co_filename for part in OURS):
                ours.append(frame)
            frame = frame.f_back
        self.samples += 1
        for name in {_name(one) for one in ours}:
            self.within[name] += 1
        self.lines[" < ".join(f"{_name(one)}:{one.f_lineno}" for one in ours[:3]) or "no line of ours"] += 1

    def stop(self) -> str:
        """End, and say what was seen."""
        self._stopped.set()
        self._thread.join()
        said = [f"{self.samples} samples"]
        for title, table in (("within", self.within), ("in the line", self.lines)):
            said += ["", f"share {title}"]
            said += [f"{100 * count / self.samples:5.1f} %  {name}" for name, count in table.most_common(MOST)]
        return "\n".join(said)


def _name(frame: FrameType) -> str:
    return f"{'/'.join(frame.f_code.co_filename.split('/')[-2:])} {frame.f_code.co_qualname}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--after", type=float, default=10.0, help="seconds before the first look")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of recollect")
    asked = parser.parse_args()
    from recollect.launch import main as recollect

    sampler, began = Sampler(asked.after), time.perf_counter()
    atexit.register(lambda: print(f"{sampler.stop()}\n{time.perf_counter() - began:.0f} seconds in all"))
    sys.argv = ["recollect", *asked.command]
    recollect()


if __name__ == "__main__":
    main()
