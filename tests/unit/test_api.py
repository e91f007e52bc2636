"""Promises of Recollect from Python: what a notebook gets is what the commands make, wherever the notebook stands."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect import api
from recollect.artifacts.progress import Progress
from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.sealed import write_table
from recollect.environments import registry
from recollect.evaluation import episodic, in_context, rollouts
from recollect.settings.errors import UserError
from recollect.settings.layers import scale_settings
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings
from recollect.stages import paths
from recollect.stages.evaluate import evaluate

OF = ("smoke", "tmaze_passive_5", "dqn_ff")


def in_a_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_to_import_it_is_light_and_it_names_what_it_has() -> None:
    heavy = "[name for name in ('torch', 'gymnasium', 'pandas', 'pydantic') if name in sys.modules]"
    assert in_a_process(f"import sys, recollect; print({heavy}, 'train' in dir(recollect))") == "[] True"
    with pytest.raises(AttributeError, match="tarin"):
        _ = recollect.tarin


@pytest.mark.quick("import gymnasium; env = gymnasium.make('recollect:recollect/DarkRoom-v0')")
@pytest.mark.parametrize(
    "code",
    [
        "import gymnasium; env = gymnasium.make('recollect:recollect/DarkRoom-v0')",
        "import gymnasium, recollect; env = gymnasium.make('recollect/DarkRoom-v0', width=5, height=5)",
    ],
)
def test_gymnasium_makes_our_worlds_without_an_import_of_their_folder(code: str) -> None:
    assert in_a_process(f"{code}; print(env.reset(seed=0)[0].shape)") == "(2,)"


# ---------------------------------------------------------------------------------------------------------------- runs


@pytest.fixture
def made(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small run, trained from a folder two below the configuration."""
    notebooks = workdir / "notes" / "today"
    notebooks.mkdir(parents=True)
    monkeypatch.chdir(notebooks)
    return recollect.train(*OF, 1)


