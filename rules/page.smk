"""Inspection pages: one HTML file per traced run, in which a person walks through it step by step."""


# Seconds each.
localrules:
    page,


rule page:
    input:
        trace=paths.trace("{scale}", "{env}", "{method}", "{seed}"),
    output:
        html=report(
            paths.page("{scale}", "{env}", "{method}", "{seed}"),
            caption="../workflow/report/page.rst",
            category="Inspection pages",
            labels={"environment": "{env}", "method": "{method}", "seed": "{seed}"},
        ),
        manifest=paths.manifest(paths.page("{scale}", "{env}", "{method}", "{seed}")),
    log:
        "logs/{scale}/{env}/{method}/seed_{seed}/page.log",
    benchmark:
        "logs/{scale}/{env}/{method}/seed_{seed}/page.benchmark.jsonl"
    conda:
        BASE_PACKAGES
    resources:
        mem_mb=1000,
        runtime=30,
    params:
        settings=params_of("page_text", "scale", "env", "method"),
        code=params_of("page_code", "scale", "env", "method"),
    shell:
        "recollect page --scale {wildcards.scale} --env {wildcards.env} --method {wildcards.method}"
        " --seed {wildcards.seed} > {log} 2>&1"
