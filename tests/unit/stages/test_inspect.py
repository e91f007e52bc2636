"""Inspecting a run: the trace shows the very episodes that were scored, and says truly what was read in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from recollect.amago import amago
from recollect.amago.network import world_shape
from recollect.artifacts.scores import scores_frame
from recollect.artifacts.sealed import read_json, read_table, verify, write_arrays, write_table
from recollect.cli import app
from recollect.common.contract import Traced, facts_of
from recollect.common.traces import Trace
from recollect.environments import registry
from recollect.evaluation.in_context import play_in_context
from recollect.evaluation.tracing import EPISODES, MAPS_PER_EPISODE, Recorder, chosen_tasks, map_spacing, trace
from recollect.figures.spec import RANDOM_MODEL, SMOKE_WORDS
from recollect.radt.embedders import DomainSpecificEmbedder
from recollect.radt.episodic_memory import EpisodicSettings
from recollect.radt.radt import RetrievalPolicy
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, resolve
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, ReturnSettings
from recollect.stages import paths
from recollect.stages.evaluate import evaluate
from recollect.stages.figure import figure
from recollect.stages.inspect import inspect
from recollect.stages.page import _warning, page
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

ROOM = "dark_room_10x10"
SMOKE = ("smoke", ROOM)


def write_run(method: str, seed: int = 0) -> None:
    """A run at smoke scale that was never trained: weights scaled up, so that what it sees and reads decides."""
    settings = resolve(*SMOKE, method, seed)
    module = algorithm_module(settings.method.algorithm, where=method)
    facts = facts_of(settings.environment)
    network = module.build_network(settings, facts)
    arrays = {f"network/{name}": 4 * value.numpy() for name, value in network.state_dict().items()}
    if method == "radt":
        embedder = algorithm_module("dt", where="dt").build_network(resolve(*SMOKE, "dt", 0), facts)
        own = {f"embedder/network/{name}": value.numpy() for name, value in embedder.state_dict().items()}
        arrays |= own
    write_arrays(paths.policy(*SMOKE, method, seed), arrays, kind="policy")
    table = scores_frame(env=ROOM, method=method, seed=seed, step=60, split="train", metric="loss", value=1.0)
    write_table(paths.train_table(*SMOKE, method, seed), table, kind="train")


@pytest.fixture
def runs(workdir: Path) -> Path:
    """A working directory in which policies draw their actions, so that untrained ones get about."""
    for method in ("dt", "ad", "radt"):
        config = workdir / f"config/methods/{method}.yaml"
        config.write_text(
            config.read_text().replace("\nhyperparameters:\n", "\nhyperparameters:\n  selection: sample\n")
        )
        write_run(method)
    return workdir


def opened(method: str, seed: int = 0) -> Trace:
    return Trace.open(paths.trace(*SMOKE, method, seed))


def traced(policy: Any, environment: EnvironmentSettings, tasks: list[int] | None = None) -> Trace:
    split = environment.evaluation.splits[0]
    tasks = chosen_tasks(environment, split, ()) if tasks is None else tasks
    return trace(policy, environment, about={"method": "m"}, split=split, tasks=tasks, seed=0)


# ------------------------------------------------------------------------------------------------- what is traced


@pytest.mark.parametrize("method", ["dt", "ad", "radt"])
@pytest.mark.quick("dt")
def test_a_trace_shows_the_very_episodes_that_were_scored(runs: Path, method: str) -> None:
    evaluate(*SMOKE, method, 0)
    inspect(*SMOKE, method, 0)
    scores = read_table(paths.scores(*SMOKE, method, 0))
    found = opened(method)
    assert found.tasks == [0, 6, 13] and found.run == (ROOM, method, 0) and len(found.played) == 3 * 3 * 100
    for task, returns in zip(found.tasks, found.returns_KE, strict=True):
        scored = scores[(scores["task"] == task) & (scores["split"] == "eval")].sort_values("episode")
        assert scored["value"].tolist() == returns.tolist()
    assert scores["value"].max() > 0
    found.played.validate(actions=5)
    assert ("retrieved_episode" in found.facts) == ("attention" in found.maps) == (method == "radt")
    assert ("return_to_go" in found.facts) == (method != "ad")


@pytest.mark.slow
def test_steps_rewards_and_cells_follow_the_rules_of_the_room(runs: Path) -> None:
    inspect(*SMOKE, "dt", 0, tasks=[3, 17])
    found = opened("dt")
    moves = np.array([(-1, 0), (0, 1), (1, 0), (0, -1), (0, 0)])
    for task in found.about["tasks"]:
        goal = task["scene"]["marks"][0][1:]
        assert task["name"] == f"goal_x{goal[1]}_y{goal[0]}"
        for episode in range(3):
            steps = found.steps(task["index"], episode)
            cell, action = np.array(found.cell_N2[steps], int), found.played.action[steps]
            reward, aim = found.played.reward[steps], found.facts["return_to_go"][steps]
            after = np.clip(cell + moves[action], 0, 9)
            assert cell[0].tolist() == [0, 0] and (cell[1:] == after[:-1]).all()
            expected = (after == goal).all(1) & (np.arange(100) < 99)  # the last step does not pay
            assert (reward == expected).all()
            assert (np.diff(aim) == -reward[:-1]).all() and aim[0] == round(float(aim[0]))


@pytest.mark.parametrize("method", ["dt", "ad", "radt"])
def test_watching_changes_nothing(tiny: Any, method: str) -> None:
    def actions_of(policy: Any, watch: bool) -> np.ndarray:
        act, taken = policy.act, []
        policy.act = lambda *seen: taken.append(act(*seen).copy()) or taken[-1]
        recorder = Recorder(policy, np.array([0, 2])) if watch else None
        play_in_context(policy, here.environment, tasks, seed=0, watch=recorder)
        return np.array(taken)

    here = tiny(episodes=4)
    tasks = registry.tasks("dark_room", here.environment.options, "eval")
    chosen = {"acting": EpisodicSettings(select=2), "retrieve_every": 3} if method == "radt" else {}
    settings = here.settings(method, selection="sample", **chosen)
    plain, watched = (actions_of(here.policy(settings), watch) for watch in (False, True))
    np.testing.assert_array_equal(plain, watched)
    assert len(np.unique(plain)) > 2


@pytest.mark.slow
def test_what_is_read_is_an_own_earlier_episode(tiny: Any) -> None:
    here = tiny(episodes=5)
    settings = here.settings("radt", selection="sample", acting=EpisodicSettings(select=2), retrieve_every=3)
    found = traced(here.policy(settings), here.environment)
    episode, which = found.played.episode[:, None], found.facts["retrieved_episode"]
    first, end = found.facts["retrieved_first"], found.facts["retrieved_end"]
    read = which >= 0
    assert which.shape[1] == 2 and not read[found.played.episode == 0].any() and read[found.played.episode > 0].all()
    assert (which < episode)[read].all() and (first >= 0)[read].all() and (first < end)[read].all() and end.max() == 12
    assert (end - first).max() == 8
    task_place = np.searchsorted(found.tasks, found.played.task)
    returns = found.returns_KE[np.repeat(task_place[:, None], 2, 1), which]
    assert (returns == found.facts["retrieved_total_return"])[read].all() and len(np.unique(returns[read])) > 1
    assert (np.diff(np.where(read, returns, 0), axis=1) >= 0).all()  # ascending by return
    for name in ("similarity", "score"):
        assert (np.isfinite(found.facts[f"retrieved_{name}"]) == read).all()
    assert np.abs(found.facts["retrieved_similarity"][read]).max() <= 1.001
    kept = found.played.timestep % 3 > 0  # between two retrievals the window stays
    for name, values in found.facts.items():
        if name.startswith("retrieved"):
            np.testing.assert_array_equal(values[kept], values[np.flatnonzero(kept) - 1], err_msg=name)


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
def test_attention_is_that_of_the_token_that_acts(tiny: Any, tokens: str) -> None:
    here = tiny(tokens=tokens, episodes=3)
    settings = here.settings("radt", selection="sample", acting=EpisodicSettings(select=2))
    policy = here.policy(settings)
    found = traced(policy, here.environment, [1])
    attention = found.maps["attention"].astype(np.float64)
    assert attention.shape == (len(found.played), 2, 16, 1 if tokens == "merged" else 4)
    assert found.map_row.tolist() == list(range(len(found.played)))
    read = found.played.episode > 0
    assert not attention[~read].any()
    np.testing.assert_allclose(attention[read].sum((2, 3)), 1, atol=2e-3)
    first, end = found.facts["retrieved_first"][read], found.facts["retrieved_end"][read]
    real = (end[:, :, None] + np.arange(-8, 0) >= first[:, :, None]).reshape(-1, 16)
    assert not attention[read].sum((1, 3))[~real].any() and (attention[read].sum((1, 3))[real] > 0).all()
    # The last step once more, through the whole forward: the weights that its layers report.
    network, rows = policy.network, torch.tensor([1])
    window, context = policy.window(policy.chosen.context).select(rows), policy.context.select(rows)
    with torch.no_grad():
        _, maps = network.transformer(
            network.embed(window),
            mask_BT=network.token_mask(window.mask),
            return_attention=True,
            **network.reading(context, policy.has_context_B[rows]),
        )
    at = -1 if tokens == "merged" else -3  # state, return-to-go (predicts), action, reward
    expected = torch.stack([weights[0, :, at].mean(0) for weights in maps.cross_BHTS]).reshape(2, 16, -1)
    np.testing.assert_allclose(attention[-1], expected.numpy(), atol=1e-3)


@pytest.mark.slow
def test_episodes_of_different_lengths_stay_apart(tiny: Any) -> None:
    """MazeRunner ends an episode at its last goal: rows of a batch are at different steps and episodes."""
    environment = EnvironmentSettings(
        name="maze",
        world="maze_runner",
        options={"size": 7, "horizon": 30, "most_goals": 1},
        returns=ReturnSettings(low=0, high=1, bins=2, target_mean=1, target_std=0),
        evaluation=EvaluationSettings(episodes=6),
    )
    here = tiny()
    here.environment, linear = environment, {"observation_embedding": "linear"}
    settings = here.settings("radt", selection="sample", network=linear)
    seen_by = here.network(here.settings("dt", network=linear))
    embedder = DomainSpecificEmbedder(seen_by, settings.method.memory, "float32")
    network = here.network(settings, scale=1.0)
    found = traced(RetrievalPolicy(network, embedder, settings), environment, list(range(20)))
    found.played.validate(actions=5)
    table = found.played.episodes
    assert len(table) == 20 * 6 and table.length.max() == 30 and table.length.min() < 30
    assert (found.returns_KE[table.length.reshape(20, 6) < 30] == 1).all()
    tasks = registry.tasks("maze_runner", environment.options, "eval")
    scored = play_in_context(RetrievalPolicy(network, embedder, settings), environment, tasks, seed=0)
    assert (found.returns_KE == scored.return_RE[found.tasks]).all()
    for task in found.about["tasks"]:
        walls = {tuple(cell) for cell in task["scene"]["walls"]}
        cells = found.cell_N2[found.played.task == task["index"]].tolist()
        assert walls and not walls & {tuple(cell) for cell in cells}
    which = found.facts["retrieved_episode"][:, 0]
    length = table.length.reshape(20, 6)[np.searchsorted(found.tasks, found.played.task), which]
    assert (found.facts["retrieved_end"][:, 0] <= length)[which >= 0].all()


class Walker:
    """Walks around; what it says of a step is which call of `act` it was."""

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        self.count_B = np.zeros(len(seeds_B), np.int64)

    def reset(self, mask_B: np.ndarray) -> None:
        """Nothing to forget."""

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.count_B += 1
        return self.count_B % 5

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


class Turner(Walker):
    """A walker in a T-Maze, which has no action to stay."""

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        return super().act(observation_BD, reward_B, done_B) % 4


class Talker(Walker):
    """A walker that can be traced."""

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {"call": self.count_B[rows_N].astype(np.int32)}

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {"call": self.count_B[rows_N][:, None] + 1000 * rows_N[:, None]}


@pytest.mark.parametrize(("length", "between"), [(1, 1), (100, 1), (101, 2), (200, 2), (201, 4), (10_000, 128)])
def test_how_far_maps_are_apart_follows_from_the_episode_and_not_from_the_longest_one(
    length: int, between: int
) -> None:
    assert map_spacing(np.array([length])).tolist() == [between]
    due = [step for step in range(length) if step % int(map_spacing(np.array(step + 1))) == 0]
    assert set(range(0, length, between)) <= set(due)  # what stays was made while nobody knew when it ends


def test_long_episodes_have_maps_of_evenly_spaced_steps_only() -> None:
    horizon = 2 * MAPS_PER_EPISODE + 5
    options = {"width": 4, "height": 3, "horizon": horizon}
    environment = EnvironmentSettings(
        name="room", world="dark_room", options=options, evaluation=EvaluationSettings(episodes=2)
    )
    found = traced(Talker(), environment, [0, 2])
    assert found.facts["call"].tolist() == 2 * list(range(1, 2 * horizon + 1))
    assert set(found.played.timestep[found.map_row].tolist()) == set(range(0, horizon, 4))  # 103 with every second step
    assert (np.diff(found.map_row) > 0).all() and len(found.map_row) == 2 * 2 * (-(-horizon // 4))
    row = 2 * (found.played.task[found.map_row] > 0)
    assert (found.maps["call"][:, 0] == found.facts["call"][found.map_row] + 1000 * row).all()


def test_a_policy_that_says_nothing_of_itself_is_traced_too() -> None:
    environment = EnvironmentSettings(name="room", world="dark_room", options={"width": 4, "height": 3})
    found = traced(Walker(), environment)
    assert not isinstance(Walker(), Traced)
    assert (
        found.facts == found.maps == {} and len(found.map_row) == 0 and len(found.played) == 40 * 12 * len(found.tasks)
    )


@pytest.mark.quick("dqn_gpt", "dqn_lstm")
@pytest.mark.parametrize("method", ["dqn_gpt", "dqn_lstm", "amago_transformer", "amago_ff"])
def test_an_episodic_evaluation_is_traced_as_it_was_scored(workdir: Path, method: str) -> None:
    maze = ("smoke", "tmaze_active_5", method, 0)
    settings = resolve(*maze)
    module = algorithm_module(settings.method.algorithm, where=method)
    if module is amago:
        network = amago.make_network(settings.method.hyperparameters, world_shape(settings.environment), seed=0)
        arrays = network.policy_arrays()
    else:
        network = module.make_network(settings.method.hyperparameters, facts_of(settings.environment), seed=0)
        arrays = {name: 4 * value.numpy() for name, value in network.state_dict().items()}
    write_arrays(paths.policy(*maze), arrays, kind="policy")
    table = scores_frame(env=maze[1], method=method, seed=0, step=60, split="train", metric="loss", value=1.0)
    write_table(paths.train_table(*maze), table, kind="train")
    evaluate(*maze)
    inspect(*maze)
    found, scores = Trace.open(paths.trace(*maze)), read_table(paths.scores(*maze))
    assert found.tasks == [0] and len(found.played) == EPISODES * 8
    scored = scores[scores["split"] == "eval"].sort_values("episode")["value"].tolist()
    assert found.returns_KE[0].tolist() == pytest.approx(scored[:EPISODES])
    assert found.facts["outputs"].shape == (EPISODES * 8, 4)
    if module is not amago:  # which draws its actions
        assert (found.facts["outputs"].argmax(1) == found.played.action).all()
    assert found.cell_N2 is not None and (found.cell_N2[::8] == [1, 1]).all()  # each begins one step before the sign
    assert set(found.maps) == ({"history_attention"} if method in ("dqn_gpt", "amago_transformer") else set())
    if found.maps:
        weights = found.maps["history_attention"].astype(np.float64)  # the last slot is the present step
        read = (weights > 0).sum(2) == found.played.timestep[found.map_row, None] + 1
        assert read.all() and np.abs(weights.sum(2) - 1).max() < 2e-3


def test_where_the_goal_of_each_episode_stands_is_traced_too() -> None:
    evaluation = EvaluationSettings(protocol="episodic", episodes=12)
    maze = EnvironmentSettings(name="maze", world="tmaze", options={"length": 3}, evaluation=evaluation)
    found = traced(Turner(), maze)
    begins = found.about["tasks"][0]["begins"]
    assert len(begins) == EPISODES
    side_E = found.played.observation[found.played.episodes.start, 1]  # the sign is seen at the first step
    goal_E = [dict((name, row) for name, row, _ in episode["marks"])["goal"] for episode in begins]
    assert (goal_E == 1 - side_E).all() and len(set(goal_E)) == 2
    assert [episode["faint"][0][1] for episode in begins] == (1 + side_E).tolist()
    options = {"size": 3, "rollout_steps": 30, "episode_steps": 10}
    room = EnvironmentSettings(name="room", world="meta_key_door", options=options, evaluation=evaluation)
    found = traced(Walker(), room)
    assert found.cell_N2 is not None
    for episode, begun in enumerate(found.about["tasks"][0]["begins"]):
        steps = found.steps(0, episode)
        paid = np.flatnonzero(found.played.reward[steps][:-1])
        (key,) = [cell for name, *cell in begun["marks"] if name == "key"]
        if len(paid):
            assert found.cell_N2[steps][paid[0] + 1].tolist() == key
    plain = EnvironmentSettings(name="room", world="dark_room", options={"width": 4, "height": 3})
    assert traced(Walker(), plain).about["tasks"][0]["begins"] is None  # a task's goal stays where it is


# ------------------------------------------------------------------------------------------------- the artifacts


@pytest.mark.slow
def test_a_trace_and_its_page_are_of_today_whatever_tasks_they_show(runs: Path) -> None:
    of = (*SMOKE, "ad")
    inspect(*of, 0, tasks=[2])
    page(*of, 0)
    jobs = [Job(stage, *of, "0") for stage in ("inspect", "page")]
    assert all(STAGES[job.stage].is_made(job) for job in jobs)
    inspect(*of, 0, tasks=[3])
    assert [STAGES[job.stage].is_made(job) for job in jobs] == [True, False]  # the page is of the other trace


def test_a_page_says_where_its_numbers_mean_nothing(workdir: Path) -> None:
    random = "helm.language_model=random-transfo-xl"
    assert _warning(*SMOKE, "dt") == SMOKE_WORDS
    assert _warning("demo", "mini_grid_MemoryS7", random) == RANDOM_MODEL
    assert _warning("demo", "mini_grid_MemoryS7", "helm") == _warning("demo", ROOM, "dt") == ""


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_and_says_what_it_was_made_of(runs: Path) -> None:
    target, contents = paths.trace(*SMOKE, "radt", 0), []
    for _ in range(2):
        inspect(*SMOKE, "radt", 0, tasks=[2])
        contents.append(target.read_bytes())
    assert contents[0] == contents[1]
    manifest = verify(target, kind="trace")
    made_of = manifest["provenance"]
    assert list(made_of["inputs"]) == [paths.policy(*SMOKE, "radt", 0).as_posix()]
    assert made_of["tasks"] == [2] and made_of["split"] == "eval" and made_of["seed"] == 0


@pytest.mark.slow
def test_a_run_is_inspected_from_the_command_line(runs: Path, run_recollect: Callable[..., Any]) -> None:
    of = ["--scale", "smoke", "--env", ROOM, "--method", "radt", "--seed", "0"]
    done = run_recollect("inspect", *of, "--task", "0", "--task", "7", "--device", "cpu", "--threads", "1", cwd=runs)
    assert done.returncode == 0, done.stderr
    assert opened("radt").tasks == [0, 7]
    inspect(*SMOKE, "ad", 0, tasks=[7, 0])
    assert CliRunner().invoke(app, ["page", *of]).exit_code == 0
    html = paths.page(*SMOKE, "radt", 0).read_text()
    assert "RA-DT on Dark-Room 10×10" in html and "SMOKE: wiring test" in html
    verify(paths.page(*SMOKE, "radt", 0), kind="page")
    page(*SMOKE, "ad", 0)
    for name, methods in (("radt_visits", "[radt, ad]"), ("radt_attention", "[radt]")):
        config = runs / f"config/figures/{name}.yaml"
        config.write_text(re.sub(r"methods: .*", f"methods: {methods}\nseeds: [0]", config.read_text()))
        figure("smoke", name)
        manifest = read_json(paths.figure("smoke", name, ".json"))
        assert manifest["wiring_test"] and all(
            item["path"].endswith("trace.safetensors") for item in manifest["inputs"]
        )
        assert len(pd.read_csv(paths.figure("smoke", name, ".csv"))) > 0


# ------------------------------------------------------------------------------------------------------ bad input


def test_a_task_that_is_not_there_stops_before_any_work(runs: Path) -> None:
    with pytest.raises(UserError, match=r"no task 20 in split 'eval'(.|\n)*name tasks from 0 to 19"):
        inspect(*SMOKE, "dt", 0, tasks=[0, 20])
    with pytest.raises(UserError, match="did you mean 'eval'"):
        inspect(*SMOKE, "dt", 0, split="evla")
    assert not paths.trace(*SMOKE, "dt", 0).exists()


def test_a_run_without_its_policy_is_refused(runs: Path) -> None:
    with pytest.raises(UserError, match="an input is missing"):
        inspect(*SMOKE, "dt", 1)


def test_a_damaged_or_foreign_trace_is_refused(runs: Path) -> None:
    with pytest.raises(UserError, match="missing"):
        page(*SMOKE, "dt", 0)
    inspect(*SMOKE, "dt", 0, tasks=[1])
    path = paths.trace(*SMOKE, "dt", 0)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="corrupted"):
        page(*SMOKE, "dt", 0)
    write_arrays(path, {"reward": np.zeros(3, np.float32)}, kind="trace")
    with pytest.raises(UserError, match="does not say what it is about"):
        page(*SMOKE, "dt", 0)
    assert not paths.page(*SMOKE, "dt", 0).exists()
