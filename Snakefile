"""Regenerates the figures: all with `snakemake --cores 2`, one with `snakemake results/paper/figures/NAME.pdf`.

One file of rules per stage, in the order in which data flows; rules/common.smk says what they share. Another workflow may
use it as a module (docs/workflow.md).
"""

import os
import sys
from pathlib import Path

from snakemake.settings.types import DeploymentMethod
from snakemake.utils import min_version

min_version("9.20")
HERE = workflow.current_basedir.get_path_or_uri(secret_free=True)
sys.path.insert(0, f"{HERE}/workflow")  # modules of the workflow itself
import last_words
import own_package

own_package.check(HERE)
from recollect.artifacts.garbage import collect_rarely

collect_rarely()
import snakemake_internals
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder
from recollect.stages import (
    environments,
    first_words,
    networks,
    plan,
    selection,
    why,
    worlds,
)

# A workflow that uses this one in a folder of its own has no such configuration. Jobs find it by this variable.
if not os.path.isdir("config/scales"):
    os.environ.setdefault("RECOLLECT_CONFIG", os.path.abspath(f"{HERE}/config"))


configfile: f"{config_folder()}/config.yaml"


report: "workflow/report/overview.rst"


# Names MAIN and SELECTED, and what rules share.
include: "rules/common.smk"


if MAIN:
    snakemake_internals.share_memory(workflow)


if SELECTED.container:

    container: SELECTED.container

elif (
    MAIN
    and DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
):
    what = "no container is named, so all jobs would run outside of one"
    do = "name the image there, or leave out `--sdm apptainer`"
    sys.exit(f"error: {UserError(what, where='config/config.yaml: container', do=do)}")


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


snakemake_internals.make_anew_what_was_made_by_hand(
    lambda files: plan.are_of_today(map(Path, files), SELECTED.scale),
    lambda files, asked: plan.manifests_differ(map(Path, files), SELECTED.scale, asked),
)
snakemake_internals.keep_no_record_of_what_failed()
snakemake_internals.remember_checksums()


def check_jobs():
    """Check what is really going to run, which only then is known, and say what it takes. Raises UserError."""
    jobs = plan.makers(snakemake_internals.outputs(workflow), SELECTED.scale)
    # So that `recollect why` can name the modules that changed since.
    why.remember(jobs)
    worlds.check_worlds(jobs, here=not workflow.deployment_settings.deployment_method)
    environments.check_environments(jobs)
    networks.check_networks(jobs)
    said = first_words.of(
        jobs,
        local=workflow.local_exec,
        cores=workflow.resource_settings.cores or 1,  # none on a cluster
        most_hours=SELECTED.hours,
        selected=SELECTED,
    )
    if said:
        print(said, file=sys.stderr)


onstart:
    snakemake_internals.stop_from_a_thread()
    snakemake_internals.look_at_ready_jobs_when_one_ends()
    if not workflow.touch:  # which computes nothing
        try:
            check_jobs()
        except UserError as error:
            raise WorkflowError(str(error))


onerror:
    print(last_words.of(log), file=sys.stderr)


if MAIN:
    workflow.default_target = "all"
    try:
        selection.check_rules(
            sys.argv[1:],
            [rule.name for rule in workflow.rules],
            snakemake_internals.named,
        )
    except UserError as error:
        sys.exit(f"error: {error}")
