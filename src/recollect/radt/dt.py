"""Decision Transformer (DT): act by conditioning on a wanted return; the context is the current episode only.

It is both a baseline of RA-DT and its domain-specific embedder. Differences, and why:

- Paper (RA-DT appendix): the baseline DT gets a two-episode context; the released configuration, which trains the
  embedder, has 50 steps. `context` is a setting.
- Upstream's fast attention path keeps attention dropout on while it evaluates and reads padding; ours does either where it
  is told to (`acting_dropout`, `network.padding: attended`).
- Upstream evaluates DT greedily and RA-DT by sampling from the best half. `selection` is a setting of both.
- Upstream creates the network before it seeds, so all seeds share initial weights; ours depend on the seed.
- By default positions count from the first real token of a window; upstream counts padding as well, and reads it
  (`network.padding: attended`, which config/methods/dt.yaml sets).

Source: Chen et al. 2021; RA-DT (arXiv 2410.07071) section 3, specification 3.1-3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from recollect.artifacts.checkpoints import part
from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.masked_mean import masked_mean
from recollect.common.precision import Precision
from recollect.common.transformer import TransformerSettings
from recollect.common.weights import load_arrays
from recollect.radt import actions
from recollect.radt.acting import ActionSelection, CachedSteps, InContextPolicy, check_policy
from recollect.radt.decision_transformer import DecisionTransformer, DecisionTransformerSettings, NetworkOptions
from recollect.radt.experience import Experience
from recollect.radt.supervised import AnyPolicy, Optimisation, open_experience, train_policy
from recollect.radt.windows import EpisodesBy, WindowSampler
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, Frozen, Settings


class Network(NetworkOptions):
    """The part of the network that a user chooses; the rest follows from the environment. Defaults: the paper's grids."""

    width: int = Field(512, ge=1, description="Hidden size d.")
    layers: int = Field(4, ge=1, description="Transformer blocks.")
    heads: int = Field(8, ge=1, description="Attention heads.")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="Embedding, residual and attention dropout. Paper text: 0.2; released: 0.1."
    )
    observation_bins: int = Field(16, ge=2, description="binned: values of each entry between its bounds.")
    cross_layers: Literal["all"] | tuple[int, ...] = Field("all", description="RA-DT: layers that read the context.")
    cross_gate: bool = Field(
        False, description="RA-DT: what a layer reads is scaled by a learned sigmoid of itself (released: off)."
    )
    cross_residual: bool = Field(
        True, description="RA-DT: false puts what a layer reads in the place of its hidden state (released: on)."
    )

    @model_validator(mode="after")
    def _split_into_heads(self) -> Network:
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} cannot be split into {self.heads} heads")
        return self

    @model_validator(mode="after")
    def _context_is_read_by_copies(self) -> Network:
        if self.context_layers > self.layers:
            what = f"context_layers {self.context_layers}: the blocks that read a context begin as copies of the first"
            raise ValueError(f"{what} of {self.layers} layers")
        return self

    def build(
        self,
        environment: EnvironmentSettings,
        facts: Facts,
        *,
        seed: int,
        return_to_go: bool,
        steps: int,
        window: int = 0,
        predict_return: bool = False,
        reads_context: bool = False,
    ) -> DecisionTransformer:
        """The network for an environment; its initial weights depend on the seed.

        Args:
            return_to_go, predict_return, reads_context: what the method needs; see `DecisionTransformerSettings`.
            steps: most timesteps of a window.
            window: timesteps of a window with its padding, where that counts.

        Raises:
            UserError: a table of the network has fewer rows than the environment's windows need, or is of observations
                that cannot stand in one.
        """
        settings = DecisionTransformerSettings(
            **self.options_of(NetworkOptions),
            observation_size=facts.observation_size,
            observation_values=self.observation_tables(environment, facts),
            observation_bounds=facts.observation_bounds,
            actions=facts.actions,
            action_size=facts.action_size,
            return_to_go=return_to_go,
            return_low=environment.returns.low,
            return_high=environment.returns.high,
            return_bins=environment.returns.bins,
            predict_return=predict_return,
            window=window,
            context_positions=self.positions if reads_context else 0,
            transformer=TransformerSettings(
                **self.options_of(TransformerSettings),
                cross_attention=self.cross_layers if reads_context else "none",
            ),
        )
        if self.padding != "hidden":
            steps = max(steps, window)
        needed = {"timesteps": facts.horizon, "positions": steps * settings.tokens_per_step}
        for table, rows in needed.items():
            none_wanted = table == "timesteps" and self.timesteps == 0
            if getattr(self, table) < rows and not none_wanted:
                raise UserError(
                    f"the network has {getattr(self, table)} {table}, but needs {rows} in '{environment.name}'",
                    where=f"hyperparameters: network.{table}",
                    do=f"set network.{table} to at least {rows}",
                )
        return DecisionTransformer(settings, seed=seed)

    def options_of(self, part: type[BaseModel]) -> dict[str, Any]:
        shared = type(self).model_fields.keys() & part.model_fields.keys()
        return {name: getattr(self, name) for name in shared}

    def observation_tables(self, environment: EnvironmentSettings, facts: Facts) -> tuple[int, ...]:
        """How many values each entry of an observation has in its table; empty where observations stand in none."""
        values = facts.observation_values
        needs = "small whole numbers from 0 on"
        if self.observation_embedding == "binned":
            values = (self.observation_bins,) * len(facts.observation_bounds)
            needs = "numbers between bounds"
        if self.observation_embedding != "linear" and not values:
            raise UserError(
                f"the observations of '{environment.name}' are no {needs}, which {self.observation_embedding} needs",
                where="hyperparameters: network.observation_embedding",
                do="set network.observation_embedding: linear",
            )
        return values


