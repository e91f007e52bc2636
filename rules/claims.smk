"""The verdicts on the published claims that the figures show, from the scores of their runs."""

CLAIMS = rule_of("claims", figures=SELECTED.figures_at)


rule claims_table:
    input:
        CLAIMS.reads,
    output:
        **CLAIMS.outputs(update),
    log:
        CLAIMS.log,
    conda:
        CLAIMS.conda
    resources:
        **CLAIMS.resources,
    params:
        **CLAIMS.params,
    shell:
        CLAIMS.command
