"""Figures, drawn from what grids of runs have."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    figure,


rule figure:
    input:
        inputs_of_figure,
    output:
        pdf=report(
            paths.figure("{scale}", "{figure}", ".pdf"),
            caption="../workflow/report/figure.rst",
            category=figure_category,
            labels={"figure": "{figure}", "file": "PDF"},
        ),
        png=report(
            paths.figure("{scale}", "{figure}", ".png"),
            caption="../workflow/report/figure.rst",
            category=figure_category,
            labels={"figure": "{figure}", "file": "picture"},
        ),
        csv=report(
            paths.figure("{scale}", "{figure}", ".csv"),
            caption="../workflow/report/figure.rst",
            category=figure_category,
            labels={"figure": "{figure}", "file": "what is drawn"},
        ),
        json=report(
            paths.figure("{scale}", "{figure}", ".json"),
            caption="../workflow/report/figure.rst",
            category=figure_category,
            labels={"figure": "{figure}", "file": "provenance"},
        ),
        manifests=[
            paths.manifest(paths.figure("{scale}", "{figure}", suffix))
            for suffix in (".pdf", ".png", ".csv", ".json")
        ],
    log:
        "logs/{scale}/figures/{figure}.log",
    benchmark:
        "logs/{scale}/figures/{figure}.benchmark.jsonl"
    conda:
        BASE_PACKAGES
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        settings=params_of("figure_text", "scale", "figure"),
        code=params_of("figure_code", "scale", "figure"),
        caption=figure_caption,
    shell:
        "recollect figure --scale {wildcards.scale} --figure {wildcards.figure} > {log} 2>&1"
