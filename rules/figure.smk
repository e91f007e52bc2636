"""Figures, drawn from what grids of runs have."""

FIGURE = rule_of("figure")
# Updated and not deleted beforehand: where it cannot be drawn anew, the figure of before stays.
DRAWN = {**FIGURE.writes, **{name: shown(FIGURE, name) for name in WORDS}}


rule figure:
    input:
        FIGURE.reads,
    output:
        **{name: update(path) for name, path in DRAWN.items()},
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