class Hyperparameters(Frozen):
    """Defaults are the paper's for Dark-Room 10x10."""

    network: Network = Network()
    optimisation: Optimisation = Optimisation()
    context: int = Field(50, ge=1, description="Timesteps of a window, C. Longer sees more of the episode, costs more.")
    selection: ActionSelection = Field("greedy", description="How actions are picked when playing.")
    acting_dropout: bool = Field(
        False, description="Attention drops weights while acting, too (released AD and DT). Needs padding that counts."
    )
    acting_precision: Precision = Field(
        "auto", description="Of the network's products while acting. auto: bfloat16 on a GPU, float32 on a CPU."
    )
    reward_scale: float = Field(1.0, gt=0, description="Rewards and returns are divided by it.")
    episodes_by: EpisodesBy = Field("length", description="Chances of episodes; see `windows.episode_chances`.")
    top_episodes: int = Field(5, ge=1, description="episodes_by top: how many episodes of highest return are learned.")

    def sampling(self, seed: int) -> dict[str, Any]:
        return {
            "context": self.context,
            "batch_size": self.optimisation.batch_size,
            "seed": seed,
            "episodes_by": self.episodes_by,
            "top": self.top_episodes,
        }


# ---- the loss, which AD, DPT and RA-DT learn by, too. It is written twice: on CPUs the real steps are gathered first, which spares
# the others' cross-entropy; on other devices how many are real is not known to the host, so padding counts with weight zero.

IGNORED = -100  # a target that cross-entropy leaves out


