"""compare: two methods in one environment, by the scores of their finished runs; nothing is run or written.

The difference and its interval are those of a claim (recollect.evaluation.contrasts), paired over seeds and tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recollect.artifacts.sealed import read_table
from recollect.settings.errors import UserError, nearest
from recollect.settings.resolve import environment_settings, resolve
from recollect.stages import paths
from recollect.stages.claims import SEED
from recollect.stages.identity import how_to_make
from recollect.stages.of_today import not_of_today, words_of

if TYPE_CHECKING:
    import pandas as pd


def compare(scale: str, env: str, this: str, that: str, seeds: Sequence[int], metric: str = "return") -> str:
    """What `this` scores minus what `that` does at the end: the mean over seeds and tasks, and its 95 % interval.

    Of an environment in which agents learn in context the last five episodes count, as in the report.

    Args:
        seeds: of both; none: all of which both have scores. Runs that are not of today count, and are named.

    Raises:
        UserError: a name is not known, runs or the metric are missing, or two runs have scores of different tasks.
    """
    import numpy as np

    from recollect.evaluation.contrasts import FEWEST_SEEDS, differences, judged, paired_effect
    from recollect.figures.captions import episodes_meant
    from recollect.figures.claim_rows import rounded
    from recollect.figures.reading import LAST_EPISODES

    if this == that:
        raise UserError(f"'{this}' is compared with itself", where="recollect compare", do="name two methods")
    for method in (this, that):
        resolve(scale, env, method, 0)  # known
    evaluation = environment_settings(scale, env).evaluation
    split = "eval" if "eval" in evaluation.splits else evaluation.splits[0]
    last = LAST_EPISODES if evaluation.protocol == "in_context" else None
    chosen = list(dict.fromkeys(seeds)) or _of_both(scale, env, this, that)
    (this_SN, one), (that_SN, other) = (
        _scores(scale, env, method, chosen, split, metric, last) for method in (this, that)
    )
    try:
        effect = paired_effect(differences(this_SN, that_SN), np.random.default_rng(SEED))
    except ValueError as error:
        where = f"{this} and {that} on {env}"
        raise UserError(f"scores cannot be paired: {error}", where=where, do="score all these runs anew") from error
    of = f", {episodes_meant(last, {*one, *other})}" if last else ""
    means = (
        f"{method} {rounded(table_SN.to_numpy().mean())}" for method, table_SN in ((this, this_SN), (that, that_SN))
    )
    lines = [f"{this} minus {that} on {env} at scale {scale}: {metric}{of}"]
    lines += [f"  difference     {rounded(effect.value)} ({', '.join(means)})"]
    if effect.seeds > 1:
        lines += [f"  95 % interval  {rounded(effect.low)} to {rounded(effect.high)}"]
    lines += [f"  seeds          {', '.join(map(str, chosen))}", f"  tasks          {effect.tasks} ({split})"]
    if effect.seeds < FEWEST_SEEDS:
        lines += [f"{judged(effect, 'above', 0)[1]}: a claim would be undecided, and so is this"]
    left = [f"{method} {seed}" for method in (this, that) for seed in _scored(scale, env, method) if seed not in chosen]
    if left and not seeds:
        lines += [f"left out, as the other method has no such seed: {', '.join(left)}"]
    read = [paths.scores(scale, env, method, seed) for method in (this, that) for seed in chosen]
    if stale := not_of_today(read):
        lines += [f"warning: {words_of(stale, len(read))} Make them anew, `snakemake {next(iter(stale))}` for one."]
    return "\n".join(lines)


def _scored(scale: str, env: str, method: str) -> list[int]:
    """The seeds of a method's runs that have scores."""
    found = [
        paths.scores.match(path) for path in paths.run_folder(scale, env, method, 0).parent.glob("*/scores.parquet")
    ]
    return sorted(int(names["seed"]) for names in found if names)


def _of_both(scale: str, env: str, this: str, that: str) -> list[int]:
    of = {method: _scored(scale, env, method) for method in (this, that)}
    both = [seed for seed in of[this] if seed in of[that]]
    if not both:
        said = {method: f"seeds {', '.join(map(str, seeds))}" if seeds else "none" for method, seeds in of.items()}
        has = "; ".join(f"{method} has {seeds}" for method, seeds in said.items())
        lacking, seed = (that, of[this][0]) if of[this] else (this, of[that][0] if of[that] else 0)
        do = f"make them, `snakemake {paths.scores(scale, env, lacking, seed)}` for one"
        raise UserError(
            f"there are no scores of one seed of both: {has}", where=f"results of {env}, scale {scale}", do=do
        )
    return both


def _scores(
    scale: str, env: str, method: str, seeds: Sequence[int], split: str, metric: str, last: int | None
) -> tuple[pd.DataFrame, list[int]]:
    """Final scores of a method, seeds by tasks, and how many episodes each seed played."""
    import pandas as pd

    from recollect.evaluation.contrasts import task_means

    files = {seed: paths.scores(scale, env, method, seed) for seed in seeds}
    missing = [path.as_posix() for path in files.values() if not path.is_file()]
    if missing:
        do = f"make them with `snakemake {' '.join(missing)}`"
        raise UserError(f"{len(missing)} of {len(files)} runs of '{method}' have no scores", where=missing[0], do=do)
    rows, played = {}, []
    for seed, path in files.items():
        table = read_table(path, kind="scores", input_from=how_to_make(path))
        of_split = table[table["split"] == split]
        if metric not in set(of_split["metric"]):
            raise UserError(f"no scores of '{metric}'", where=path, do=nearest(metric, set(of_split["metric"])))
        episodes = int(of_split["episode"].max()) + 1
        played.append(episodes)
        try:
            rows[seed] = task_means(table, split, metric, (max(0.0, 1 - (last or episodes) / episodes), 1.0))
        except ValueError as error:
            raise UserError(str(error), where=path, do="find out why that run gives it") from error
    return pd.DataFrame(rows).T, played
