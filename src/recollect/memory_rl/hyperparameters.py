"""What Memory-RL's off-policy methods all let be set: networks, budget, updates, replay and evaluation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from recollect.common.precision import Precision
from recollect.memory_rl.sequence import SequenceSettings
from recollect.settings.schema import Frozen


class OffPolicyHyperparameters(Frozen):
    """Networks, schedule, optimiser and evaluation. Defaults are the paper's (Memory-RL T-Mazes, GPT)."""

    sequence: SequenceSettings = SequenceSettings()
    observation_embedding: int = Field(64, ge=0, description="Width of the observation embedding. Paper: 64 (LSTM 32).")
    action_embedding: int = Field(64, ge=0, description="Of the previous action's; 0: not seen. Paper: 64 (LSTM 16).")
    reward_embedding: int = Field(0, ge=0, description="Of the previous reward's; 0: not seen. Paper: 0.")
    head: tuple[PositiveInt, ...] = Field((256, 256), description="Hidden widths of the head. Paper: 256, 256.")
    head_fan: Literal["output", "input"] = Field(
        "output",
        description="Width of a hidden layer that scales its first weights; `input` is the textbook's. Paper: output.",
    )

    train_episodes: int = Field(20_000, ge=1, description="Episodes after the warm-up; more is longer training.")
    budget: Literal["episodes", "steps"] = Field(
        "episodes",
        description="What warm-up, training and the time between evaluations are counted in: episodes, or the steps that "
        "so many episodes to the horizon have. Paper: episodes; continuous tasks: steps.",
    )
    warmup_episodes: int = Field(10, ge=1, description="Episodes with uniform actions at the beginning. Paper: 10.")
    initial_burst: bool = Field(True, description="Updates for the warm-up's steps, all at once after it. Paper: yes.")
    warmup_learns: bool = Field(
        False,
        description="Evaluations come in the warm-up, too, and without a burst the round that ends it is followed by its "
        "updates. Paper: no; continuous tasks: yes.",
    )
    updates_per_step: float = Field(0.25, gt=0, description="Gradient steps per environment step. Paper: 0.25.")
    actors: int = Field(
        1, ge=1, le=65_536, description="Episodes played side by side. Paper: 1. More is faster per episode."
    )
    batch_size: int = Field(64, ge=1, description="Windows per gradient step. Paper: 64.")
    sampled_seq_len: int = Field(
        -1, description="Transitions per window; -1: a whole episode. Paper: -1; PyBullet: 64."
    )
    learning_rate: float = Field(3e-4, gt=0, description="Adam's. Paper: 3e-4.")
    gradient_clip: float | None = Field(
        None, gt=0, description="Largest gradient norm; null, the paper's, never clips. Steadies recurrent models."
    )
    precision: Precision = Field(
        "auto",
        description="In training. auto: on a GPU bfloat16 for a gpt, and TF32 but for recurrent states. Paper: float32.",
    )
    compile: bool = Field(
        False,
        description="On GPUs the loss goes through torch.compile, for fixed shapes: that of a gpt, and of an lstm where more "
        "than three seeds train together. It has no effect on CPUs, nor outside of the scale's `ensembles`.",
    )
    discount: float = Field(0.99, ge=0, le=1, description="Paper: 0.99.")
    polyak: float = Field(0.005, gt=0, le=1, description="How far targets move at each update. Paper: 0.005.")
    replay_transitions: int = Field(1_000_000, ge=2, description="Smallest replay, in steps. Paper: 1e6.")
    replay_episodes: int = Field(
        1000,
        ge=1,
        description="Smallest replay: room for so many episodes of full length, but for one row each. Paper: 1000.",
    )

    evaluate_every: int = Field(10, ge=1, description="Episodes between evaluations. Paper: T-Mazes 10, Pycolab 50.")
    evaluation_episodes: int = Field(10, ge=1, description="Per evaluation. Paper: T-Mazes 10, Pycolab 20.")
    dropout_while_acting: bool = Field(True, description="Dropout stays on while collecting. Paper's code: yes.")
    checkpoint_every: int = Field(
        2000, ge=1, description="Most updates between checkpoints that cost little; they come by time, too."
    )
    dropout_in_targets: bool = Field(
        True,
        description="Dropout stays on in passes without gradient. Paper's code: yes. sacd and sac choose the next action in a "
        "pass with gradient, where it stays on whatever this says; sacd with a shared encoder and without target_encoder has "
        "no other pass.",
    )

    @field_validator("sampled_seq_len")
    @classmethod
    def _check_window(cls, value: int) -> int:
        if value != -1 and value < 1:
            raise ValueError("must be -1 (a whole episode) or at least 1")
        return value

    @model_validator(mode="after")
    def _check_inputs(self) -> Self:
        if not (self.observation_embedding or self.action_embedding or self.reward_embedding):
            raise ValueError("an agent must see something: give one of the three embeddings a width")
        return self

    @model_validator(mode="after")
    def _reads_its_tokens(self) -> Self:
        width = self.observation_embedding + self.action_embedding + self.reward_embedding
        if self.sequence.kind == "gpt" and self.sequence.width != width:
            raise ValueError(
                f"a gpt of width {self.sequence.width} cannot read tokens of width {width}, the sum of the three embeddings"
            )
        return self

    @property
    def observation_first(self) -> bool:
        """Whether the observation's part of a token stands before the action's."""
        return False

    def window(self, horizon: int) -> int:
        return horizon if self.sampled_seq_len == -1 else min(self.sampled_seq_len, horizon)
