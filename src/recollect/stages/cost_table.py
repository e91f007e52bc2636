"""A forecast as a table of Markdown with a row for each figure: what docs/costs.md has between its marks."""

from __future__ import annotations

from recollect.stages.estimating import least_sure
from recollect.stages.forecast import Forecast, memory_of_largest, said_bytes, said_time
from recollect.stages.plan import Plan


def cost_table(cost: Forecast) -> str:
    """A row for each figure, with all that it needs: what two figures share is counted in both."""
    some = any(estimate.gpu for estimate in cost.estimates.values())
    heads = ["figure", "jobs", *(["one GPU"] if some else []), "one CPU core"]
    heads += ["disk", "checkpoints meanwhile", "memory", "times are"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for figure, jobs in sorted((name, jobs) for name, jobs in cost.plan.figures.items() if jobs):
        of = [cost.estimates[job] for job in jobs]
        memory, _ = memory_of_largest(Plan({job: () for job in jobs}, {figure: jobs}), {}, cost.processes)
        cells = [f"`{figure}`", f"{cost.count(jobs):,}"]
        cells += [said_time(cost.seconds(jobs, gpu=gpu)) for gpu in ((True, False) if some else (False,))]
        cells += [said_bytes(sum(one.disk for one in of)), said_bytes(max(cost.scratch(jobs)))]
        cells += [f"{memory / 1000:,.0f} GB", least_sure(of)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
