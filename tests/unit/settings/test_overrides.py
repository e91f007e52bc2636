"""`--set KEY=VALUE`: settings changed on the command line make another run, whose name says what was changed."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from recollect.cli import app
from recollect.helm.settings import VisionLanguageModelSettings
from recollect.settings.catalogue import known
from recollect.settings.errors import UserError
from recollect.settings.loading import models_in
from recollect.settings.overrides import method_with
from recollect.settings.resolve import environment_mapping, environment_stem, method_mapping, played_method, resolve
from recollect.settings.schema import EnvironmentSettings, FigureSettings, MethodSettings
from recollect.stages import paths, provenance
from recollect.stages.selection import check_targets

ROOM = "dark_room_10x10"
pytestmark = pytest.mark.usefixtures("workdir")


def test_a_name_says_what_was_changed_in_one_spelling() -> None:
    name = method_with("ad", ["hyperparameters.optimisation.learning_rate=1e-4", "context=12"])
    assert name == method_with("ad", ["context=3", "context=12", "optimisation.learning_rate=0.0001"])
    assert name == "ad.context=12,optimisation.learning_rate=0.0001" == method_with(name, [])
    for typed in ("1000", "1e3", "1000.0", "+1000"):
        assert method_with("dqn_lstm", [f"train_episodes={typed}"]) == "dqn_lstm.train_episodes=1000"
    assert method_with("radt", ["compile=True", "a=None"]) == method_with("radt", ["compile=true", "a=null"])
    assert method_with("radt.task_weight_0", ["context=9"]) == "radt.task_weight_0,context=9"
    assert (method_with("radt", []), method_with("radt.task_weight_0", [])) == ("radt", "radt.task_weight_0")


@pytest.mark.quick("learning_rate=1e-3")
@pytest.mark.parametrize("typed", ["learning_rate=1e-3", "learning_rate=.001", "learning_rate=+1.0e-3"])
def test_a_name_in_another_spelling_is_one_for_commands_and_refused_in_paths_and_files(typed: str) -> None:
    called = "dqn_lstm.learning_rate=0.001,sequence.width=8"
    for other in (f"dqn_lstm.{typed},sequence.width=8", f"dqn_lstm.sequence.width=8,{typed}"):
        assert method_with(other) == called
        with pytest.raises(UserError, match=f"another spelling of '{called}'"):
            check_targets([str(paths.scores("smoke", "tmaze_passive_5", other, 0))])
        words = [
            "settings",
            "--scale",
            "smoke",
            "--env",
            "tmaze_passive_5",
            "--method",
            other,
            "--why",
            "learning_rate",
        ]
        assert called in CliRunner().invoke(app, words).stdout
        words = ["evaluate", "--scale", "smoke", "--env", "tmaze_passive_5", "--method", other, "--seed", "0"]
        assert called in str(CliRunner().invoke(app, words).exception)  # of the policy that is not there
        words = ["compare", other, "dqn_ff", "--scale", "smoke", "--env", "tmaze_passive_5"]
        assert f"{called} has none" in str(CliRunner().invoke(app, words).exception)
    check_targets([str(paths.scores("smoke", "tmaze_passive_5", called, 0))])


def test_a_dot_without_a_variant_is_refused_and_not_taken_for_the_plain_method() -> None:
    with pytest.raises(UserError, match=r"'radt\.' ends with a dot.*\n.*\n.*or write radt"):
        method_with("radt.")
    refused = CliRunner().invoke(app, ["settings", "--scale", "smoke", "--env", "dark_room_10x10", "--method", "radt."])
    assert isinstance(refused.exception, UserError) and "ends with a dot" in str(refused.exception)


def test_only_what_is_said_differs_from_the_plain_method() -> None:
    plain = resolve("demo", ROOM, "radt", 0).method
    changed = resolve(
        "demo", ROOM, "radt.task_weight_0,memory.stride=7,network.layers=1,optimisation.warmup=default", 0
    ).method
    listed = resolve("demo", ROOM, "radt.task_weight_0", 0).method
    hp, base = changed.hyperparameters, listed.hyperparameters
    assert changed.memory is not None and plain.memory is not None
    assert changed.memory.model_copy(update={"stride": plain.memory.stride}) == plain.memory
    assert (changed.memory.stride, hp.network.layers) == (7, 1)
    assert hp.optimisation.warmup == type(hp.optimisation)().warmup != base.optimisation.warmup  # the default again
    again = {"network": base.network, "optimisation": base.optimisation}
    assert hp.model_copy(update=again) == base and hp.retrieval.task_weight == 0
    assert changed.title == "RA-DT, task weight 0, memory.stride=7,network.layers=1,optimisation.warmup=default"


def test_null_is_null_and_the_title_says_so() -> None:
    plain = resolve("paper", ROOM, "radt", 0).method.hyperparameters.retrieval
    method = resolve("paper", ROOM, method_with("radt", ["retrieval.cut_off=null"]), 0).method
    assert plain.cut_off == 0.98 and method.hyperparameters.retrieval.cut_off is None
    assert method.title == "RA-DT, retrieval.cut_off=null"


def test_no_setting_can_mean_the_text_default() -> None:
    """The word would be taken for "back to the default"; free texts are titles, names and paths only."""

    def texts(model: type[BaseModel]) -> list[str]:
        fields = model.model_fields.values()
        inner = [text for field in fields for below in models_in(field.annotation) for text in texts(below)]
        return [*inner, *(str(word) for field in fields for word in _words(field.annotation))]

    kinds = ("method", "source", "figure")
    modules = [importlib.import_module(name) for kind in kinds for name in known(kind).values()]
    models = [getattr(module, "Hyperparameters", None) or module.Options for module in modules]
    for model in (*models, EnvironmentSettings, MethodSettings, FigureSettings, VisionLanguageModelSettings):
        assert "default" not in texts(model), model


def _words(annotation: Any) -> list[Any]:
    """The words of every `Literal` in an annotation."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for inner in get_args(annotation) for word in _words(inner)]


