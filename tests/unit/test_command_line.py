"""What every command shows: an example that works, the version, completion; and what is near a misspelt key."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import recollect
from recollect import cli
from recollect.cli import app
from recollect.settings.errors import UserError
from recollect.settings.loading import names, read_yaml
from recollect.settings.overrides import method_with
from recollect.settings.resolve import resolve
from recollect.stages.stage import job_of
from recollect.stages.table import STAGES

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
ROOM = "dark_room_7x7"
pytestmark = pytest.mark.usefixtures("workdir")


def example_of(name: str) -> list[str]:
    found = re.search(rf"Example: recollect {name}( .*)?$", COMMANDS[name].help, flags=re.MULTILINE)
    assert found, f"`recollect {name} --help` has no example"
    return shlex.split((found[1] or "").partition(" > ")[0])


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_help_of_a_command_has_an_example_that_it_understands(name: str) -> None:
    context = COMMANDS[name].make_context(
        name, example_of(name)
    )  # fails on unknown and on missing options; runs nothing
    given = context.params
    for option, group in (("scale", "scales"), ("method", "methods")):
        chosen = given.get(option) or []
        assert set([chosen] if isinstance(chosen, str) else chosen) <= set(names(group))
    stage = STAGES.get(name.replace("-", "_"))
    if stage is not None and set(stage.over) <= given.keys():  # and there is such a job
        job = job_of(stage.name, {word: str(given[word]) for word in stage.over})
        assert stage.settings_text(job) or not stage.modules
        assert stage.only(*job.names(stage.shared).values()) or name == "evaluate"


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("train --scale smoke --env tmaze_passive_5 --method dqn_ff --seed 0 --seed 1", "--seed"),
        ("evaluate --scale smoke --env=tmaze_passive_5 --env=tmaze_passive_6 --method dqn_ff --seed 0", "--env"),
        ("compare dqn_ff dqn_lstm --env tmaze_passive_5 --env tmaze_passive_6", "--env"),
        ("sweep --scale smoke --env tmaze_passive_5 --method a --method b --seed 0 --set discount=0.5", "--method"),
    ],
)
def test_a_name_that_stands_twice_is_refused_and_not_the_last_one_taken(words: str, flag: str) -> None:
    refused = CliRunner().invoke(app, words.split()).exception
    assert isinstance(refused, UserError) and str(refused).startswith(f"{flag} is given more than once")
    assert ("`recollect run` takes several" in refused.do) == (flag == "--seed")


def test_what_takes_several_seeds_takes_them() -> None:
    assert COMMANDS["run"].make_context("run", [*example_of("run"), "--seed", "1"]).params["seed"] == [0, 1]


def test_a_job_holds_the_devices_that_it_needs_and_shares_them_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[Any, ...]] = []

    def job(*asked: Any) -> AbstractContextManager[str]:
        held.append(asked)
        return nullcontext("cpu")

    monkeypatch.setattr(cli, "job", job)
    monkeypatch.setattr(cli, "one", lambda *of: None)
    monkeypatch.setenv("RECOLLECT_PACK", "3")
    of = ["--scale", "paper", "--env", "amago_dark_key_door", "--seed", "0", "--threads", "4", "--method"]
    for method in ("amago_transformer", "amago_transformer.devices=2"):
        assert CliRunner().invoke(app, ["run", *of, method]).exit_code == 0
    assert held == [(4, "auto", 3, 1), (4, "auto", 3, 2)]


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"recollect {recollect.__version__}"


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("recollect swe", "sweep"),
        ("recollect train --method radt_ag", "radt_agnostic"),
        ("recollect train --sca", "--scale"),
    ],
)
def test_a_shell_completes_commands_options_and_names(words: str, completed: str) -> None:
    asked = {"_RECOLLECT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = CliRunner().invoke(app, [], prog_name="recollect", env=asked)
    assert completed in done.output.split()


def test_the_help_imports_neither_torch_nor_pandas() -> None:
    code = "import sys, recollect.cli; sys.exit(bool({'torch', 'pandas'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_to_say_a_score_at_the_end_of_a_job_draws_nothing() -> None:
    code = "import sys, recollect.stages.final_scores; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ----------------------------------------------------------------------------------------------------- misspelt keys

MISSPELT = [
    ("optimisation.lerning_rate", "optimisation.learning_rate"),
    ("lerning_rate", "optimisation.learning_rate"),
    ("optimisaton.learning_rate", "optimisation.learning_rate"),
    ("optimisaton.lerning_rate", "optimisation.learning_rate"),
    ("network.learning_rate", "optimisation.learning_rate"),
    ("contxt", "context"),
    ("retrieval.cutoff", "retrieval.cut_off"),
    ("strid", "memory.stride"),
    ("memory.strid", "stride"),
]


@pytest.mark.parametrize(("typed", "meant"), MISSPELT)
def test_a_misspelt_key_is_answered_with_the_nearest_at_any_depth_and_its_path(typed: str, meant: str) -> None:
    with pytest.raises(UserError) as refused:
        resolve("demo", ROOM, method_with("radt", [f"{typed}=1"]), 0)
    assert refused.value.do == f"did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"hyperparameters": {"optimisation": {"lerning_rate": 1}}}, "optimisation.learning_rate"),
        ({"optimisation": {"learning_rate": 1}}, "hyperparameters.optimisation.learning_rate"),
        ({"hyperparametrs": {"context": 1}}, "hyperparameters.context"),
        ({"environments": {ROOM: {"memory": {"strid": 1}}}}, "stride"),
    ],
)
@pytest.mark.parametrize("file", ["scales/demo", "methods/radt"])
def test_so_is_one_in_a_scale_or_a_method(file: str, said: dict[str, Any], meant: str, workdir: Any) -> None:
    path = workdir / "config" / f"{file}.yaml"
    content = dict(read_yaml(path))
    if file.startswith("scales"):
        content["methods"] = {**content["methods"], "radt": {**content["methods"]["radt"], **said}}
    else:
        content |= said
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="unknown key") as refused:
        resolve("demo", ROOM, "radt", 0)
    assert refused.value.do == f"did you mean '{meant}'?"
