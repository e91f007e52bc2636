"""A world of continuous actions goes through every stage, in a stand-in for DMControl; the real packages when asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_suite
import fast_yaml
import numpy as np
import pandas as pd
import pytest
import torch

from recollect.artifacts.inputs import Inputs
from recollect.artifacts.sealed import read_arrays, read_table
from recollect.common import language_models
from recollect.common.contract import facts_of
from recollect.common.histories import Histories
from recollect.environments import registry
from recollect.evaluation.in_context import play_in_context
from recollect.radt import actions, dt
from recollect.radt.supervised import ExperienceStore, open_histories
from recollect.radt.windows import WindowSampler
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, environment_settings, resolve
from recollect.settings.schema import LanguageModelSettings
from recollect.stages import paths
from recollect.stages.embed import embed
from recollect.stages.evaluate import evaluate
from recollect.stages.generate import generate
from recollect.stages.index import index
from recollect.stages.inputs import playing_inputs
from recollect.stages.train import train

ENV, EPISODES, HORIZON = "dm_control", 3, 12
TRAINED = ["walker-run", "cartpole-swingup", "finger-spin"]  # 6, 1 and 2 actions
LEARNING: dict[str, Any] = {
    "network": {
        "width": 16,
        "layers": 1,
        "heads": 2,
        "tokens": "merged",
        "padding": "hidden",
        "positions": 256,
        "timesteps": 16,
    },
    "acting_dropout": False,
    "optimisation": {"steps": 6, "batch_size": 8, "warmup": 2},
    "context": HORIZON,
}


def bins(selection: str) -> dict[str, Any]:
    return {**LEARNING, "network": {**LEARNING["network"], "action_bins": 16}, "selection": selection}


def context(**more: int) -> dict[str, Any]:
    return {ENV: {"hyperparameters": {"context": HORIZON, **more}}}


CUT = {"stride": 3, "past": 3, "future": 3, "pooled_steps": 3, "key_context": 8}
SCALE = {
    "description": "Three toy tasks of 1, 2 and 6 actions.",
    "seeds": [0],
    "environments": {
        ENV: {
            "options": {"horizon": HORIZON, "only": [*TRAINED, "reacher-hard", "walker-walk"]},
            "source": {"algorithm": "source_policies", "hyperparameters": {"transitions": 120}},
            "evaluation": {"episodes": EPISODES},
        }
    },
    "methods": {
        "dt": {"hyperparameters": LEARNING},
        "ad": {"hyperparameters": bins("sample"), "environments": context(episodes_back=2)},
        "dpt": {"hyperparameters": {**LEARNING, "queries": 2}, "environments": context()},
        "radt": {
            "memory": {"embedder": "method:dt", "embedder_seed": 0},
            "hyperparameters": LEARNING,
            "environments": {ENV: {"memory": CUT, "hyperparameters": {"retrieve_every": 3}}},
        },
        "radt_agnostic": {"memory": {"embedder": "lm:minilm", "layers": 1, "max_entries_per_task": 2, "tokens": "merged"}},
    },
}  # fmt: skip


@pytest.fixture
def generated(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the scale `mini` and the histories of its tasks, and the fake package."""
    fake_suite.install(monkeypatch)
    (workdir / "config/scales/mini.yaml").write_text(fast_yaml.dump(SCALE))
    generate("mini", ENV)
    return workdir


