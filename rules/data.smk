"""Data: learning histories (generated), frozen language models and published data (fetched)."""

GENERATE_TASK = rule_of("generate_task")
GENERATE = rule_of("generate")
FETCH = rule_of("fetch")
FETCH_DATA = rule_of("fetch_data")


rule generate:
    input:
        GENERATE.reads,
    output:
        **GENERATE.outputs(update),
    log:
        GENERATE.log,
    priority: GENERATE.priority
    conda:
        GENERATE.conda
    threads: GENERATE.threads
    resources:
        **GENERATE.resources,
    params:
        **GENERATE.params,
    shell:
        GENERATE.command


# Of sources whose agents learn for hours, each on one core: a job for each task.
rule generate_task:
    output:
        **GENERATE_TASK.outputs(update),
    log:
        GENERATE_TASK.log,
    priority: GENERATE_TASK.priority
    conda:
        GENERATE_TASK.conda
    threads: GENERATE_TASK.threads
    resources:
        **GENERATE_TASK.resources,
    params:
        **GENERATE_TASK.params,
    shell:
        GENERATE_TASK.command


rule fetch:
    output:
        **FETCH.outputs(update),
    log:
        FETCH.log,
    conda:
        FETCH.conda
    resources:
        **FETCH.resources,
    params:
        **FETCH.params,
    shell:
        FETCH.command


rule fetch_data:
    output:
        **FETCH_DATA.outputs(update),
    log:
        FETCH_DATA.log,
    conda:
        FETCH_DATA.conda
    resources:
        **FETCH_DATA.resources,
    params:
        **FETCH_DATA.params,
    shell:
        FETCH_DATA.command
