"""Regenerates the figures: all with `snakemake --cores 2`, one with `snakemake results/paper/figures/NAME.pdf`.

One file of rules per stage, in the order in which data flows; rules/common.smk says what they share.
"""

import sys

from snakemake.utils import min_version

from recollect.settings.loading import config_folder
from recollect.stages import why, worlds

min_version("9.20")
sys.path.insert(0, f"{workflow.basedir}/workflow")  # modules of the workflow itself
import provenance
import snakemake_internals
import stale_lock


configfile: f"{config_folder()}/config.yaml"


report: "workflow/report/overview.rst"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/embed.smk"
include: "rules/index.smk"
include: "rules/run.smk"
include: "rules/evaluate.smk"
include: "rules/inspect.smk"
include: "rules/page.smk"
include: "rules/measure.smk"
include: "rules/figure.smk"
include: "rules/claims.smk"
include: "rules/report.smk"
include: "rules/targets.smk"


onstart:
    snakemake_internals.stop_from_a_thread()
    stale_lock.sign(ALIVE, snakemake_internals.lock_files(workflow))
    made = snakemake_internals.first_outputs(workflow)
    jobs = [job for file in made if (job := plan.maker(file, SELECTED.scale))]
    # So that `recollect why` can name the modules that changed since.
    why.remember(jobs)
    # Not while parsing: only what is really going to run needs them.
    try:
        worlds.check_worlds(jobs)
    except UserError as error:
        raise WorkflowError(str(error))


workflow.default_target = "all"