def test_a_run_is_that_of_the_commands_and_is_read_from_any_folder(
    made: Any, workdir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.stages import records

    assert made.folder == workdir and made.is_made and not list(Path().iterdir())
    assert {record.job.stage for record in _in(workdir, monkeypatch, lambda: records.records("smoke"))} == {
        "train",
        "evaluate",
    }
    before = paths.policy(*OF, 1).stat().st_mtime_ns
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    again = recollect.train(*OF, 1, folder=workdir)
    assert (workdir / paths.policy(*OF, 1)).stat().st_mtime_ns == before and Path.cwd().name.startswith("elsewhere")
    assert again.settings == made.settings and again.settings.method.hyperparameters.discount > 0
    assert set(again.settings.environment.evaluation.splits) <= set(again.scores["split"])
    assert (
        again.curve.index.name == "step" and again.curve.index.is_monotonic_increasing and "critic_loss" in again.curve
    )
    assert not recollect.run(*OF, 2, folder=workdir).is_made
    assert not list((workdir / paths.checkpoints(*OF, 1)).glob("step_*"))  # as behind the command


def _in(folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Any) -> Any:
    monkeypatch.chdir(folder)
    return ask()


def test_own_code_is_looked_for_where_the_commands_look(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECOLLECT_MINE")
    for place, seed in ((workdir, 3), (workdir / "lab", 4)):
        scale = place / "mine" / "config" / "scales" / "own.yaml"
        scale.parent.mkdir(parents=True)
        scale.write_text(f"extends: smoke\ndescription: a test\nseeds: [{seed}]\n")

    def seeds(run: Any) -> tuple[int, ...]:
        with run.inside():
            return scale_settings("own").seeds

    (workdir / "notes").mkdir()
    beside = _in(workdir / "notes", monkeypatch, lambda: recollect.run("own", *OF[1:]))
    monkeypatch.setenv("RECOLLECT_CONFIG", str(workdir / "config"))
    here = _in(workdir / "lab", monkeypatch, lambda: recollect.run("own", *OF[1:]))
    assert here.folder == workdir / "lab" and scale_settings("own").seeds == seeds(here) == (4,)
    monkeypatch.chdir(workdir / "notes")
    assert seeds(here) == seeds(recollect.run("own", *OF[1:], folder=workdir / "lab")) == (4,)
    monkeypatch.delenv("RECOLLECT_CONFIG")
    assert seeds(beside) == seeds(recollect.run("own", *OF[1:], folder=workdir / "lab")) == (3,)


def test_a_rollout_plays_the_evaluation_again(made: Any) -> None:
    final = made.scores[(made.scores["step"] == made.scores["step"].max()) & (made.scores["metric"] == "return")]
    final = final[final["split"] == "eval"]
    played = made.rollout().returns
    assert sorted(played["return"]) == pytest.approx(sorted(final["value"]))
    assert len(made.rollout(tasks=[0], episodes=2).returns) == 2
    with pytest.raises(UserError, match="no policy 'best' was kept of this run"):
        made.policy(checkpoint="best")
    assert len(made.rollout(tasks=np.int64(1), episodes=2).returns) == 2
    with pytest.raises(UserError, match="no task 99"):
        made.rollout(tasks=[99])
    assert len(made.rollout(tasks=(place for place in [0]), episodes=2).returns) == 2
    with pytest.raises(UserError, match="there are not 1000000000000 tasks"):
        made.rollout(tasks=10**12)
    with pytest.raises(UserError, match=r"there are not 99 tasks in the split (?s:.*)ask for at most \d+"):
        made.rollout(tasks=99)
    for wrong in (
        {"tasks": "0"},
        {"tasks": 1.0},
        {"tasks": [0.5]},
        {"tasks": True},
        {"tasks": np.array(1)},
        {"episodes": 1.5},
        {"episodes": "2"},
    ):
        with pytest.raises(UserError, match="are no whole numbers"):
            made.rollout(**wrong)


def test_a_changed_setting_is_another_run_and_a_wrong_name_is_said_at_once(workdir: Path) -> None:
    changed = recollect.run(*OF, changes={"discount": 0.5})
    assert changed.method == "dqn_ff.discount=0.5" and changed.settings.method.hyperparameters.discount == 0.5
    assert recollect.run(*OF[:2], "dqn_ff.discount=5e-1").method == changed.method
    assert recollect.run(*OF, changes={"discount": np.float64(0.5)}).method == changed.method
    sized = [recollect.run(*OF, changes={"head": widths}).method for widths in ([8, 8], np.array([8, 8]))]
    assert sized[0] == sized[1]
    assert len({changed, recollect.run(*OF, changes={"discount": 0.5}), recollect.run(*OF)}) == 2
    for wrong in ({"env": "tmaze_pasive_5"}, {"changes": {"discuont": 0.5}}):
        names = dict(zip(("scale", "env", "method"), OF, strict=True))
        with pytest.raises(UserError, match=r"discount|tmaze_passive"):
            recollect.run(**{**names, **wrong})
    with pytest.raises(UserError, match="dqn_ff"):
        _ = recollect.run(*OF, 3).scores


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seed": -1}, r"-1 is no seed\n.*\n.*from 0 to"),
        ({"seed": [0, "1"]}, r"'1' is no seed"),
        ({"seed": []}, r"\[\] is no seed"),
        ({"seed": [0, [1]]}, r"\[1\] is no seed"),
        ({"seed": np.array(1)}, r"array\(1\) is no seed"),
        ({"seed": b"01"}, r"b'01' is no seed"),
        ({"changes": {"discount": range(2)}}, r"range\(0, 2\) is no value of a setting\n.*changes: discount"),
        ({"changes": "context=3"}, r"'context=3' does not say which settings differ\n.*\n.*changes=\{"),
        ({"folder": "/nope/at/all"}, r"no such folder\n.*/nope/at/all"),
        ({"device": "gpu"}, r"unknown device 'gpu'\n.*\n.*cpu, cuda or auto"),
        ({"device": "cuda"}, r"a GPU is asked for and there is none"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work_in_the_words_of_the_commands(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=said):
        recollect.train(*OF, **wrong)
    assert not Path("results").exists() and not Path("/nope").exists()


def test_what_is_no_name_is_said_by_every_call(workdir: Path) -> None:
    figure = "radt_dark_room_10x10"
    for call, said in (
        (lambda: recollect.histories("smoke", 5), "5 is no name\n.*env"),  # type: ignore[arg-type]
        (lambda: recollect.histories(None, "dark_room_10x10"), "None is no name\n.*scale"),  # type: ignore[arg-type]
        (lambda: recollect.figure("smoke", [figure]), "is no name\n.*name"),  # type: ignore[arg-type]
        (lambda: recollect.figure(None, figure), "None is no name\n.*scale"),  # type: ignore[arg-type]
        (lambda: recollect.claims("demo", 5), "5 is no name\n.*figures"),  # type: ignore[arg-type]
        (lambda: recollect.claims("demo", [figure, 5]), "5 is no name\n.*figures"),  # type: ignore[list-item]
        (lambda: recollect.claims(None), "None is no name\n.*scale"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=said):
            call()


def test_histories_that_are_not_made_name_the_call_that_makes_them(workdir: Path) -> None:
    with pytest.raises(UserError, match=r"not made\n.*histories\.safetensors\n.*make=True\), or `snakemake data/"):
        recollect.histories("smoke", "dark_room_10x10")
    with pytest.raises(UserError, match=r"no source of histories\n.*tmaze_passive"):
        recollect.histories("smoke", "tmaze_passive_5")
    own = paths.histories("smoke", "tmaze_passive_5")  # what is there is read, whoever made it
    own.parent.mkdir(parents=True)
    own.write_bytes(b"nothing")
    with pytest.raises(UserError, match="no manifest"):
        recollect.histories("smoke", "tmaze_passive_5")


def test_scoring_a_policy_of_other_settings_warns(workdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    recollect.train(*OF, 0)
    evaluate(*OF, 0)
    assert "is not of today" not in caplog.text
    file = Path("config/methods/dqn_ff.yaml")
    file.write_text(file.read_text().replace("hyperparameters:", "hyperparameters:\n  discount: 0.5", 1))
    evaluate(*OF, 0)
    assert "the policy of 'dqn_ff' in" in caplog.text and "is not of today's settings" in caplog.text


def test_training_hands_on_the_device_and_whether_a_checkpoint_is_trusted(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | None, str, dict[str, bool]]] = []
    monkeypatch.setattr(api, "make_job", lambda job, device, told: asked.append((job.seed, device, told)))
    recollect.train(*OF, 3, trust_checkpoint=True)
    recollect.train(*OF, [1, 2], device="cpu")
    assert asked == [("3", "auto", {"trust_checkpoint": True}), ("1", "cpu", {}), ("2", "cpu", {})]
    judged = "variants: {same: {evaluation_only: true, evaluation: {episodes: 4}}}\n"
    Path("config/methods/other.yaml").write_text(f"base: {OF[2]}\ntitle: Other\n{judged}")
    recollect.train(*OF[:2], "other.same", 4, trust_checkpoint=True)
    assert asked[-1][2] == {}  # nothing is trained by its job


def test_a_run_has_names_and_one_seed_and_training_takes_several(workdir: Path) -> None:
    with pytest.raises(UserError, match=r"None is no name\n.*method"):
        recollect.run(*OF[:2], None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"\[0, 1\] is no seed[\s\S]*`recollect.train` takes a list"):
        recollect.run(*OF, [0, 1])  # type: ignore[arg-type]
    runs = recollect.train(*OF, seed=[0, np.int64(1), 0])
    assert [run.seed for run in runs] == [0, 1] and all(run.is_made for run in runs)
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        runs[0].policy(device="gpu")


def test_a_policy_plays_in_the_precision_of_the_evaluation(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # PyTorch's own default
    made.policy()
    assert not torch.backends.cudnn.allow_tf32


def test_what_a_run_lacks_is_named_with_the_call_that_makes_it(workdir: Path) -> None:
    run = recollect.run(*OF, 3)
    call = r"make it with `recollect.train\('smoke', 'tmaze_passive_5', 'dqn_ff', 3\)` or `snakemake results/smoke/"
    for ask, state in (
        (lambda: run.scores, "scored"), (lambda: run.curve, "trained"), (run.policy, "trained"), (run.rollout, "trained"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=rf"the run is not {state}\n.*\n.*{call}"):
            ask()


def test_a_curve_has_the_mean_of_each_evaluation_beside_what_was_logged(workdir: Path) -> None:
    rows = [
        scores_frame(step=[10, 20], split="train", metric="loss", value=[2.0, 1.0]),
        scores_frame(step=10, split="eval", task=[0, 1], episode=0, metric="return", value=[1.0, 4.0]),
        scores_frame(step=20, split="train", task=0, episode=[0, 1], metric="return", value=[5.0, 8.0]),
    ]
    table = concat_scores(rows).assign(env=OF[1], method=OF[2], seed=3)
    write_table(paths.train_table(*OF, 3), table, kind="train")
    curve = recollect.run(*OF, 3).curve
    assert curve.index.tolist() == [10, 20] and curve["loss"].tolist() == [2.0, 1.0]
    assert curve["eval return"].dropna().to_dict() == {10: 2.5}
    assert curve["train return"].dropna().to_dict() == {20: 6.5}


def test_a_damaged_file_is_deleted_and_made_by_the_same_call(made: Any, workdir: Path) -> None:
    for path, ask in ((paths.scores(*OF, 1), lambda: made.scores), (paths.policy(*OF, 1), made.policy)):
        (workdir / path).write_bytes((workdir / path).read_bytes()[:-1])
        with pytest.raises(UserError, match="delete it and then make it with `recollect"):
            ask()


def test_without_a_configuration_it_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recollect import folders

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECOLLECT_CONFIG", raising=False)
    monkeypatch.setattr(folders, "__file__", str(tmp_path / "site-packages" / "recollect" / "api.py"))
    with pytest.raises(UserError, match="RECOLLECT_CONFIG"):
        recollect.run(*OF)


# ------------------------------------------------------------------------------------------------------------ rollouts


class Drawing:
    """A policy that draws its actions, of each row by its own seed."""

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        self.draws = [np.random.default_rng(int(seed)) for seed in seeds_B]

    def reset(self, mask_B: np.ndarray) -> None:
        pass

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        return np.array([draw.integers(self.actions) for draw in self.draws])

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


@pytest.mark.parametrize(("protocol", "episodes"), [("in_context", 3), ("episodic", 40)])
def test_a_rollout_of_some_tasks_has_the_returns_that_the_evaluation_scores(protocol: Any, episodes: int) -> None:
    judged = EvaluationSettings(protocol=protocol, episodes=episodes)
    options = {"width": 4, "height": 4, "horizon": 30}
    environment = EnvironmentSettings(name="room", world="dark_room", options=options, evaluation=judged)
    listed = registry.tasks("dark_room", options, "eval")
    evaluation: Any = {"in_context": in_context, "episodic": episodic}[protocol]
    scores = evaluation.evaluate(Drawing(5), environment, method="m", seed=7, step=0)
    scores = scores[scores["metric"] == "return"]
    tasks = [listed[0], listed[2]]
    if protocol == "in_context":
        arrays = rollouts.in_context(Drawing(5), environment, tasks, None, seed=7)
    else:
        arrays = rollouts.episodic(Drawing(5), environment, tasks, None, seed=7, listed=len(listed))
    played = recollect.Histories(arrays)
    played.validate()
    for task in tasks:
        wanted = scores[scores["task"] == task.index]["value"]
        assert played.returns.query(f"task == {task.index}")["return"].tolist() == wanted.tolist()
    assert len(played.returns) == len(scores[scores["task"].isin([0, listed[2].index])])


# ----------------------------------------------------------------------------------------------------------- histories

EVEN = {"world": "dark_room", "options": {"width": 3, "height": 3, "horizon": 4, "final_step_reward": "zero"}}


def lived() -> dict[str, np.ndarray]:
    """Two tasks: of the first two whole episodes and a part of a third, of the second one whole episode."""
    done = np.array([0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1], bool)
    return {
        "observation": np.arange(22, dtype=np.int8).reshape(11, 2) % 3,
        "action": np.arange(11, dtype=np.int8) % 5,
        "reward": np.linspace(0, 1, 11, dtype=np.float32),
        "done": done,
        "task": np.array([0] * 7 + [1] * 4, np.int32),
        "episode": np.array([0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0], np.int32),
    }


def test_histories_are_arrays_and_tables() -> None:
    found = recollect.Histories(lived())
    table = found.to_pandas()
    assert list(table) == ["task", "episode", "step", "observation_0", "observation_1", "action", "reward", "done"]
    assert table["step"].tolist() == [0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 3]
    assert found.returns["length"].tolist() == [4, 2, 4] and found.returns["task"].tolist() == [0, 0, 1]


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    yield tmp_path / "minari"


def of_a_room(arrays: dict[str, np.ndarray]) -> Any:
    environment = EnvironmentSettings(name="room", **EVEN)
    return recollect.Histories(arrays, environment=environment, split="train")


def test_a_minari_dataset_gives_the_same_arrays_again(datasets: Path) -> None:
    dataset = of_a_room(lived()).to_minari("recollect/room-v0", author="a test")
    again = recollect.from_minari("recollect/room-v0")
    again.validate()
    for name, array in lived().items():
        assert again.arrays()[name].dtype == array.dtype and np.array_equal(again.arrays()[name], array), name
    assert dataset.total_episodes == 4 and len(dataset[0].observations) == 5
    assert [bool(one.truncations[-1]) for one in dataset] == [True, False, False, True]  # the horizon is 4
    assert dataset.recover_environment().reset(seed=0)[0].shape == (2,)


def test_a_dataset_is_never_overwritten_nor_half_written(datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    of_a_room(lived()).to_minari("room-v0")
    with pytest.raises(UserError, match="already"):
        of_a_room(lived()).to_minari("room-v0")

    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(minari.MinariDataset, "__init__", broken)
    with pytest.raises(OSError, match="no space"):
        of_a_room(lived()).to_minari("other-v0")
    assert [path.name for path in datasets.iterdir()] == ["room-v0"]


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere-v0", "minari download nowhere-v0"), ("a b", "cannot be the name")]
)
def test_a_dataset_that_is_not_there_is_said(datasets: Path, name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        recollect.from_minari(name)


def test_histories_come_from_a_dataset_as_a_source_and_what_cannot_be_of_the_world_is_refused(datasets: Path) -> None:
    from recollect.sources import minari as source

    arrays = lived()
    of_a_room(arrays).to_minari("room-v0")
    chosen = source.Hyperparameters(dataset="room-v0")
    tasks = registry.tasks(EVEN["world"], EVEN["options"], "train")[:2]
    made = source.generate(EVEN["world"], EVEN["options"], tasks, chosen, seed=0)
    for name in ("observation", "action", "reward", "done", "episode"):
        assert np.array_equal(made[name], arrays[name]), name
    assert source.files(EVEN["world"], tasks, chosen) == [datasets / "room-v0"]
    with pytest.raises(UserError, match="has the tasks 0, the dataset 0, 1"):
        source.generate(EVEN["world"], EVEN["options"], tasks[:1], chosen, seed=0)
    with pytest.raises(UserError, match="4 steps, the environment's have at most 3"):
        source.generate(EVEN["world"], {**EVEN["options"], "horizon": 3}, tasks, chosen, seed=0)
    of_a_room({**arrays, "observation": arrays["observation"] + np.int8(2)}).to_minari("far-v0")
    with pytest.raises(UserError, match="outside of the world"):
        source.generate(EVEN["world"], EVEN["options"], tasks, source.Hyperparameters(dataset="far-v0"), seed=0)


def test_a_stranger_s_dataset_is_a_source_of_a_gymnasium_environment(datasets: Path) -> None:
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    from recollect.sources import minari as source

    env, buffers = gymnasium.make("CartPole-v1"), []
    for seed in range(3):
        seen, got = [env.reset(seed=seed)[0]], []
        while True:
            observation, reward, terminated, _, _ = env.step(seed % 2)
            seen.append(observation)
            got.append(float(reward))
            if terminated:
                break
        over = [False] * (len(got) - 1) + [True]
        acts = [seed % 2] * len(got)
        buffers.append(EpisodeBuffer(None, seed, None, seen, acts, got, over, [False] * len(got)))
    with pytest.warns(UserWarning):
        minari.create_dataset_from_buffers("cartpole/constant-v0", buffers, env=env)
    options = {"id": "CartPole-v1"}
    chosen = source.Hyperparameters(dataset="cartpole/constant-v0")
    made = source.generate("gymnasium", options, registry.tasks("gymnasium", options, "train"), chosen, seed=0)
    found = recollect.Histories(made)
    found.validate()
    assert len(found.returns) == 3 and found.action.dtype == np.int8 and found.reward.dtype == np.float32
    assert np.allclose(found.observation[0], buffers[0].observations[0])
    (datasets / "cartpole" / "constant-v0" / "data" / "main_data.hdf5").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        source.generate("gymnasium", options, registry.tasks("gymnasium", options, "train"), chosen, seed=0)


# ------------------------------------------------------------------------------------------------------------ notebook


def test_a_notebook_shows_a_bar_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, element: str) -> None:
            shown.append(element)

    def display(element: str, display_id: bool) -> Handle:
        shown.append(element)
        return Handle()

    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    with Progress(10, "train <x>") as progress:
        progress.update(10, loss=0.5)
    assert 'value="0" max="10"' in shown[0] and "train &lt;x&gt;" in shown[0]
    assert 'value="10" max="10"' in shown[-1] and "loss 0.5" in shown[-1]
    assert capsys.readouterr().err == ""
    monkeypatch.delitem(sys.modules, "IPython")
    with Progress(10, "train") as progress:
        progress.update(10)
    assert "train: 10/10" in capsys.readouterr().err
