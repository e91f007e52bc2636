"""What can be asked for by name. Without a name: `all`.

`all` and the targets of one stage are about the selected figures at the selected scale (config/config.yaml, or
`--config scale=paper figures=all`). dvc.yaml calls the targets of one stage.
"""

FIGURES = plan.files_of_figures(SELECTED.scale, SELECTED.figures_at())
TARGETS = {
    "all": [FIGURES, selected("page")],
    # Every figure of config/figures, at the scale of the papers.
    "paper": [plan.files_of_figures("paper", names("figures"))],
    # The selected figures on toy sizes: proves the wiring in minutes.
    "smoke": [
        plan.files_of_figures("smoke", SELECTED.figures_at("smoke")),
        selected("page", scale="smoke"),
    ],
    "claims": [CLAIMS.writes["json"].format(scale=SELECTED.scale)],
    "report": [REPORT.writes["html"].format(scale=SELECTED.scale)],
    "data": [
        selected(stage) for stage in ("generate", "embed_images", "fetch", "fetch_data")
    ],
    # The runs that memories embed with.
    "embedders": [
        lambda wildcards: plan.embedders(SELECTED.scale, SELECTED.figures_at())
    ],
    # What agents that retrieve words see with.
    "vocabularies": [selected("train_vision_language"), selected("embed_vocabulary")],
    "memories": [selected("embed"), selected("index")],
    "trained": [selected("run", "policy")],
    "evaluated": [selected("run", "scores"), selected("evaluate")],
    # Of the figures that are drawn from traces, and from speeds.
    "inspected": [selected("inspect")],
    "pages": [selected("page")],
    "measured": [selected("measure")],
    "figures": [FIGURES],
}


for target, files in TARGETS.items():

    rule:
        name:
            target
        input:
            *files,
