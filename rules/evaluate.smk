"""Scores of variants that differ in acting only: each plays the policy of its method. What is trained is scored by rule run."""

EVALUATE = rule_of("evaluate")


rule evaluate:
    input:
        EVALUATE.reads,
    output:
        **EVALUATE.outputs(update),
    log:
        EVALUATE.log,
    wildcard_constraints:
        scale=packs.untrained(),
    priority: EVALUATE.priority
    conda:
        EVALUATE.conda
    threads: EVALUATE.threads
    resources:
        **EVALUATE.resources,
    params:
        **EVALUATE.params,
    shell:
        EVALUATE.command
