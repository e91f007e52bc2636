"""wall_time: when all is done, where each job takes a device and runs that share a job are one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from graphlib import TopologicalSorter

from recollect.stages.stage import Job


def joined(needs: Mapping[Job, Iterable[Job]], whole: Mapping[Job, Job]) -> dict[Job, tuple[Job, ...]]:
    """The same graph with the jobs of the workflow.

    Args:
        needs: job -> what it waits for.
        whole: a run -> the run by which its job is called here; a job that is not named is one by itself.

    Returns:
        job -> what it waits for; a job stands behind those.
    """
    found: dict[Job, dict[Job, None]] = {}
    for job, waits in needs.items():
        own = found.setdefault(whole.get(job, job), {})
        own.update(dict.fromkeys(whole.get(other, other) for other in waits))
    return {job: tuple(found[job]) for job in TopologicalSorter(found).static_order()}


def wall_seconds(
    needs: Mapping[Job, Iterable[Job]], seconds: Callable[[Job], float], taken: Callable[[Job], int], devices: int
) -> float:
    """Time until all is done, when each job starts as soon as what it waits for is done and, where it takes one, a device
    is free; the longest chain goes first.

    Args:
        needs: job -> what it waits for; a job stands behind those.
        seconds: of a job.
        taken: how many devices a job takes, of those that there are; with none it runs beside the others.
        devices: how many there are.
    """
    chain: dict[Job, float] = dict.fromkeys(needs, 0.0)  # seconds from a job's start to the end of what waits for it
    for job in reversed(list(needs)):
        chain[job] += seconds(job)
        for other in needs[job]:
            chain[other] = max(chain[other], chain[job])
    order = TopologicalSorter(needs)
    order.prepare()
    waiting: list[tuple[float, Job]] = []  # for a device, the longest chain first
    running: list[tuple[float, Job]] = []  # and when they end
    now = 0.0
    while order.is_active():
        for job in order.get_ready():
            if taken(job):
                heapq.heappush(waiting, (-chain[job], job))
            else:
                heapq.heappush(running, (now + seconds(job), job))
        while waiting and devices >= taken(waiting[0][1]):
            _, job = heapq.heappop(waiting)
            devices -= taken(job)
            heapq.heappush(running, (now + seconds(job), job))
        now, job = heapq.heappop(running)
        devices += taken(job)
        order.done(job)
    return now
