"""The report: one page with the figures, their captions, where everything is from, and a table of all runs."""


# Seconds; of thousands of runs half a minute.
localrules:
    report_page,


rule report_page:
    input:
        shown_in_report,
    output:
        html=paths.report("{scale}"),
        manifest=paths.manifest(paths.report("{scale}")),
    log:
        "logs/{scale}/report.log",
    conda:
        BASE_PACKAGES
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        figures=" ".join(f"--figure {figure}" for figure in SELECTED.figures),
        settings=settings_of_report,
        code=params_of("report_code"),
    shell:
        "recollect report --scale {wildcards.scale} {params.figures} > {log} 2>&1"
