"""What AMAGO's two methods let be set: networks, loss, optimiser and schedule. Defaults are those of the seed code."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from recollect.amago.exploration import ExplorationSettings
from recollect.amago.hindsight import Mode
from recollect.amago.timestep_encoders import InputSettings
from recollect.amago.trajectory_encoders import TrajectoryEncoderSettings
from recollect.settings.schema import Frozen

Discount = Annotated[float, Field(gt=0, lt=1)]
Probability = Annotated[float, Field(gt=0, le=1)]


class AgentHyperparameters(Frozen):
    """Networks, loss and optimiser. Defaults are those of the seed code."""

    inputs: InputSettings = InputSettings()
    sequence: TrajectoryEncoderSettings = TrajectoryEncoderSettings()
    head: tuple[PositiveInt, ...] = Field((256, 256), min_length=1, description="Hidden widths of actor and critics.")
    critics: int = Field(4, ge=1, description="Critics in the ensemble. Paper: 4.")
    critics_in_target: int = Field(2, ge=1, description="How many, drawn with replacement, make a target.")
    discount: float = Field(0.999, gt=0, lt=1, description="Of the policy that acts; the last of all discounts.")
    further_discounts: tuple[Discount, ...] = Field(
        (0.1, 0.9, 0.95, 0.97, 0.99, 0.995), description="Learned besides (multi-gamma); (): none. Code: these."
    )
    discount_feature: Literal["seed", "head"] = Field("seed", description="What critics of (s, a) read for a discount.")
    reward_multiplier: float = Field(10.0, gt=0, description="Of rewards in the loss. Paper: 10 to 100.")
    popart: bool = Field(True, description="Targets are normalised, per discount.")
    first_batch: Literal["half", "whole"] = Field(
        "half",
        description="How much of the statistics of PopArt and InputNorm the first batch makes. Code: half; PopArt's paper: whole,"
        " which runs of few updates need.",
    )
    critic_weight: float = Field(10.0, ge=0, description="Paper: 10.")
    online_coefficient: float = Field(
        1.0, ge=0, description="Of the policy gradient. Paper: 1; multi-binary actions: 0."
    )
    offline_coefficient: float = Field(0.1, ge=0, description="Of filtered behaviour cloning. Paper: 0.1.")
    filter: Literal["binary", "exp", "leaky"] = Field(
        "binary", description="How advantage weighs cloning. Paper: binary."
    )
    filter_threshold: float = Field(
        1e-3, description="Advantage above which an action is cloned (binary, leaky). Newer: 0."
    )
    filter_beta: float | None = Field(
        None, gt=0, description="Factor of the advantage (exp) or its divisor (leaky); null: as released, 1 or 2."
    )
    fake_filter: bool = Field(False, description="Clone everything; with online_coefficient 0 there are no critics.")
    use_target_actor: bool = Field(True, description="Targets read the target's policy, not the online one.")
    target_draws: int = Field(
        1, ge=1, description="Actions drawn for the value in targets (no discrete ones). Code: 1."
    )
    value_draws: int = Field(
        1, ge=1, description="Actions drawn for V in the actor's loss (no discrete ones). Code: 1."
    )
    polyak: float = Field(0.003, gt=0, le=1, description="How far targets move at each update. Paper: 0.003.")
    probabilities: tuple[Probability, Probability] = Field((0.001, 0.99), description="Bounds of a discrete policy's.")
    soft_buffer_action: bool = Field(False, description="Q(s, a) as of a clipped one-hot action (newest upstream).")
    continuous: Literal["normal", "mixture", "mixture_upstream", "beta"] = Field(
        "normal", description="Policy over continuous actions; mixtures need online_coefficient 0."
    )
    actor_mask: Literal["fixed", "upstream"] = Field("fixed", description="See the head of the method's file.")
    targets_first: bool = Field(False, description="See the head of the method's file.")
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's. Paper: 1e-4 (MazeRunner, Package: 3e-4).")
    weight_decay: float = Field(1e-3, ge=0, description="Paper: 1e-3 (MazeRunner, Package, Crafter: 1e-4).")
    gradient_clip: float = Field(1.0, gt=0, description="Largest norm of all gradients. Paper: 1.")
    warmup: int | None = Field(None, ge=0, description="Updates over which the rate rises; null: those of 10 epochs.")
    precision: Literal["float32", "attention", "bfloat16"] = Field(
        "attention",
        description="On GPUs, in bfloat16: nothing, the Transformer's attention (as released), or all its products.",
    )
    compile: bool = Field(
        False,
        description="On GPUs the loss goes through torch.compile, where updates are CUDA graphs; no effect on CPUs, or on a GRU.",
    )
    tf32: bool = Field(
        True, description="On GPUs, other products take TF32, of float32's range and ten bits. Code: float32."
    )

    @property
    def discounts(self) -> tuple[float, ...]:
        """All of them; the last one acts."""
        return (*self.further_discounts, self.discount)

    @model_validator(mode="after")
    def _check(self) -> AgentHyperparameters:
        if self.continuous.startswith("mixture") and self.online_coefficient:
            raise ValueError("no gradient passes through draws of a mixture: set online_coefficient to 0")
        if self.sequence.kind == "transformer" and self.sequence.width % self.sequence.heads:
            raise ValueError(f"a width of {self.sequence.width} cannot be split into {self.sequence.heads} heads")
        low, high = self.probabilities
        if not low < high:
            raise ValueError(f"the least of `probabilities`, {low:g}, must be below the largest, {high:g}")
        return self


class MixSettings(Frozen):
    """Trajectories of others, see amago.mixed_data. No command notices when these files change."""

    path: str = Field(
        min_length=1,
        description="A run's buffer (one that `recollect run` or Snakemake finished has none), or a file or folder of episodes.",
    )
    share: float = Field(gt=0, le=1, description="Of the windows that are drawn. 1: offline, nothing is collected.")


class LoopHyperparameters(Frozen):
    """The schedule. Defaults are those of the seed code's command line."""

    epochs: int = Field(1000, ge=1, description="Longer runs learn more.")
    actors: int = Field(12, ge=1, le=65_536, description="Rollouts played side by side. Paper: 8 to 36.")
    steps_per_epoch: int = Field(1000, ge=1, description="Of each actor.")
    updates_per_epoch: int = Field(1000, ge=1, description="More updates per step learn more from the same data.")
    start_learning_at_epoch: int = Field(0, ge=0, description="Epochs before it only collect.")
    start_collecting_at_epoch: int = Field(0, ge=0, description="Epochs before it only learn (protected data).")
    batch_size: int = Field(24, ge=1, description="Windows per update. Paper: 24 (Crafter: 18).")
    context: int | None = Field(None, ge=1, description="Longest window, and memory, in steps; null: a whole rollout.")
    save_length: int | None = Field(
        None,
        ge=1,
        description="Steps after which a trajectory is cut, at least the context; null: the horizon, or 4 contexts if shorter.",
    )
    stagger: bool = Field(True, description="Where the context is shorter, cuts are spread by up to a context.")
    buffer: int = Field(20_000, ge=1, description="Trajectories that are kept. Paper: 5000 to 80,000.")
    buffer_weights: Literal["trajectory", "timestep"] = Field("trajectory", description="What is drawn uniformly.")
    truncation: Literal["end", "bootstrap"] = Field(
        "end",
        description="What a rollout's limit of steps is; `bootstrap`: targets look beyond it, as newer code does.",
    )
    mix: MixSettings | None = Field(None, description="Trajectories of others that are learned from besides.")
    relabelling: Mode = Field("none", description="Hindsight, in worlds with goals: see amago.hindsight.")
    rare_goals: bool = Field(False, description="Relabelling prefers rare goals (Crafter).")
    sample_actions: bool = Field(True, description="Actions are drawn from the policy; T-Maze: the likeliest.")
    slow_inference: bool = Field(
        False, description="Acting encodes the last `context` steps anew at each step; exact where a rollout is longer."
    )
    batches_ahead: int | None = Field(
        None,
        ge=0,
        description="Batches that a thread prepares while others are learned from; null: 2 on a GPU, else 0.",
    )
    cuda_graphs: bool = Field(
        True,
        description="On a GPU, a Transformer's step of acting is one CUDA graph, and so is an update.",
    )
    evaluate_every: int = Field(20, ge=1, description="Epochs between evaluations.")
    evaluation_rollouts: int = Field(12, ge=1, description="Per evaluation.")
    evaluation_split: str = Field("eval", description="Whose tasks the evaluations while learning play.")
    keep: Literal["best", "last"] = Field("best", description="Policy of the run: of the best evaluation, or the last.")
    keep_every: int = Field(
        0, ge=0, description="Epochs between policies that are kept; 0: none but the best and the last."
    )
    checkpoint_every: int = Field(1, ge=1, description="Most epochs between checkpoints; they come by time, too.")
    processes: int = Field(
        1, ge=1, description="N: one learns while N - 1 share the actors and collect; not reproducible."
    )

    devices: int = Field(
        1,
        ge=1,
        description="GPUs (or processes on a CPU) that each learn from a part of every batch; see amago.devices.",
    )

    @property
    def offline(self) -> bool:
        """Whether nothing is collected, because nothing of it would be drawn."""
        return self.mix is not None and self.mix.share == 1

    @property
    def collects_itself(self) -> bool:
        """Whether the process that learns plays the actors, too."""
        return self.processes == 1 and not self.offline

    @model_validator(mode="after")
    def _check_processes(self) -> LoopHyperparameters:
        if self.offline and self.processes > 1:
            raise ValueError("with mix.share 1 nothing is collected: set processes to 1")
        if self.processes - 1 > self.actors:
            raise ValueError(f"{self.processes - 1} collectors cannot share {self.actors} actors: lower processes")
        if self.devices > self.batch_size:
            raise ValueError(f"{self.devices} devices cannot share {self.batch_size} windows: lower devices")
        return self

    @model_validator(mode="after")
    def _check_epochs(self) -> LoopHyperparameters:
        if self.start_learning_at_epoch >= self.epochs:
            raise ValueError(f"of {self.epochs} epochs none is left to learn in: lower start_learning_at_epoch")
        return self

    def context_of(self, horizon: int) -> int:
        return horizon if self.context is None else min(self.context, horizon)

    def save_length_of(self, horizon: int) -> int:
        """Steps after which a trajectory is cut."""
        context = self.context_of(horizon)
        return max(context, min(horizon, self.save_length or (horizon if context >= horizon else 4 * context)))


class AmagoHyperparameters(AgentHyperparameters, LoopHyperparameters):
    """What both methods share; see also `AgentHyperparameters` and `LoopHyperparameters`."""

    exploration: ExplorationSettings = ExplorationSettings()
