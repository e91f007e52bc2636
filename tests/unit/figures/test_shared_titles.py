"""No two lines of a figure are called the same, and a figure whose methods' titles differ shows nothing but these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recollect.figures import method_styles, style
from recollect.settings.resolve import figure_settings, method_mapping, titles
from recollect.stages.figure import spec_of
from recollect.stages.provenance import figure_text

METHODS = ["dqn_ff", "sacd_ff", "dqn_lstm", "ad.k_50", "ad.k_50_episodes_200"]


def test_methods_that_share_a_title_have_their_names_behind_it(workdir: Path) -> None:
    figure = {"kind": "curve_panels", "environments": ["tmaze_passive_5"], "methods": METHODS}
    Path("config/figures/own.yaml").write_text(json.dumps(figure))
    wanted = {
        "dqn_ff": "no memory (dqn_ff)",
        "sacd_ff": "no memory (sacd_ff)",
        "dqn_lstm": "LSTM",
        "ad.k_50": "AD, k 50 (ad.k_50)",
        "ad.k_50_episodes_200": "AD, k 50 (ad.k_50_episodes_200)",
    }
    spec = spec_of("demo", "own")
    handles = style.legend_handles(spec, method_styles.styles_of(METHODS), [])
    assert [handle.get_label() for handle in handles] == list(wanted.values())
    assert spec.labels == wanted  # also what the JSON beside a figure names
    assert json.loads(figure_text("demo", "own"))["titles"]["methods"] == wanted


@pytest.mark.parametrize("name", ["radt_ablations", "memory_rl_active_tmaze", "amago_dark_key_door"])
def test_titles_that_differ_stand_alone(name: str) -> None:
    chosen = figure_settings("demo", name)
    env = chosen.environments[0]
    known = {method: method_mapping("demo", env, method)["title"] for method in chosen.methods}
    assert titles("demo", env, chosen.methods) == known == spec_of("demo", name).labels
