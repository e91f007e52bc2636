"""What can be asked for by name. Without a name: `all`.

`all` and the targets of one stage are about the selected figures at the selected scale (config/config.yaml, or
`--config scale=paper figures=all`). dvc.yaml calls the targets of one stage.
"""


localrules:
    all,
    figures,
    smoke,
    paper,
    report,
    data,
    embedders,
    vocabularies,
    embedded,
    indexed,
    trained,
    evaluated,
    inspected,
    pages,
    measured,


rule all:
    input:
        selected("figure"),
        selected("page"),


# Every figure of config/figures, at the scale of the papers.
rule paper:
    input:
        dependencies.artifacts("figure", PAPER, names("figures")),


# The selected figures on toy sizes: proves the wiring in minutes.
rule smoke:
    input:
        selected("figure", "smoke"),
        selected("page", "smoke"),


rule report:
    input:
        paths.report(SELECTED.scale),


rule data:
    input:
        selected("generate"),
        selected("embed_images"),
        selected("fetch"),


rule embedders:
    input:
        dependencies.embedders(SELECTED.scale, SELECTED.figures),


# What agents that retrieve words see with.
rule vocabularies:
    input:
        selected("train_vision_language"),
        selected("embed_vocabulary"),


rule embedded:
    input:
        selected("embed"),


rule indexed:
    input:
        selected("index"),


rule trained:
    input:
        selected("train"),


rule evaluated:
    input:
        selected("evaluate"),


# Of the figures that are drawn from traces.
rule inspected:
    input:
        selected("inspect"),


rule pages:
    input:
        selected("page"),


# Of the figures that are drawn from speeds.
rule measured:
    input:
        selected("measure"),


rule figures:
    input:
        selected("figure"),
