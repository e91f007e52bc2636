"""The report: one page with the figures, their captions, where everything is from, and a table of all runs."""

REPORT = rule_of("report", figures=SELECTED.figures_at)


rule report_page:
    input:
        REPORT.reads,
        lambda wildcards: planned(wildcards.scale).files("page"),
    output:
        **REPORT.outputs(update),
    log:
        REPORT.log,
    conda:
        REPORT.conda
    resources:
        **REPORT.resources,
    params:
        **REPORT.params,
    shell:
        REPORT.command
