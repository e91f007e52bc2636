"""Inspection pages: one HTML file per traced run, in which a person walks through it step by step."""

PAGE = rule_of("page")


rule page:
    input:
        PAGE.reads,
    output:
        # Updated and not deleted beforehand: where it cannot be made anew, the page of before stays.
        html=update(
            report(
                PAGE.writes["html"],
                caption="../workflow/report/page.rst",
                category="Inspection pages",
                labels={
                    "environment": "{env}",
                    "method": "{method}",
                    "seed": "{seed}",
                },
            )
        ),
        manifest=PAGE.outputs(update)["html_manifest"],
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
