"""Inspection pages: one HTML file per traced run, in which a person walks through it step by step."""

PAGE = rule_of("page")


rule page:
    input:
        PAGE.reads,
    output:
        html=report(
            PAGE.writes["html"],
            caption="../workflow/report/page.rst",
            category="Inspection pages",
            labels={"environment": "{env}", "method": "{method}", "seed": "{seed}"},
        ),
        manifest=PAGE.writes["html_manifest"],
    log:
        PAGE.log,
    conda:
        PAGE.conda
    resources:
        **PAGE.resources,
    params:
        **PAGE.params,
        wiring_test=is_wiring_test,
    shell:
        PAGE.command