def loss_of_steps(predicted_NA: Tensor, action_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss of N steps, and how right they are.

    Args:
        predicted_NA: logits [N, A] of discrete actions, or what `ContinuousHead` gives.
        action_N: integers [N], or floats [N, A] with NaN in dimensions that do not count.
    """
    if action_N.is_floating_point():
        # Dimensions that a task lacks are left out; from here on N counts single numbers.
        counts_NA = ~action_N.isnan()
        predicted_NA = predicted_NA[counts_NA]
        action_N = action_N[counts_NA]
        if predicted_NA.dim() == 1:
            error_N = predicted_NA.detach() - action_N
            return F.mse_loss(predicted_NA, action_N), {"action_error": error_N.abs().mean()}
        action_N = actions.tokens_of(action_N, predicted_NA.shape[-1])
    loss = F.cross_entropy(predicted_NA, action_N)
    return loss, {name: right_N.float().mean() for name, right_N in _right(predicted_NA, action_N).items()}


def loss_of_masked_steps(predicted_NA: Tensor, action_N: Tensor, real_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """`loss_of_steps` of the steps where the mask is True, without asking a device which these are."""
    if action_N.is_floating_point():
        counts_NA = real_N[:, None] & ~action_N.isnan()
        action_N = torch.where(counts_NA, action_N, 0.0)
        if predicted_NA.dim() == 2:
            error_NA = predicted_NA - action_N
            return masked_mean(error_NA.square(), counts_NA), {
                "action_error": masked_mean(error_NA.detach().abs(), counts_NA)
            }
        action_N = actions.tokens_of(action_N, predicted_NA.shape[-1]).flatten()
        predicted_NA, real_N = predicted_NA.flatten(0, 1), counts_NA.flatten()
    loss = cross_entropy_where(real_N, predicted_NA, action_N)
    return loss, {
        name: masked_mean(right_N.float(), real_N) for name, right_N in _right(predicted_NA, action_N).items()
    }


def _right(logits_NA: Tensor, action_N: Tensor) -> dict[str, Tensor]:
    """Whether each action is the likeliest, and whether it is among the best five, where there are more than five."""
    logits_NA = logits_NA.detach()
    right = {"action_accuracy": logits_NA.argmax(-1) == action_N}
    if logits_NA.shape[-1] > 5:
        best_N5 = logits_NA.topk(5, -1).indices
        right["action_accuracy_top5"] = (best_N5 == action_N[:, None]).any(-1)
    return right


def cross_entropy_where(real: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [..., A] to targets [...] where the mask is True."""
    wanted = torch.where(real, target, IGNORED)
    return F.cross_entropy(logits.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED)


def gathers(window: Experience) -> bool:
    """Whether real steps are gathered; see above."""
    return window.mask.device.type == "cpu"


def action_loss(logits_BTA: Tensor, window: Experience) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss of the actions over all real timesteps of the windows; see `loss_of_steps`."""
    logits_NA = logits_BTA.flatten(0, 1)
    action_N = window.action.flatten(0, 1)
    real_N = window.mask.flatten()
    if not gathers(window):
        return loss_of_masked_steps(logits_NA.float(), action_N, real_N)
    place_N = real_N.nonzero(as_tuple=True)[0]
    return loss_of_steps(logits_NA[place_N].float(), action_N[place_N])


class DecisionTransformerPolicy(InContextPolicy):
    """Plays with a context of the last `context` steps of the current episode."""

    acting = (*InContextPolicy.acting, "cached")

    def __init__(self, network: DecisionTransformer, settings: Settings) -> None:
        super().__init__(network, settings)
        self.window_steps: int = settings.method.hyperparameters.context

    def begin(self, rows: int) -> None:
        self.cached: CachedSteps | None = None
        # Where the whole episode fits the window nothing ever leaves it, and cached steps are exact.
        if self.window_steps >= self.horizon and self.network.goes_on:
            self.cached = CachedSteps(self.computing, rows, self.horizon, self.cache_dtype)

    def forget(self, mask_B: np.ndarray) -> None:
        if self.cached is not None:
            self.cached.clear(mask_B)

    def drop(self, ended_B: np.ndarray) -> None:
        self.forget(ended_B)

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        self.forget(np.isin(np.arange(len(self.seeds_B)), rows))

    def logits(self) -> Tensor:
        if self.cached is None:
            return self.act_on(self.window(self.window_steps))
        return self.cached.append_now(self.now())


def build_network(settings: Settings, facts: Facts) -> DecisionTransformer:
    chosen = settings.method.hyperparameters
    steps = min(chosen.context, facts.horizon)
    return chosen.network.build(
        settings.environment, facts, seed=settings.seed, return_to_go=True, steps=steps, window=chosen.context
    )


check = partial(check_policy, build_network)


def train(settings: Settings, inputs: Inputs, run: Run) -> DecisionTransformerPolicy:
    """Learn to predict the histories' actions from (state, return-to-go, action, reward) windows."""
    chosen: Hyperparameters = settings.method.hyperparameters
    facts = facts_of(settings.environment)
    network = build_network(settings, facts).to(inputs.device)
    histories, store = open_experience("histories", settings, inputs, facts)
    sampler = WindowSampler(histories, **chosen.sampling(settings.seed))

    def batch_of(step: int) -> Experience:
        windows = sampler.batch(step)
        return store.windows(windows.rows, windows.mask)

    def loss_of(model: Callable[..., Any], window: Experience) -> tuple[Tensor, dict[str, Tensor]]:
        return action_loss(model(window)[0], window)

    policy = DecisionTransformerPolicy(network, settings)
    return train_policy(policy, settings, run, batch_of=batch_of, loss_of=loss_of, learned_of=lambda window: window)


def policy_of(
    kind: type[AnyPolicy],
    build: Callable[[Settings, Facts], DecisionTransformer],
    settings: Settings,
    arrays: Mapping[str, np.ndarray],
    inputs: Inputs,
) -> AnyPolicy:
    network = build(settings, facts_of(settings.environment))
    load_network(network, arrays, settings)
    return kind(network.to(inputs.device).eval(), settings)


load_policy = partial(policy_of, DecisionTransformerPolicy, build_network)


def load_network(network: DecisionTransformer, arrays: Mapping[str, np.ndarray], settings: Settings) -> None:
    """Put a policy's arrays into a network; a mismatch is the user's to mend, so it says which array."""
    load_arrays(
        network,
        part(arrays, "network"),
        what="the policy does not fit its settings",
        where=f"{settings.environment.name} / {settings.method.name} / seed {settings.seed} ({settings.scale})",
        do="train it again with these settings, or put back the settings that it was trained with",
    )
