"""`recollect settings`: what a run is made with, every default included, and the file and line of each value."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

from recollect import cli
from recollect.settings.errors import UserError
from recollect.settings.origins import line_of
from recollect.settings.resolve import resolve
from recollect.stages.settings import settings

ROOM = "dark_room_10x10"
SOURCE = Path(__file__).resolve().parents[3] / "src" / "recollect"
pytestmark = pytest.mark.usefixtures("workdir")


def why(key: str, method: str = "radt", scale: str = "demo", env: str = ROOM, **more: Any) -> list[str]:
    """The lines of `--why KEY`, without those that name the setting and say what it is."""
    lines = settings(scale, env, method, why=key, **more).splitlines()
    return [line.strip() for line in lines if line.startswith(" ") and not line.startswith("  what it is: ")]


def line(file: str, text: str) -> int:
    """The number of the one line of a file that holds a text."""
    numbers = [number for number, each in enumerate(Path(file).read_text().splitlines(), 1) if text in each]
    assert len(numbers) == 1, (file, text, numbers)
    return numbers[0]


def test_all_settings_are_shown_defaults_included() -> None:
    shown = fast_yaml.load(settings("paper", ROOM, "radt"))
    assert shown["method"]["hyperparameters"]["optimisation"]["learning_rate"] == 1e-4  # in no file of config/
    assert shown["method"]["hyperparameters"]["retrieval"]["cut_off"] == 0.98
    assert shown["environment"]["source"]["hyperparameters"]["gae_lambda"] == 0.95
    checked = resolve("paper", ROOM, "radt", 0).method.hyperparameters
    assert shown["method"]["hyperparameters"] == checked.model_dump(mode="json")
    assert json.loads(settings("paper", ROOM, "radt", as_json=True)) == shown


def test_an_environment_alone_and_a_figure_are_shown_too() -> None:
    assert list(fast_yaml.load(settings("demo", "tmaze_passive_50"))) == ["environment"]
    shown = fast_yaml.load(settings("demo", figure="radt_200_trials"))["figure"]
    assert shown["methods"] == ["ad.k_50_episodes_200", "dpt.episodes_200"] and shown["options"]["columns"] == 3


def test_why_names_the_line_of_a_default() -> None:
    file = SOURCE / "memory_rl" / "sequence.py"
    (origin,) = why("sequence.forget_bias", "dqn_lstm", "paper", "tmaze_passive_50")
    place, _, number = origin.rpartition(":")
    assert place.startswith("default of ") and place.endswith("recollect/memory_rl/sequence.py")
    assert int(number) == line(str(file), "    forget_bias: ")


def test_why_names_a_methods_line_and_a_scales_line_also_behind_an_anchor() -> None:
    assert why("memory.stride") == [f"config/methods/radt.yaml:{line('config/methods/radt.yaml', '  stride: 25')}"]
    shared = line("config/scales/demo.yaml", "optimisation: &optimisation") + 1  # where radt takes its `<<` from
    assert why("optimisation.learning_rate") == [f"config/scales/demo.yaml:{shared}"]


def test_why_names_bases_environments_and_what_a_value_takes_the_place_of() -> None:
    kind = why("sequence.kind", "dqn_lstm", "paper", "tmaze_passive_50")
    own, base = "config/methods/dqn_lstm.yaml", "config/methods/dqn_gpt.yaml"
    assert kind == [
        f"{own}:{line(own, 'kind: lstm')}",
        f'in place of "gpt" of {base}:{line(base, "sequence: {kind: gpt")}',
    ]
    of_room = why("context", scale="paper", env="dark_room_40x20")
    assert of_room[0] == f"config/methods/radt.yaml:{line('config/methods/radt.yaml', '  dark_room_40x20:')}"
    assert why("length", "dqn_lstm", env="tmaze_passive_50")[0] == "the name 'tmaze_passive_50'"


def test_why_names_variants_and_what_was_set_on_the_command_line() -> None:
    path = "config/methods/radt.yaml"
    variant = line(path, "  task_weight_5:")
    assert why("task_weight", "radt.task_weight_5") == [f"{path}:{variant}"]
    changed = why("task_weight", "radt.task_weight_5", changes=["retrieval.task_weight=7"])
    assert changed[0].startswith("--set") and changed[1] == f"in place of 5 of {path}:{variant}"
    judged = why("episodes", "ad.k_50_episodes_200")
    assert judged[0] == f"config/methods/ad.yaml:{line('config/methods/ad.yaml', 'k_50_episodes_200')}"


def test_why_says_who_goes_back_to_a_default() -> None:
    default, back = why("heads", "dqn_lstm", "paper", "tmaze_passive_50")
    path = "config/methods/dqn_lstm.yaml"
    assert default.startswith("default of ") and back == f"to which {path}:{line(path, 'kind: lstm')} goes back"


def test_why_says_what_a_setting_is() -> None:
    said = settings("demo", ROOM, "radt", why="optimisation.warmup").splitlines()
    assert said[1].startswith("  what it is: ") and len(said[1]) > 25


def test_an_unknown_key_and_a_missing_name_are_answered_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"did you mean 'optimisation\.learning_rate'"):
        settings("demo", ROOM, "radt", why="learnin_rate")
    with pytest.raises(UserError, match="--env NAME"):
        settings("demo")


def test_lines_are_found_behind_several_anchors(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("one: &one {x: 1}\ntwo: &two\n  y: 2\nthree:\n  <<: [*one, *two]\n  z: 3\n")
    assert [line_of(file, ("three", key)) for key in ("x", "y", "z")] == [1, 3, 6]


@pytest.mark.slow
def test_the_command_prints_them(run_recollect: Callable[..., Any], root: Path) -> None:
    words = ["settings", "--scale", "smoke", "--env", ROOM, "--method", "ad", "--set", "context=9", "--why", "context"]
    done = run_recollect(*words, cwd=root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "method.hyperparameters.context: 9"
    assert "what it is" in done.stdout.splitlines()[1] and "--set" in done.stdout.splitlines()[2]


def test_without_a_scale_it_is_that_of_the_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["recollect", "settings", "--env", ROOM, "--method", "radt", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == json.loads(settings("demo", ROOM, "radt", as_json=True))


@pytest.mark.parametrize("of", [{"env": ROOM}, {"figure": "radt_ablations"}])
def test_changes_of_no_method_are_refused(of: dict[str, str]) -> None:
    with pytest.raises(UserError, match="--set changes settings of a method, and none is named"):
        settings("demo", changes=["learning_rate=5"], **of)


@pytest.mark.parametrize("of", [{"env": "tmaze_passive_5"}, {"env": ROOM, "method": "radt"}, {"method": "radt"}])
def test_a_figure_and_a_run_at_once_are_refused(of: dict[str, str]) -> None:
    with pytest.raises(UserError, match="a figure and of a run are asked for at once") as refused:
        settings("demo", figure="radt_ablations", **of)
    assert "leave out --figure" in refused.value.do
