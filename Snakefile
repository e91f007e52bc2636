"""Regenerates the figures: all with `snakemake --cores 2`, one with `snakemake results/paper/figures/NAME.pdf`.

One file of rules per stage, in the order in which data flows; rules/common.smk says what they share.
"""

from recollect.settings.loading import config_folder
from recollect.stages import why


configfile: f"{config_folder()}/config.yaml"


report: "workflow/report/overview.rst"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/embed.smk"
include: "rules/index.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/inspect.smk"
include: "rules/page.smk"
include: "rules/measure.smk"
include: "rules/figure.smk"
include: "rules/report.smk"
include: "rules/targets.smk"


onstart:
    STALE_LOCK["sign"](
        ALIVE, getattr(workflow.persistence, "_lockfile", {}).values()
    )
    lift_default_rate_limit()
    # So that `recollect why` can name the modules that changed since.
    why.remember(
        str(job.params.code).removeprefix("code ")
        for job in workflow.dag.needrun_jobs()
        if "code" in job.params.keys()
    )
    # Not while parsing: only what is really going to run needs them.
    try:
        dependencies.check_worlds(
            (job.rule.name, dict(job.wildcards))
            for job in workflow.dag.needrun_jobs()
        )
    except UserError as error:
        raise WorkflowError(str(error))


workflow.default_target = "all"
