"""What a configuration cannot mean is refused before any work, with the place and the nearest name."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect import cli
from recollect.figures.bars import Options as BarOptions
from recollect.settings import loading
from recollect.settings.claims import ContrastSettings
from recollect.settings.errors import UserError, as_user_error
from recollect.settings.layers import method_file, scale_settings
from recollect.settings.overrides import method_with
from recollect.settings.resolve import figure_settings, method_mapping, resolve
from recollect.settings.schema import Frozen
from recollect.stages import check

ROOM, CORRIDOR = "dark_room_10x10", "tmaze_passive_5"
SCALE, METHOD, FIGURE = "scales/smoke", "methods/dt", "figures/radt_dark_room_10x10"


def change(file: str, *keys: str, to: Any) -> None:
    """Change one value of a file of the working directory's configuration."""
    path = Path("config") / f"{file}.yaml"
    content = json.loads(json.dumps(loading.read_yaml(path)))  # nothing is shared by an alias any more
    inner = content
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    inner[keys[-1]] = to
    path.write_text(json.dumps(content))  # which is YAML too


def small_configuration() -> None:
    """Leave one scale and one figure, which are checked in no time."""
    for group, kept in (("scales", "smoke"), ("figures", "radt_dark_room_10x10")):
        for path in Path("config", group).glob("*.yaml"):
            if path.stem != kept:
                path.unlink()
    change(SCALE, "figures", to={})


# ------------------------------------------------------------------------------------------- names of environments

MISSPELT = {
    "of a scale": (SCALE, ("environments", "dark_rom_10x10"), ROOM),
    "of a scale, with a size": (SCALE, ("environments", "tmaze_pasive_50"), "tmaze_passive"),
    "of a scale, in a method": (SCALE, ("methods", "dt", "environments", "maze_runer_15x15"), "maze_runner_15x15"),
    "of a scale, in a variant": (SCALE, ("methods", "dt", "variants", "x", "environments", "dark_rom_10x10"), ROOM),
    "of a scale, a size where there is none": (SCALE, ("environments", "dark_room_10x10_5"), f"write '{ROOM}'"),
    "of a method": (METHOD, ("environments", "dark_rom_10x10"), ROOM),
    "of a method, in a variant": (METHOD, ("variants", "x", "environments", "dark_rom_10x10"), ROOM),
}


@pytest.mark.parametrize("case", list(MISSPELT))
def test_a_misspelt_environment_in_overrides_is_refused_by_every_command(case: str, workdir: Path) -> None:
    file, keys, nearest = MISSPELT[case]
    change(file, *keys, to={"hyperparameters": {"context": 3}})
    for command in (lambda: method_mapping("smoke", ROOM, "dt"), check.check):
        with pytest.raises(UserError) as refused:
            command()
        assert keys[-1] in refused.value.what and nearest in refused.value.do
        assert refused.value.where == f"config/{file}.yaml: {'.'.join(keys[:-1])}"


