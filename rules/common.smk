"""What the rules share: checks before anything runs, and what each rule reads off its stage (recollect.stages.rules)."""

import sys
from functools import cache, partial

import provenance
import snakemake_internals
import stale_lock
from recollect.settings.catalogue import check_mine_folder
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_settings, names, scale_settings
from recollect.settings.still import hold_still
from recollect.stages import packs, pairs, paths, plan, selection
from recollect.stages.check import check_once
from recollect.stages.rules import StageRule, find_commands


wildcard_constraints:
    **paths.WILDCARDS,


# No other workflow uses this one as a module.
MAIN = workflow.modifier.is_main_snakefile()
# Seconds each, not worth a place in a cluster's queue; what is fetched needs the network, which compute nodes often lack.
LOCAL = ("fetch", "fetch_data", "figure", "page", "claims_table", "report_page")
workflow.localrules(*map(workflow.modifier.modify_rulename, LOCAL))
# A job saves and ends by itself when SIGTERM comes; its shell waits for that.
if MAIN:
    shell.prefix("trap : TERM; ")


def start():
    """What comes before anything is planned.

    Returns:
        The checked selection.

    Raises:
        UserError: this folder cannot be written, or the configuration or a target is wrong.
    """
    hold_still()
    find_commands()
    # A killed Snakemake's lock goes; the flock is held for as long as this process lives.
    alive = stale_lock.clear()
    snakemake_internals.sign_lock_files(partial(stale_lock.sign, alive))
    check_mine_folder()
    paths.check_roots()
    check_once()
    # The configuration that a module is given may be a part.
    chosen = selection.selection({**selection.default_config(), **config})
    if MAIN:
        selection.check_targets(snakemake_internals.targets(sys.argv[1:]))
        for figure in chosen.figures_at():
            pairs.check_figure(chosen.scale, figure)
            pairs.check_splits(chosen.scale, figure)
        if left := chosen.left_out():
            what = f"Left out, as scale {chosen.scale} does not evaluate all the tasks that they show"
            print(f"{what}: {', '.join(left)}", file=sys.stderr)
    # Snakemake's own records, where `dvc pull` or `dvc checkout` brought others than those known here.
    provenance.restore()
    return chosen


try:
    SELECTED = start()
except UserError as error:
    if not MAIN:
        raise WorkflowError(str(error))
    sys.exit(f"error: {error}")
except KeyboardInterrupt:  # nothing has begun
    sys.exit(130)

rule_of = partial(
    StageRule,
    job_hours=SELECTED.job_hours,
    packages=SELECTED.packages,
    jobs=SELECTED.jobs,
)


@cache
def planned(scale):
    return plan.plan(scale, SELECTED.figures_at(scale))


def selected(stage, *artifacts, scale=SELECTED.scale):
    """An input of a target: what one stage makes for the selected figures. Worked out only where somebody asks for it."""
    return lambda wildcards: planned(scale).files(stage, *artifacts)


def figure_category(wildcards):
    return figure_settings(wildcards.scale, wildcards.figure).category or "Figures"


def figure_caption(wildcards):
    """A param for workflow/report/figure.rst: title, caption and what stands behind them."""
    chosen = figure_settings(wildcards.scale, wildcards.figure)
    return {
        "title": chosen.title or chosen.name,
        "text": " ".join(chosen.caption.split()),
        "seeds": ", ".join(str(seed) for seed in chosen.seeds),
        "methods": ", ".join(chosen.methods),
    }


def is_wiring_test(wildcards):
    """A param for workflow/report: whether numbers mean nothing."""
    return scale_settings(wildcards.scale).wiring_test


WORDS = {"pdf": "PDF", "png": "picture", "csv": "what is drawn", "json": "provenance"}


def shown(drawn, name):
    """A file of a figure as Snakemake's own report shows it."""
    return report(
        drawn.writes[name],
        caption="../workflow/report/figure.rst",
        category=figure_category,
        labels={"figure": "{figure}", "file": WORDS[name]},
    )
