"""Traces: what a policy saw, did and read in some tasks of its evaluation; some figures and the inspection pages read them."""

INSPECT = rule_of("inspect")


rule inspect:
    input:
        INSPECT.reads,
    output:
        **INSPECT.outputs(update),
    log:
        INSPECT.log,
    priority: INSPECT.priority
    conda:
        INSPECT.conda
    threads: INSPECT.threads
    resources:
        **INSPECT.resources,
    params:
        **INSPECT.params,
    shell:
        INSPECT.command
