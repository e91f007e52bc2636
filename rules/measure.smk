"""Speeds: how fast a method learns and acts. No part of any run, whose bytes do not depend on the machine."""

MEASURE = rule_of("measure")


rule measure:
    input:
        MEASURE.reads,
    output:
        **MEASURE.outputs(update),
    log:
        MEASURE.log,
    conda:
        MEASURE.conda
    threads: MEASURE.threads
    resources:
        **MEASURE.resources,
    params:
        **MEASURE.params,
    shell:
        MEASURE.command