@pytest.fixture
def small_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random language model in place of the packaged one."""
    real = language_models.load_language_model

    def load(settings: LanguageModelSettings, **options: Any) -> Any:
        return real(LanguageModelSettings(source="random"), **options)

    monkeypatch.setattr("recollect.radt.embedding.load_language_model", load)


def policy_of(method: str) -> Any:
    settings = resolve("mini", ENV, method, 0)
    module = algorithm_module(settings.method.algorithm, where=method)
    return module.load_policy(
        settings,
        read_arrays(paths.policy("mini", ENV, method, 0), kind="policy"),
        Inputs(**playing_inputs("mini", ENV, method)),
    )


@pytest.mark.slow
def test_every_method_learns_from_and_plays_continuous_actions(generated: Path, small_language_model: None) -> None:
    histories = Histories.open(paths.histories("mini", ENV))
    assert histories.action.dtype == np.float32 and histories.action.shape == (3 * 120, 6)
    environment = environment_settings("mini", ENV)
    tasks = registry.tasks(environment.world, environment.options, "eval")
    for method in ("dt", "ad", "dpt", "radt", "radt_agnostic"):
        if method.startswith("radt"):
            embed("mini", ENV, method)
            index("mini", ENV, method)
        train("mini", ENV, method, 0)
        evaluate("mini", ENV, method, 0)
        frame: pd.DataFrame = read_table(paths.scores("mini", ENV, method, 0), kind="scores")
        assert frame["metric"].value_counts().to_dict() == {"return": 2 * EPISODES, "data_normalised": 2 * EPISODES}
        returns = frame[frame["metric"] == "return"]
        assert returns["value"].between(0, HORIZON).all() and returns["value"].nunique() > 1, method
        alone = play_in_context(policy_of(method), environment, [tasks[1]], seed=0).return_RE
        # To rounding: a matrix product of two rows is not to the bit that of one, and the actions are its numbers.
        assert returns[returns["task"] == 1]["value"].tolist() == pytest.approx(alone[0].tolist(), abs=1e-4), method


@pytest.mark.parametrize("method", ["dt", "ad"])
def test_acting_sees_what_training_sees(generated: Path, method: str) -> None:
    """The action that is logged while acting has no value in dimensions of other tasks, as in training, and what the
    network predicts in an episode is what it predicts for the whole window at once.
    """
    train("mini", ENV, method, 0)
    policy, environment = policy_of(method), environment_settings("mini", ENV)
    policy.selection = "greedy"
    tasks = registry.tasks(environment.world, environment.options, "eval")  # reacher-hard 2 actions, walker-walk 6
    world = registry.make_world(environment.world, environment.options, tasks, np.arange(2, dtype=np.uint64))
    policy.start(np.arange(2, dtype=np.uint64), HORIZON, 1)
    policy.brief(tasks)
    seen, _ = world.reset()
    reward, played = np.zeros(2, np.float32), []
    for _ in range(HORIZON - 1):
        played.append(policy.act(seen, reward, np.zeros(2, bool)))
        assert played[-1].dtype == np.float32 and np.abs(played[-1]).max() <= 1
        seen, reward, *_ = world.step(played[-1])
    policy.act(seen, reward, np.zeros(2, bool))
    assert policy.action[:, : HORIZON - 1].isnan().any(1).tolist() == [[False] * 2 + [True] * 4, [False] * 6]
    with torch.no_grad():
        whole = policy.network(policy.window(HORIZON))[0][:, :-1]
    chosen = whole if whole.dim() == 3 else actions.middles(16)[whole.argmax(-1)]
    np.testing.assert_allclose(chosen.numpy(), np.stack(played, 1), atol=1e-5)


def test_dimensions_of_other_tasks_are_missing_in_training(generated: Path) -> None:
    facts = facts_of(environment_settings("mini", ENV))
    assert (facts.action_size, facts.actions, facts.own_actions) == (6, 0, (6, 1, 2))
    histories = open_histories(paths.histories("mini", ENV), facts)
    window = ExperienceStore(histories, actions=facts.actions).windows(
        np.array([[0, 130, 250, 5]]), np.array([[1, 1, 1, 0]]) > 0
    )
    assert (~window.action[0].isnan()).sum(1).tolist() == [6, 1, 2, 0]


def test_histories_of_other_actions_are_refused(generated: Path) -> None:
    facts = facts_of(environment_settings("mini", ENV))
    for wrong, said in (({"action_size": 4}, "of 6 numbers, not of 4 numbers"), ({"action_size": 0}, "not discrete")):
        with pytest.raises(UserError, match=said):
            open_histories(paths.histories("mini", ENV), dt.Facts(**{**vars(facts), **wrong}))


def test_target_returns_are_those_that_tasks_list(generated: Path) -> None:
    train("mini", ENV, "dt", 0)
    policy, environment = policy_of("dt"), environment_settings("mini", ENV)
    policy.start(np.arange(2, dtype=np.uint64), HORIZON, 1)
    with pytest.raises(UserError, match="lists no target return"):
        policy.act(np.zeros((2, 204), np.float32), np.zeros(2), np.zeros(2, bool))
    policy.start(np.arange(2, dtype=np.uint64), HORIZON, 1)
    policy.brief(registry.tasks(environment.world, environment.options, "eval"))
    policy.act(np.zeros((2, 204), np.float32), np.zeros(2), np.zeros(2, bool))
    assert policy.aim[:, 0].tolist() == pytest.approx([10.0, 9.82159])  # 1000 and 982.159 over reward_scale 100


def test_numbers_are_not_sampled(generated: Path) -> None:
    changed = {**SCALE, "methods": {**SCALE["methods"], "dt": {"hyperparameters": {**LEARNING, "selection": "sample"}}}}  # type: ignore[dict-item]
    (generated / "config/scales/mini.yaml").write_text(fast_yaml.dump(changed))
    with pytest.raises(UserError, match="predicted as numbers"):
        train("mini", ENV, "dt", 0)


@pytest.mark.slow
@pytest.mark.parametrize("action_bins", [None, 16])
def test_a_network_learns_actions_that_follow_from_observations(generated: Path, action_bins: int | None) -> None:
    environment = environment_settings("mini", ENV)
    facts = facts_of(environment)
    histories = open_histories(paths.histories("mini", ENV), facts)
    rng = np.random.default_rng(0)
    histories.observation = rng.uniform(-1, 1, histories.observation.shape).astype(np.float32)
    histories.action = np.where(np.isnan(histories.action), np.nan, histories.observation[:, 100:106]).astype(
        np.float32
    )
    store = ExperienceStore(histories, actions=0)
    network = dt.Network(**{**LEARNING["network"], "dropout": 0.0, "width": 32, "action_bins": action_bins}).build(
        environment, facts, seed=0, return_to_go=True, steps=HORIZON
    )
    sampler = WindowSampler(histories, context=HORIZON, batch_size=32, seed=0)
    optimiser, losses = torch.optim.Adam(network.parameters(), 0.01), []
    for step in range(150):
        drawn = sampler.batch(step)
        window = store.windows(drawn.rows, drawn.mask)
        loss, _ = dt.action_loss(network(window)[0], window)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    # The variance of what is to be learned is 1/3; 16 equally likely bins have an entropy of 2.8.
    assert losses[0] > (0.25 if action_bins is None else 2.5)
    assert np.mean(losses[-10:]) < (0.05 if action_bins is None else 1.8)


@pytest.mark.slow
def test_the_extra_control_generates_trains_and_evaluates_for_real(workdir: Path, root: Path, tmp_path: Path) -> None:
    """A fresh environment on top of this one, with what envs/locks/control.txt adds; needs the package registry.

    Takes a minute: 78 s on two cores that were busy with other work.
    """
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    site = next((venv / "lib").glob("python3.*")) / "site-packages"
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join([*ours, str(root / "src")]))
    control, base = ((root / "envs" / "locks" / f"{name}.txt").read_text() for name in ("control", "base"))
    added = [block for block in re.split(r"\n(?=[a-z])", control) if block.strip() not in base]
    (tmp_path / "added.txt").write_text("\n".join(added))
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    asked = [uv, "pip", "install", "--python", str(venv / "bin/python"), "--no-deps", "--require-hashes"]
    subprocess.run([*asked, "-r", str(tmp_path / "added.txt")], check=True)
    for env in ("meta_world", "dm_control"):
        names = ["--scale", "smoke", "--env", env]
        run = [*names, "--method", "dt", "--seed", "0"]
        for command in (["generate", *names], ["train", *run], ["evaluate", *run]):
            asked = [str(venv / "bin/python"), "-m", "recollect.cli", *command]
            done = subprocess.run(asked, cwd=workdir, capture_output=True, text=True, env={**os.environ})
            assert done.returncode == 0, done.stderr
        frame = read_table(paths.scores("smoke", env, "dt", 0), kind="scores")
        assert set(frame["metric"]) >= {"return", "data_normalised"}
