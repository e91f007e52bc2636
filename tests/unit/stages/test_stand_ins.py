"""What takes the place of a published part is found in the settings, and each figure that shows it says so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from recollect.figures import captions, style
from recollect.settings.resolve import names
from recollect.stages.figure import STAGE, spec_of
from recollect.stages.stand_ins import stand_ins, stand_ins_of

MEMORY = "mini_grid_MemoryS7"
SMOLLM2 = "smollm2 reads in place of transfo-xl-wt103"
MINILM = "minilm (mean of its states) reads in place of transfo-xl-wt103"
FIRST, SCALED = "only its first layer reads", "history vectors are standardised, times 0.3"


pytestmark = pytest.mark.usefixtures("in_the_repository")


@pytest.mark.parametrize(
    ("env", "method", "found"),
    [
        (MEMORY, "helm", [SMOLLM2, FIRST, SCALED]),
        (
            MEMORY,
            "helmv2",
            [
                SMOLLM2,
                FIRST,
                "tiles sees in place of clip-rn50",
                SCALED,
                "features have running statistics in place of batch",
            ],
        ),
        (
            MEMORY,
            "shelm",
            [
                SMOLLM2,
                FIRST,
                "tiles sees in place of clip-vit-b16",
                "words are the vocabulary 'tiles' in place of 'clip'",
                SCALED,
            ],
        ),
        (MEMORY, "shelm.layers_2", [SMOLLM2, "tiles sees in place of clip-vit-b16",
                                    "words are the vocabulary 'tiles' in place of 'clip'", SCALED]),
        (MEMORY, "helm.minilm", [MINILM, FIRST, SCALED]),
        ("dark_room_10x10", "radt_agnostic", ["minilm reads in place of bert-base-uncased", FIRST]),
        (MEMORY, "ppo_cnn", []),
        ("dark_room_10x10", "radt", []),
    ],
)  # fmt: skip
def test_the_stand_ins_of_a_run_of_the_demo(env, method, found):
    assert stand_ins_of("demo", env, method) == found


@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_at_scale_paper_nothing_stands_in_and_a_wiring_test_means_nothing_anyway(scale):
    assert {stand_ins(scale, figure) for figure in names("figures")} == {()}


def test_methods_with_the_same_stand_ins_share_a_sentence():
    shared, own = stand_ins("demo", "helm_lm_depth")
    assert shared.startswith(f"Not as published in SHELM and variants: {SMOLLM2}; ") and shared.endswith(f"; {SCALED}.")
    assert own == f"Not as published in SHELM: {FIRST}."


def test_a_figure_says_it_in_its_caption_and_below_its_panels():
    figure = spec_of("demo", "helm_minigrid")
    assert len(figure.stand_ins) == 3  # of SHELM, of HELMv2, and what they share
    said = captions.caption(figure, ())
    canvas = style.blank_figure(3.4, 2.0)
    style.finish(canvas, figure, [], ["the small print"])
    printed = " ".join(text.get_text() for text in reversed(canvas.texts))
    for sentence in figure.stand_ins:
        assert sentence in said
        assert sentence.replace("-", "").replace(" ", "") in printed.replace("-", "").replace(" ", "")


def test_a_figure_is_drawn_anew_when_its_stand_ins_change(workdir: Path):
    before = STAGE.settings("demo", "helm_random_maze")
    demo = Path("config/scales/demo.yaml")
    demo.write_text(demo.read_text(encoding="utf-8").replace("history_scale: 0.3", "history_scale: 0.4"))
    after = STAGE.settings("demo", "helm_random_maze")
    assert json.loads(before)["stand_ins"] != json.loads(after)["stand_ins"]


SCRIPTS = "are those of a scripted expert with less and less noise"


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("radt_maze_runner", f"the histories of MazeRunner 15×15 {SCRIPTS}"),
        ("radt_meta_world", f"the histories of Meta-World {SCRIPTS}"),
        ("radt_dmcontrol", "the histories of DMControl are those of a random policy, which never gets better"),
        ("radt_procgen", "a random network, which never learned, encodes the images of Procgen"),
    ],
)
def test_a_figure_of_agents_that_learned_from_stand_ins_says_so(figure, said):
    assert any(said in sentence for sentence in spec_of("demo", figure).stand_ins)
    assert spec_of("paper", figure).stand_ins == ()


def test_what_stands_in_for_published_data_is_said_at_a_scale_of_published_size_too(workdir: Path):
    content = Path("config/scales/paper.yaml").read_text(encoding="utf-8")
    source = "{algorithm: source_policies, hyperparameters: {policy: random, transitions: 100000}}"
    changed = f"environments: # changed\n  procgen: {{images: {{weights: null}}, source: {source}}}\n"
    Path("config/scales/paper.yaml").write_text(
        re.sub("^environments:.*\n", changed, content, count=1, flags=re.MULTILINE), encoding="utf-8"
    )
    (sentence,) = stand_ins("paper", "radt_procgen")
    assert sentence.startswith(
        "Not as published in RA-DT, AD, DPT and DT: the histories of Procgen are those of a random"
    )
    assert "; a random network, which never learned, encodes the images of Procgen." in sentence
    assert stand_ins("paper", "radt_meta_world") == ()
