"""When what was done so far is saved: by wall time, whatever the scale."""

from __future__ import annotations

from collections.abc import Callable

from recollect.artifacts import lock, stopping

# A kill costs at most five minutes and less than a tenth of a run (a second, if that is more).
LONGEST = 240.0  # seconds between two saves; a minute is left for writing one
SHORTEST = 1.0  # seconds: what a run may lose that has just begun
PART = 1 / 12  # of the time so far
COST = 20.0  # times what the last save took, so that at most a twentieth of the time goes into them
FREE = 2.0  # seconds of saves that nobody minds: a run of seconds may be saved by steps as often as it says


class Cadence:
    """Knows when a save is due, which is asked wherever one may be made; no result depends on the answer.

    Args:
        clock: seconds, monotonic.
        began: when the work began; None: now.
        behind: seconds of work before now that a kill would cost, too.
    """

    def __init__(self, clock: Callable[[], float], *, began: float | None = None, behind: float = 0.0) -> None:
        self.clock = clock
        self.saved_at = self._asked_at = clock()
        self.began = self.saved_at if began is None else began
        self._behind, self._cost, self._spent = behind, 0.0, 0.0
        self._is_last = False  # the state that SIGTERM found is saved

    def due(self, *, early: bool = False) -> bool:
        """Whether a kill would soon cost more than is promised. The piece of work that follows is thought to take as long as
        the one that ended.

        Args:
            early: a save costs little now; half the time will do.

        Raises:
            SystemExit: SIGTERM was received, and what came before it is saved.
        """
        stopping.can_save(self)  # who never asks here would leave SIGTERM without an answer
        if stopping.asked():
            if self._is_last:
                stopping.end()
            return True
        now = self.clock()
        piece, self._asked_at = now - self._asked_at, now
        wait = min(LONGEST, max(SHORTEST, PART * (now - self.began))) - self._behind
        wait = max(wait, min(LONGEST, COST * self._cost))
        return now - self.saved_at + piece > (wait / 2 if early else wait)

    def saved(self, began: float) -> None:
        """A save has ended that began at this time.

        Raises:
            SystemExit: it was asked for by SIGTERM. Where a process trains several runs, the others are saved first.
        """
        self.saved_at = self._asked_at = self.clock()
        self._cost = self.saved_at - began
        self._spent += self._cost
        self._is_last = stopping.asked()
        if self._is_last and lock.held() < 2:
            stopping.end()

    @property
    def affordable(self) -> bool:
        """Whether with one more save all of them take their part of the time at most, but for `FREE`."""
        return COST * (self._spent + self._cost - FREE) <= self.clock() - self.began

    @property
    def unsaved(self) -> float:
        """Seconds since the last save."""
        return self.clock() - self.saved_at
