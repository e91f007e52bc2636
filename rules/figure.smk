"""Figures, drawn from what grids of runs have."""

FIGURE = rule_of("figure")


rule figure:
    input:
        FIGURE.reads,
    output:
        # Updated and not deleted beforehand: where it cannot be drawn anew, the figure of before stays.
        **{
            **FIGURE.outputs(update),
            **{name: update(shown(FIGURE, name)) for name in WORDS},
        },
    log:
        FIGURE.log,
    conda:
        FIGURE.conda
    resources:
        **FIGURE.resources,
    params:
        **FIGURE.params,
        caption=figure_caption,
        wiring_test=is_wiring_test,
    shell:
        FIGURE.command