def test_environments_by_size_by_word_of_gymnasium_of_ones_own_and_of_plugins_can_be_overridden(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_MINE", "my_own")
    own = workdir / "my_own" / "config" / "environments" / "my_room.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("world: dark_room\n")
    legal = ["tmaze_passive_50", "mini_grid_MemoryS11", "gym.CartPole-v1", "my_room", "psychlab"]
    for name in legal:  # psychlab: of a plug-in that is not installed here
        change(METHOD, "environments", name, to={"hyperparameters": {"context": 3}})
    assert {*legal} <= method_file("dt").content["environments"].keys()
    for name in legal[:-1]:
        change(SCALE, "environments", name, to={"evaluation": {"episodes": 2}})
    assert {*legal[:-1]} <= scale_settings("smoke").environments.keys()


def test_what_a_scale_says_of_an_environment_without_a_figure_is_checked_too(workdir: Path) -> None:
    small_configuration()
    change(SCALE, "environments", "key_door_20x20", to={"optoins": {"width": 3}})
    with pytest.raises(UserError, match="unknown key 'optoins'"):
        check.check()


# ------------------------------------------------------------------------------------------------ what YAML can hold


def read(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "some.yaml"
    path.write_text(text)
    return loading.read_yaml(path)


def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'hyperparameters' stands twice") as refused:
        read(tmp_path, "a:\n  hyperparameters: {b: 1}\n  title: x\n  hyperparameters: {c: 2}\n")
    assert refused.value.where == f"{tmp_path}/some.yaml:2 and {tmp_path}/some.yaml:4"
    with pytest.raises(UserError, match="'b' stands twice"):
        read(tmp_path, "a: [{b: 1, b: 1}]")


def test_what_is_merged_may_be_said_again_and_a_number_is_another_key_than_its_text(tmp_path: Path) -> None:
    # `second` is merged into `third` before it is read itself: then `x` of `first` stands among its keys.
    text = "first: &a {x: 1, y: 1}\nsecond: &b {<<: *a, x: 2}\nthird: {<<: [*b, *a], x: 3, 1: 4, '1': 5}\n"
    assert read(tmp_path, text)["third"] == {"x": 3, "y": 1, 1: 4, "1": 5}


def test_a_wrong_option_of_a_figure_is_found_by_the_check_and_not_only_when_it_is_drawn(workdir: Path) -> None:
    small_configuration()
    change(FIGURE, "options", "no_such", to=1)
    with pytest.raises(UserError, match="no_such") as refused:
        check.check()
    assert refused.value.where == "config/figures/radt_dark_room_10x10.yaml: options"


@pytest.mark.parametrize(
    ("env", "method", "setting", "said"),
    [
        (CORRIDOR, "dqn_lstm", "head=[0]", "'head.0' is 0"),
        ("amago_tmaze_5", "amago_transformer", "head=[-1]", "'head.0' is -1"),
        ("amago_tmaze_5", "amago_transformer", "inputs.hidden=[0]", "is 0"),
        (ROOM, "radt", "network.context_layers=9", "begin as copies of the first of"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused_before_any_work(
    in_the_repository: None, env: str, method: str, setting: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        resolve("smoke", env, method_with(method, [setting]), 0)


def test_a_doubled_key_in_any_file_is_found_by_the_check(workdir: Path) -> None:
    path = workdir / "config" / "figures" / "references" / "radt.yaml"
    path.write_text(path.read_text() + "\n" + path.read_text())
    with pytest.raises(UserError, match="stands twice") as refused:
        check.check()
    assert "config/figures/references/radt.yaml:" in refused.value.where


NESTED = ["a: " + "[" * 3000 + "]" * 3000, "a: " + "{b: " * 3000 + "1" + "}" * 3000, "a: &a [*a]", "a: &a {b: [*a]}"]
CRASHES_LIBYAML = ["[" * 100_000, "- " * 100_000, "{a: " * 100_000, "? " * 100_000]


@pytest.mark.parametrize("text", NESTED + CRASHES_LIBYAML, ids=lambda text: text[:6])
def test_what_is_nested_without_end_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="50 deep in each other") as refused:
        read(tmp_path, text)
    assert refused.value.where == str(tmp_path / "some.yaml")


def test_a_file_that_nobody_may_read_is_named(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Path("config/methods/dt.yaml")
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    loading._parse.cache_clear()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    for command in (lambda: method_mapping("smoke", ROOM, "dt"), check.state):
        with pytest.raises(UserError, match="cannot be read: Permission denied") as refused:
            command()
        assert refused.value.where == str(closed) and "chmod" in refused.value.do


# ---------------------------------------------------------------------------------------------- numbers that are none


class Example(Frozen):
    rate: float = 0.1
    steps: int = 1
    sizes: tuple[int, ...] = ()
    weights: dict[str, float] | float | None = None
    wanted: bool = False
    anything: Any = None
    inner: Example | None = None


INFINITE, UNKNOWN = float("inf"), float("nan")
NOT_NUMBERS: dict[str, list[Any]] = {
    "rate": [INFINITE, -INFINITE, UNKNOWN, True, "inf", "1e999"],
    "steps": [INFINITE, UNKNOWN, True, False],
    "sizes": [[1, True]],
    "weights": [UNKNOWN, True, {"a": INFINITE}, {"a": True}],
}


@pytest.mark.parametrize("key", list(NOT_NUMBERS))
def test_infinities_nan_and_truth_values_are_no_numbers(key: str) -> None:
    for value in NOT_NUMBERS[key]:
        for values in ({key: value}, {"inner": {key: value}}):
            with pytest.raises(UserError, match=key):
                loading.validated(Example, values, where="here")


def test_true_is_no_number_where_a_part_may_stand_in_its_place_and_a_contrast_has_two_sides() -> None:
    this = {"env": "tmaze_passive_5", "method": "dqn_gpt"}
    for that, said in ((True, "no numbers"), ({}, "are the same scores"), ({"split": "eval"}, "are the same scores")):
        with pytest.raises(UserError, match=said):
            loading.validated(ContrastSettings, {"says": "one", "this": this, "that": that}, where="here")
    for other in (0.5, {"method": "dqn_ff"}, {"episodes": [0, 0.5]}):
        loading.validated(ContrastSettings, {"says": "one", "this": this, "that": other}, where="here")


def test_what_is_no_number_may_be_true_or_false() -> None:
    values = {"wanted": True, "anything": [True], "rate": "1e-4", "weights": {"a": 1}, "inner": {"wanted": False}}
    example = loading.validated(Example, values, where="here")
    assert example.wanted and example.anything == [True] and example.rate == 1e-4


def test_the_choices_of_a_union_are_no_keys() -> None:
    for key, value in (("last", 0), ("metric", 5)):
        with pytest.raises(UserError) as refused:
            loading.validated(BarOptions, {key: value}, where="here")
        assert set(re.findall("'([^']*)' is", refused.value.what)) == {key} and f"'{key}'" in str(refused.value.do)


SEEDS: dict[str, Any] = {
    "none": [],
    "twice": [0, 0],
    "negative": [-1],
    "beyond 2**63": [2**63],
    "a truth value": [True],
}


@pytest.mark.parametrize("case", list(SEEDS))
@pytest.mark.parametrize("file", [SCALE, FIGURE])
def test_seeds_that_cannot_be_are_refused_by_every_command(case: str, file: str, workdir: Path) -> None:
    change(file, "seeds", to=SEEDS[case])
    with pytest.raises(UserError, match="'seeds") as refused:
        figure_settings("smoke", "radt_dark_room_10x10")
    assert refused.value.where == f"config/{file}.yaml"


@pytest.mark.parametrize("key", ["environments", "methods"])
def test_a_figure_of_nothing_is_refused_for_what_is_missing(key: str, workdir: Path) -> None:
    change(FIGURE, key, to=[])
    with pytest.raises(UserError, match=rf"'{key}' is \[\]: at least one is needed"):
        figure_settings("smoke", "radt_dark_room_10x10")


NO_MAPPING = {
    "hyperparameters": ("methods", "radt", "hyperparameters"),
    "hyperparameters in an environment": ("methods", "radt", "environments", ROOM, "hyperparameters"),
    "how RA-DT acts": ("methods", "radt", "hyperparameters", "acting"),
    "its memory": ("methods", "radt", "memory"),
    "a source of histories": ("environments", ROOM, "source"),
    "what a source is told": ("environments", ROOM, "source", "hyperparameters"),
}


@pytest.mark.parametrize("case", list(NO_MAPPING))
def test_a_number_in_place_of_settings_is_refused_by_the_forecast_too(
    case: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(SCALE, *NO_MAPPING[case], to=3)
    monkeypatch.setattr(sys, "argv", ["recollect", "forecast", "--scale", "smoke", "radt_dark_room_10x10"])
    with pytest.raises(SystemExit) as refused:
        cli.main()
    assert refused.value.code == 2  # the plan is made of unchecked settings, which ended in a traceback


HIDDEN = {
    "by an environment of the scale": (SCALE, ("methods", "dt", "hyperparameters"), "dt"),
    "by the scale": ("environments/dark_room_7x7", ("source",), "dt"),
    "by the scale, of a method": (METHOD, ("hyperparameters",), "dt"),
    "by a variant": (SCALE, ("methods", "radt", "memory"), "radt.own"),
}


@pytest.mark.parametrize("case", list(HIDDEN))
def test_a_number_in_place_of_settings_is_refused_though_a_higher_layer_hides_it(case: str, workdir: Path) -> None:
    file, keys, method = HIDDEN[case]
    change(SCALE, "methods", "dt", "environments", "dark_room_7x7", to={"hyperparameters": {"context": 3}})
    change(SCALE, "methods", "radt", "variants", "own", to={"memory": {"embedder": "method:dt"}})
    change(file, *keys, to=3)
    with pytest.raises(UserError, match=f"'{keys[-1]}' is 3, not settings") as refused:
        resolve("smoke", "dark_room_7x7", method, 0)
    assert refused.value.where == f"config/{file}.yaml{': ' if keys[:-1] else ''}{'.'.join(keys[:-1])}"


# ------------------------------------------------------------------------------------------- names, memory, messages


@pytest.mark.parametrize("name", ["../scales/smoke", "..", "a/b", "a\\b", "", "a..b", ".hidden"])
def test_a_name_leads_out_of_no_folder(name: str, workdir: Path) -> None:
    with pytest.raises(UserError, match="cannot be a name in scales"):
        scale_settings(name)
    with pytest.raises(UserError, match="cannot be a name in environments"):
        method_mapping("smoke", name, "dt")
    with pytest.raises(UserError, match=r"cannot be a name in methods|has no variant|no configuration named"):
        method_mapping("smoke", ROOM, name)


def no_memory() -> None:
    raise MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000000000,)")


def too_large_for_a_number() -> None:
    raise ValueError("Maximum allowed dimension exceeded")


def not_permitted() -> None:
    raise PermissionError(13, "Permission denied", "config/methods")


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def too_long_a_name() -> None:
    Path("a" * 256).is_file()


ERRORS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "memory": (no_memory, ("memory does not suffice", "7.28 TiB for an array", "batch_size")),
    "size": (too_large_for_a_number, ("memory does not suffice", "dimension exceeded", "batch_size")),
    "rights": (not_permitted, ("not permitted: Permission denied", "config/methods", "chmod")),
    "room": (no_room, ("cannot be written: [Errno 28]", "no file is named", "free some space")),
    "name": (too_long_a_name, ("cannot be written: [Errno 36]", "aaa", "a shorter name")),
}


@pytest.mark.parametrize("case", list(ERRORS))
def test_too_little_memory_missing_rights_and_what_finds_no_place_are_messages(
    case: str, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, parts = ERRORS[case]
    monkeypatch.setattr(check, "check", work)
    monkeypatch.setattr(sys, "argv", ["recollect", "check"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(said) == 3
    for part, line in zip(parts, said, strict=True):
        assert part in line


def test_an_error_of_ours_is_no_message() -> None:
    assert as_user_error(ValueError("negative dimensions are not allowed")) is None


def test_one_seed_without_memory_is_a_message_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match="1 of 2 runs failed: seeds 1"):
        cli.together([0, 1], lambda seed: no_memory() if seed else None)
    assert "memory does not suffice" in caplog.text and "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("env", "method"),
    [
        ("amago_tmaze_5", "amago_transformer"),
        ("mini_grid_MemoryS7", "ppo_cnn"),
        ("tmaze_passive_5", "dqn_ff"),
    ],
)
def test_more_actors_than_any_machine_has_memory_for_are_refused(env: str, method: str, workdir: Path) -> None:
    with pytest.raises(UserError, match="actors"):
        resolve("smoke", env, method_with(method, ["actors=10000000000"]), 0)


@pytest.mark.parametrize("method", ["dt", "ad", "dpt", "radt"])
def test_a_width_that_its_heads_do_not_divide_is_refused_before_anything_runs(method: str) -> None:
    with pytest.raises(UserError, match="a width of 30 cannot be split into 4 heads") as refused:
        resolve("paper", ROOM, method_with(method, ["network.width=30", "network.heads=4"]), 0)
    assert f"methods/{method}.yaml" in refused.value.where


# ------------------------------------------------------------------------------------------------ which file is wrong


@pytest.fixture
def own(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of own figures and environments, beside a small configuration."""
    small_configuration()
    monkeypatch.setenv("RECOLLECT_MINE", "own_files")
    folder = workdir / "own_files" / "config"
    for group in ("figures", "environments"):
        (folder / group).mkdir(parents=True)
    return folder


def test_a_wrong_option_of_ones_own_figure_names_its_own_file(own: Path) -> None:
    figure = {"kind": "in_context_curve", "environments": [ROOM], "methods": ["dt"], "options": {"metrik": "return"}}
    (own / "figures/mine.yaml").write_text(json.dumps(figure))
    with pytest.raises(UserError, match="unknown key 'metrik'") as refused:
        check.check()
    assert refused.value.where == f"{own / 'figures/mine.yaml'}: options"


@pytest.mark.parametrize(("env", "method"), [(ROOM, "best_acton"), ("dark_rom_10x10", "dt"), (ROOM, "dt.no_such")])
def test_a_misspelt_name_in_a_figure_names_the_figure(env: str, method: str, own: Path) -> None:
    figure = {"kind": "in_context_curve", "environments": [env], "methods": [method]}
    (own / "figures/mine.yaml").write_text(json.dumps(figure))
    with pytest.raises(UserError) as refused:
        check.check()
    assert refused.value.where.endswith("named by own_files/config/figures/mine.yaml (scale smoke)")


def test_a_wrong_option_of_a_world_names_the_environments_file(own: Path) -> None:
    (own / "environments/my_room.yaml").write_text(json.dumps({"world": "dark_room", "options": {"widht": 5}}))
    with pytest.raises(UserError, match="unknown option 'widht'") as refused:
        check.check()
    assert refused.value.where == f"{own / 'environments/my_room.yaml'}: options (of the world dark_room)"
    assert refused.value.do == "did you mean 'width'?"


def test_what_is_wrong_in_training_alone_and_returns_upside_down_are_found_by_the_check(own: Path) -> None:
    file = own / "environments/my_room.yaml"
    file.write_text(json.dumps({"world": "dark_room", "training_options": {"widht": 5}}))
    with pytest.raises(UserError, match="unknown option 'widht'") as refused:
        check.check()
    assert refused.value.where == f"{file}: training_options (of the world dark_room)"
    file.write_text(json.dumps({"world": "dark_room", "returns": {"low": 9, "high": 0}}))
    with pytest.raises(UserError, match="`low`, 9, must be below `high`, 0"):
        check.check()
