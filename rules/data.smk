"""Data: learning histories (generated), frozen language models and published data (fetched)."""

GENERATE = rule_of("generate")
FETCH = rule_of("fetch")
FETCH_DATA = rule_of("fetch_data")


rule generate:
    input:
        GENERATE.reads,
    output:
        **GENERATE.writes,
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


rule fetch:
    output:
        **FETCH.writes,
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
        **FETCH_DATA.writes,
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
