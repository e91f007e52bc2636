"""SAC for the learning histories of continuous control: Stable-Baselines3's agent, one per task, one after the other.

- Every agent is SB3's ``SAC("MlpPolicy")``, the source agent of RA-DT on DMControl and Meta-World, whose data are those of
  L2M (arXiv 2306.14884). L2M's released configurations are the defaults here (`sac.yaml`: SB3's own) and, for Meta-World,
  `network: continual_world` (`continual_sac.yaml`; the data's folder is called `metaworld_v2_cwnet_2M`).
- An agent sees and does what its task has: not the slots of other tasks, and the goal where `agent_options` shows it. The
  histories hold what the environment's methods see, so a hidden goal is zero in them, and unused actions are zero.
- Meta-World never ends an episode: gym's TimeLimit cuts it, and SB3 bootstraps there. dm_control ends it itself at the same
  step, which SB3 takes for an end of the world (`bootstrap_limit: false`).
- A stage makes the histories of each task in a job of its own (`BY_TASK`): an agent learns for hours, on one core.
- SB3 draws from the generators of torch and numpy. They are set anew, from (purpose, seed, split, task, steps), before each
  block of steps and put back behind it. So a run that is killed goes on bit-exactly from the end of a block.
- SB3 saves by pickle, which is never read here: checkpoints hold weights, Adam's moments and the replay's actions as arrays.
  The rest of the replay is the history itself, which grows in files of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field, model_validator

from recollect.artifacts.finite import check_arrays
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.sources.columns import begun
from recollect.sources.recording import Run, in_order, tracked, world_seeds

ACTIONS = "continuous"
FAMILY = "sac"
BY_TASK = True
GOAL_SHOWN = ("goal", "shown")
BLOCK = 1000  # steps between two settings of the generators


class Hyperparameters(Frozen):
    """The source agent. "Paper" values are those of DMControl: SB3's defaults, as L2M's `sac.yaml` leaves them."""

    transitions: int = Field(
        1_000_000, gt=0, description="Environment steps per task = length of its history. Paper: 1M (Meta-World: 2M)."
    )
    learning_starts: int = Field(100, ge=0, description="Steps at random before anything is learned.")
    learning_rate: float = Field(3e-4, gt=0, description="Adam's step size, of actor, critics and entropy weight.")
    train_every: int = Field(
        1, ge=1, description="Steps between two phases of as many gradient steps; must divide 1000. Meta-World: 50."
    )
    batch_size: int = Field(256, ge=1, description="Transitions per gradient step. Meta-World: 128.")
    replay: int = Field(1_000_000, ge=1, description="Newest transitions that are learned from. Meta-World: 2M, all.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
    tau: float = Field(0.005, gt=0, le=1, description="Part of the way that target critics move per gradient step.")
    hidden: tuple[int, ...] = Field(
        (256, 256), min_length=1, description="Widths of the hidden layers, of actor and critics. Meta-World: 3 of 256."
    )
    network: Literal["plain", "continual_world"] = Field(
        "plain", description="ReLU; or Continual World's: LayerNorm and tanh behind the first layer, then leaky ReLU."
    )
    bootstrap_limit: bool = Field(
        True, description="The end of an episode by time is no end: the next value counts. DMControl: false."
    )
    agent_options: dict[str, Any] = Field(
        {"goal": "shown"}, description="Options of the world that differ for the agent; histories do not show it."
    )
    checkpoint_every: int = Field(100_000, ge=0, description="Most steps between checkpoints; they come by time, too.")

    @model_validator(mode="after")
    def _phases_fill_the_blocks(self) -> Hyperparameters:
        if BLOCK % self.train_every or self.transitions % self.train_every:
            raise ValueError(f"train_every {self.train_every} does not divide {BLOCK} and transitions")
        return self


def generate(
    world: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    hyperparameters: Hyperparameters,
    *,
    seed: int,
    run: Run | None = None,
) -> dict[str, np.ndarray]:
    """Train one agent per task; see `recollect.sources.ppo.generate`. The result is mapped from disk.

    Raises:
        UserError: Stable-Baselines3 is missing, the world does not fit, or a checkpoint does not fit.
    """
    agent_kind = _agent_kind()
    settings, ordered = hyperparameters, in_order(tasks)
    shown = options_of_agents(world, options, settings.agent_options)
    own = registry.make_world(world, options, ordered[:1], world_seeds(seed, ordered[:1])).single_observation_space
    columns, checkpoint = begun(run)
    first = 0 if checkpoint is None else int(checkpoint.state["task"])
    total = settings.transitions * len(ordered)
    with tracked(run, total, f"{len(ordered)} SAC agents, one after the other", "steps") as progress:
        for number in range(first, len(ordered)):
            agent = agent_kind(world, shown, ordered[number], settings, seed)
            if checkpoint is not None and number == first:
                begin = number * settings.transitions
                seen = {name: array[begin:] for name, array in columns.arrays().items()}
                agent.load(checkpoint.arrays, seen)
            while agent.played < settings.transitions:
                rows = agent.advance(min(BLOCK, settings.transitions - agent.played))
                columns.append(ordered[number].index, rows, ordered[number].name)
                done = number * settings.transitions + agent.played
                progress.update(done, episode_return=agent.last_return)
                if run is not None and done < total and run.due(done, settings.checkpoint_every):
                    run.save(done, agent.arrays(), {"task": number, "columns": columns.state()})
            check_arrays(agent.weights(), f"SAC in {ordered[number].name}")
    arrays = columns.arrays()
    assert isinstance(own, Box)  # or the agent would have refused the world
    hidden_D = (own.low == 0) & (own.high == 0)
    if hidden_D.any():
        arrays["observation"] = np.array(arrays["observation"])
        arrays["observation"][:, hidden_D] = 0
    return arrays


def options_of_agents(world: str, options: Mapping[str, Any], differing: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the world as agents see it. To show the goal says nothing of a world that never hides one.

    Raises:
        UserError: an unknown world.
    """
    known = registry.world_class(world).options_model.model_fields
    return {
        **options,
        **{name: value for name, value in differing.items() if name in known or (name, value) != GOAL_SHOWN},
    }


def _agent_kind() -> Any:
    try:
        from recollect.sources.sac_agent import SACAgent
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("recollect"):
            raise
        raise UserError(
            f"the source of histories `sac` needs the package '{error.name}', which is not installed",
            where="source.algorithm: sac",
            do=f"run `make setup FAMILY={FAMILY}` (or `pip install -e '.[{FAMILY}]'` in the clone, in an environment of your own), "
            "or run the workflow with `--sdm conda`",
        ) from error
    return SACAgent