def test_lists_words_and_truth_values_are_understood() -> None:
    values = ["further_discounts=[0.9,0.99]", "popart=false", "precision=bfloat16", "sequence.kind=gru", "head=[16]"]
    hp = resolve("paper", "amago_tmaze_20", method_with("amago_transformer", values), 0).method.hyperparameters
    assert (hp.further_discounts, hp.popart, hp.precision) == ((0.9, 0.99), False, "bfloat16")
    assert (hp.sequence.kind, hp.head) == ("gru", (16,))
    none = resolve("paper", "amago_tmaze_20", method_with("amago_transformer", ["further_discounts=[]"]), 0)
    assert none.method.hyperparameters.further_discounts == ()


def test_its_results_have_a_place_and_a_provenance_of_their_own() -> None:
    name = method_with("ad", ["optimisation.steps=3"])
    assert paths.policy("smoke", ROOM, name, 0) != paths.policy("smoke", ROOM, "ad", 0)
    text = provenance.train_settings("smoke", ROOM, name)
    assert '"steps":3' in text and text != provenance.train_settings("smoke", ROOM, "ad")
    assert provenance.evaluate_settings("smoke", ROOM, name) != provenance.evaluate_settings("smoke", ROOM, "ad")


def test_a_variant_that_differs_in_acting_is_trained_when_more_is_changed() -> None:
    assert played_method("smoke", ROOM, "radt.every_25") == "radt"
    name = "radt.every_25,network.layers=2"
    assert played_method("smoke", ROOM, name) == name and "evaluation_only" not in method_mapping("smoke", ROOM, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("learning_rte=1", r"(?s)unknown key 'learning_rte'.*did you mean 'learning_rate'"),
        ("sequence.widht=3", r"(?s)unknown key 'sequence.widht'.*did you mean 'sequence\.width'"),
        ("learning_rate=fast", r"'learning_rate' is 'fast'"),
        ("learning_rate", "not of the form KEY=VALUE"),
        ("9lives=1", "not of the form KEY=VALUE"),
        ("memory=1", "has many settings, and one is set at a time"),
        ("precision=../../x", "neither a number, a word, nor a list"),
        ("precision=", "neither a number, a word, nor a list"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_nearest_key(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("paper", "amago_tmaze_20", method_with("amago_transformer", [change]), 0)


def test_a_part_cannot_be_set_both_as_a_whole_and_by_parts() -> None:
    with pytest.raises(UserError, match="a part of something that is set as a whole"):
        resolve("paper", "amago_tmaze_20", method_with("amago_transformer", ["sequence=1", "sequence.width=2"]), 0)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_the_command_line_takes_changes(command: str) -> None:
    words = ["--scale", "smoke", "--env", ROOM, "--method", "ad", "--seed", "0", "--set", "episodes_bck=1"]
    done = CliRunner().invoke(app, [command, *words])
    assert isinstance(done.exception, UserError)
    assert "unknown key 'episodes_bck'" in str(done.exception) and "'episodes_back'" in str(done.exception)


@pytest.mark.parametrize(
    ("said", "called"),
    [
        ("popart=yes", "popart=true"),
        ("popart=1", "popart=true"),
        ("sequence.width=6_4", "sequence.width=64"),
        ("learning_rate=1_0e-4", "learning_rate=0.001"),
        ("further_discounts=[0.9,0_0.99]", "further_discounts=[0.9,0.99]"),
    ],
)
def test_a_value_that_is_read_as_another_one_is_refused_with_its_name(said: str, called: str) -> None:
    for change, refused in ((said, True), (called, False)):
        name = method_with("amago_transformer", [change])
        with pytest.raises(UserError, match="another spelling") if refused else nullcontext() as error:
            resolve("paper", "amago_tmaze_20", name, 0)
        if refused:
            assert error.value.do == f"write amago_transformer.{called}"  # type: ignore[union-attr]


@pytest.mark.parametrize("size", ["050", "٥٠"])
def test_a_size_has_one_spelling(size: str) -> None:
    assert environment_stem("tmaze_passive_50") == ("tmaze_passive", 50)
    with pytest.raises(UserError, match="no configuration named 'tmaze_passive_-5'") as refused:
        environment_mapping("smoke", "tmaze_passive_-5")
    assert "did you mean 'tmaze_passive'?" in refused.value.do  # and not what was typed
    with pytest.raises(UserError, match=r"did you mean 'gym\.CartPole-v1'"):
        environment_mapping("smoke", "CartPole-v1")
    with pytest.raises(UserError, match="no configuration named") as error:
        resolve("paper", f"tmaze_passive_{size}", "dqn_lstm", 0)
    assert "did you mean 'tmaze_passive" in error.value.do and size not in error.value.do
