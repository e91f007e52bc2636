"""Regenerates the figures: all with `snakemake --cores 2`, one with `snakemake results/paper/figures/NAME.pdf`.

One file of rules per stage, in the order in which data flows; rules/common.smk says what they share.
"""

from recollect.settings.loading import config_folder


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
include: "rules/figure.smk"
include: "rules/targets.smk"


workflow.default_target = "all"
