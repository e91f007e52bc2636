"""The sequence model that DT, AD and RA-DT share: experience in, action logits out.

- Token layouts: `interleaved` as published (one token per modality: state, return-to-go, action, reward; without
  return-to-go: state, action, reward) and `merged` (one token per timestep, a quarter of the tokens, for small budgets).
  A merged token carries state, return-to-go and the *previous* action and reward, and predicts the action.
- Each modality has its own embedding, to which a learned timestep-in-episode embedding is added; one LayerNorm; then a
  learned position is added (RA-DT section 3.1 of our specification). Positions count from the first real token of the
  window, so that padding never shifts them; the released code counts the padding too (`padding: counted`), and with its
  fast attention, which AD and DT use, padding is read like experience (`padding: attended`).
- A retrieved window is embedded by a second, trainable set of tables (RA-DT 3.6; for small budgets `context_embedding:
  shared`, all tables but position and norm) and read by cross-attention. All of it is in the past, so a merged context
  token carries the action and reward of its own timestep. `context_layers` blocks may encode it first, which
  start as copies of the policy's first ones.

Shapes: B batch, T timesteps, N tokens, D width, A actions, S context tokens.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.attention import ReadContext
from recollect.common.transformer import Transformer, TransformerSettings
from recollect.radt import actions
from recollect.radt.experience import Experience
from recollect.settings.schema import Frozen
from recollect.settings.seeding import seed_of


class NetworkOptions(Frozen):
    """What a user chooses of the network besides its sizes. Defaults are the paper's for grids ("dt_medium_64")."""

    tokens: Literal["interleaved", "merged"] = Field("interleaved", description="See radt.decision_transformer.")
    observation_embedding: Literal["linear", "one_hot", "binned"] = Field(
        "linear",
        description="Paper: linear on raw numbers. A table per entry learns far faster: one_hot of integers, binned of "
        "the nearest of evenly spaced values.",
    )
    return_embedding: Literal["linear", "bins"] = Field("linear", description="RA-DT on the Dark rooms: bins.")
    action_bins: int | None = Field(
        None, ge=2, description="Continuous actions: bins per dimension; null: regression, as released."
    )
    positions: int = Field(1600, ge=1, description="Rows of the position table, tokens.")
    padding: Literal["hidden", "counted", "attended"] = Field(
        "hidden",
        description="hidden: padding is never read, and positions count from the first real step; counted: positions "
        "count it (released RA-DT); attended: it is read like experience, too (released AD and DT).",
    )
    timesteps: int = Field(1000, ge=0, description="Rows of the timestep-in-episode table; 0: none (released Procgen).")
    context_embedding: Literal["separate", "shared"] = Field(
        "separate", description="RA-DT: tables of the retrieved window. Paper: its own; shared ones learn faster."
    )
    context_detached: bool = Field(
        False, description="RA-DT: no gradient through the tables of the retrieved window (released: off)."
    )
    context_layers: int = Field(
        0, ge=0, description="RA-DT: blocks that encode the retrieved window before it is read (released: 0)."
    )


class DecisionTransformerSettings(NetworkOptions):
    """All that the network must know: the user's options, its sizes, and what follows from environment and method."""

    observation_size: int = Field(2, description="Entries of an observation.")
    observation_values: tuple[int, ...] = Field((), description="A table per entry: number of values of each entry.")
    observation_bounds: tuple[tuple[float, float], ...] = Field((), description="binned: (low, high) of each entry.")
    actions: int = Field(5, description="Number of discrete actions A; index A is the padding action.")
    action_size: int = Field(0, description="Continuous actions: how many numbers one is; 0: actions are discrete.")
    return_to_go: bool = Field(True, description="Condition on return-to-go (DT, RA-DT) or not (AD).")
    return_low: float = 0.0
    return_high: float = 100.0
    return_bins: int = 100
    predict_return: bool = Field(False, description="A head for return-to-go bins at the state token (interleaved).")
    window: int = Field(0, description="Timesteps of a whole window; decides positions where padding counts.")
    context_positions: int = Field(0, description="Rows of the context's position table; 0: no context can be read.")
    transformer: TransformerSettings = TransformerSettings()

    @property
    def tokens_per_step(self) -> int:
        if self.tokens == "merged":
            return 1
        return 3 + self.return_to_go

    @property
    def no_action(self) -> int | float:
        return actions.NONE if self.action_size else self.actions


def bins_of(value: Tensor, low: float, high: float, bins: int) -> Tensor:
    """Min-max tokeniser: clamp(floor((value - low) / bin width), 0, bins - 1)."""
    width = (high - low) / bins
    return ((value - low) / width).floor().clamp_(0, bins - 1).long()


@torch.no_grad()
def initialise(module: nn.Linear | nn.Embedding, generator: torch.Generator) -> None:
    """GPT-2's initial weights: normal(0, 0.02), zero biases."""
    module.weight.normal_(0.0, 0.02, generator=generator)
    if isinstance(module, nn.Linear):
        module.bias.zero_()


class ExperienceEmbedding(nn.Module):
    """Turns windows of experience into tokens.

    Args:
        positions: rows of the position table.
        window: timesteps of a whole window, which shorter ones are the end of (0: windows are whole); matters where
            padding counts.
        whole_steps: merged layout only: a token carries its own action and reward (context), not the previous ones.
    """

    def __init__(
        self,
        settings: DecisionTransformerSettings,
        positions: int,
        *,
        window: int = 0,
        whole_steps: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.window = window
        self.whole_steps = whole_steps
        width = settings.transformer.width
        self.observation: nn.Module
        if settings.observation_embedding == "linear":
            self.observation = nn.Linear(settings.observation_size, width)
        else:
            self.observation = nn.Embedding(sum(settings.observation_values), width)
            self._register_tables(settings)
        self.action: nn.Module
        if settings.action_size:
            read = settings.padding == "attended"
            self.action = actions.ContinuousEmbedding(settings.action_size, width, padding_read=read)
        else:
            self.action = nn.Embedding(settings.actions + 1, width, padding_idx=settings.actions)
        self.reward = nn.Linear(1, width)
        if settings.return_to_go:
            binned = settings.return_embedding == "bins"
            self.return_to_go: nn.Module = nn.Embedding(settings.return_bins, width) if binned else nn.Linear(1, width)
        if settings.timesteps:
            self.timestep = nn.Embedding(settings.timesteps, width)
        self.norm = nn.LayerNorm(width)
        self.position = nn.Embedding(positions, width)
        # Weights are drawn in the order in which the parts were made above.
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                initialise(module, generator)
        if isinstance(self.action, nn.Embedding):
            with torch.no_grad():
                self.action.weight[settings.actions].zero_()

    def _register_tables(self, settings: DecisionTransformerSettings) -> None:
        """Where each entry's table begins in the common one and, where entries are binned, their bins."""
        values = torch.tensor(settings.observation_values)
        self.observation_offsets: Tensor
        self.register_buffer("observation_offsets", values.cumsum(0) - values, persistent=False)
        if settings.observation_embedding == "binned":
            low, high = torch.tensor(settings.observation_bounds).unbind(1)
            steps = values - 1
            self.observation_low: Tensor
            self.observation_scale: Tensor
            self.observation_steps: Tensor
            self.register_buffer("observation_low", low, persistent=False)
            self.register_buffer("observation_scale", steps / (high - low), persistent=False)
            self.register_buffer("observation_steps", steps.float(), persistent=False)

    def observe(self, observation_BTD: Tensor) -> Tensor:
        """State embedding [B, T, D]."""
        kind = self.settings.observation_embedding
        if kind == "linear":
            return self.observation(observation_BTD.to(self.norm.weight.dtype))
        if kind == "binned":
            bin_BTD = ((observation_BTD - self.observation_low) * self.observation_scale).round()
            observation_BTD = torch.minimum(bin_BTD.clamp_(min=0), self.observation_steps)
        row_BTD = observation_BTD.long() + self.observation_offsets
        return self.observation(row_BTD).sum(-2)

    def aim(self, return_to_go_BT: Tensor) -> Tensor:
        """Return-to-go embedding [B, T, D]."""
        s = self.settings
        if s.return_embedding == "linear":
            return self.return_to_go(return_to_go_BT[..., None])
        bin_BT = bins_of(return_to_go_BT, s.return_low, s.return_high, s.return_bins)
        return self.return_to_go(bin_BT)

    def forward(self, window: Experience, first_position_B: Tensor | None = None) -> Tensor:
        """Tokens [B, N, D].

        Args:
            first_position_B: position of each row's first token where the window goes on from cached tokens.
        """
        merged = self.settings.tokens == "merged"
        action_BT, reward_BT = window.action, window.reward
        if merged and not self.whole_steps:
            action_BT, reward_BT = self.previous(window)
        action_BTD = self.action(action_BT)
        reward_BTD = self.reward(reward_BT[..., None])
        observation_BTD = self.observe(window.observation)
        time_BTD = self.timestep(window.timestep) if self.settings.timesteps else torch.zeros_like(reward_BTD)
        if merged:
            tokens_BND = observation_BTD + time_BTD + action_BTD + reward_BTD
            if self.settings.return_to_go:
                tokens_BND = tokens_BND + self.aim(window.return_to_go)
        else:
            parts = [observation_BTD, action_BTD, reward_BTD]
            if self.settings.return_to_go:
                parts.insert(1, self.aim(window.return_to_go))
            tokens_BTKD = torch.stack(parts, 2) + time_BTD[:, :, None]
            tokens_BND = tokens_BTKD.flatten(1, 2)
        position_BN = self.positions(window.mask)
        if first_position_B is not None:
            position_BN = position_BN + first_position_B[:, None]
        return self.norm(tokens_BND) + self.position(position_BN)

    def positions(self, mask_BT: Tensor) -> Tensor:
        """Position [B, N] of each token in its window, counted from the first real one or from the window's beginning."""
        per_step = self.settings.tokens_per_step
        if self.settings.padding == "hidden":
            step_BT = (mask_BT.long().cumsum(1) - 1).clamp_(min=0)
        else:
            present = mask_BT.shape[1]
            last = max(self.window, present)
            step_BT = torch.arange(last - present, last, device=mask_BT.device).expand(mask_BT.shape)
        first_BT = step_BT * per_step
        if per_step == 1:
            return first_BT
        offsets = torch.arange(per_step, device=first_BT.device)
        return (first_BT[..., None] + offsets).flatten(1, 2)

    def previous(self, window: Experience) -> tuple[Tensor, Tensor]:
        """The action and reward before each timestep; none at the start of an episode or window."""
        none = self.settings.no_action
        started_BT = window.timestep[:, 1:] > 0
        before_BT = actions.where(started_BT, window.action[:, :-1], none)
        nothing_B1 = torch.full_like(window.action[:, :1], none)
        action_BT = torch.cat([nothing_B1, before_BT], 1)
        reward_BT = F.pad(window.reward[:, :-1] * started_BT, (1, 0))
        return action_BT, reward_BT


class DecisionTransformer(nn.Module):
    """Causal transformer over experience, optionally reading a retrieved window by cross-attention."""

    def __init__(self, settings: DecisionTransformerSettings, *, seed: int) -> None:
        super().__init__()
        self.settings = settings
        draws = torch.Generator().manual_seed(seed_of("decision transformer", seed))
        self.embed = ExperienceEmbedding(
            settings, settings.positions, window=settings.window, whole_steps=False, generator=draws
        )
        self.embed_context: ExperienceEmbedding | None = None
        if settings.context_positions:
            self.embed_context = ExperienceEmbedding(
                settings, settings.context_positions, whole_steps=True, generator=draws
            )
            if settings.context_embedding == "shared":
                # All tables but position and norm.
                for table in ("observation", "action", "reward", "return_to_go", "timestep"):
                    if hasattr(self.embed, table):
                        setattr(self.embed_context, table, getattr(self.embed, table))
        self.transformer = Transformer(settings.transformer, seed=seed)
        self.context_encoder: Transformer | None = None
        if settings.context_positions and settings.context_layers:
            own = {"layers": settings.context_layers, "cross_attention": "none"}
            blocks = settings.transformer.model_copy(update=own)
            self.context_encoder = Transformer(blocks, seed=seed_of("context encoder", seed))
            copied = self.transformer.state_dict()
            self.context_encoder.load_state_dict({name: copied[name] for name in self.context_encoder.state_dict()})
        width = settings.transformer.width
        if settings.action_size:
            self.action_head: nn.Linear = actions.ContinuousHead(width, settings.action_size, settings.action_bins)
        else:
            self.action_head = nn.Linear(width, settings.actions)
        initialise(self.action_head, draws)
        self.return_head: nn.Linear | None = None
        if settings.predict_return:
            self.return_head = nn.Linear(width, settings.return_bins)
            initialise(self.return_head, draws)

    @property
    def goes_on(self) -> bool:
        """Whether tokens keep their positions while a window grows, so that cached steps equal the whole window."""
        return self.settings.padding == "hidden"

    @property
    def action_token(self) -> int:
        if self.settings.tokens == "merged":
            return 0
        return int(self.settings.return_to_go)

    def token_mask(self, mask_BT: Tensor) -> Tensor:
        """The timestep mask repeated for the tokens of each timestep, [B, N]."""
        per_step = self.settings.tokens_per_step
        if per_step == 1:
            return mask_BT
        return mask_BT.repeat_interleave(per_step, 1)

    def hidden(
        self, window: Experience, context: Experience | None = None, has_context_B: Tensor | None = None
    ) -> Tensor:
        """Final hidden states [B, T, tokens per step, D]."""
        reading = self.reading(context, has_context_B)
        seen, mask_BN = self.seen(window)
        # Without padding no mask is needed; on a GPU to look would cost more than the mask.
        if window.mask.device.type == "cpu" and bool(window.mask.all()):
            mask_BN = None
        hidden_BND = self.transformer(self.embed(seen), mask_BT=mask_BN, **reading)
        hidden_BTKD = hidden_BND.unflatten(1, (seen.mask.shape[1], -1))
        return hidden_BTKD[:, -window.mask.shape[1] :]

    def seen(self, window: Experience) -> tuple[Experience, Tensor | None]:
        """The windows as they are encoded, and which of their tokens are read, bool [B, N]; None: all are."""
        if self.settings.padding == "attended":
            return window.left_padded(self.settings.window, self.settings.no_action), None
        return window, self.token_mask(window.mask)

    def until_action(self, window: Experience) -> tuple[Tensor, Tensor | None]:
        """Tokens and their mask (see `seen`) up to the one that predicts the last timestep's action."""
        window, mask_BN = self.seen(window)
        tokens_BND = self.embed(window)
        behind = self.settings.tokens_per_step - self.action_token - 1
        count = tokens_BND.shape[1] - behind
        return tokens_BND[:, :count], None if mask_BN is None else mask_BN[:, :count]

    def reading(self, context: Experience | None, has_context_B: Tensor | None) -> dict[str, Any]:
        """The transformer's arguments for a context: tokens [B, S, D], which are real [B, S], which rows have one [B]."""
        if context is None or self.embed_context is None:
            return {}
        context_BSD = self.embed_context(context)
        mask_BS = self.token_mask(context.mask)
        if self.settings.context_detached:
            context_BSD = context_BSD.detach()
        if self.context_encoder is not None:
            context_BSD = self.context_encoder(context_BSD, mask_BT=mask_BS)
        return {"context_BSD": context_BSD, "context_mask_BS": mask_BS, "has_context_B": has_context_B}

    def reseed_dropout(self, seed: int) -> None:
        self.transformer.reseed_dropout(seed)
        if self.context_encoder is not None:
            self.context_encoder.reseed_dropout(seed_of("context encoder", seed))

    def act(
        self,
        window: Experience,
        context: Experience | None = None,
        has_context_B: Tensor | None = None,
        *,
        read: ReadContext | None = None,
        dropout: bool = False,
        whole: bool = False,
    ) -> Tensor:
        """Action logits [B, A] (or see `ContinuousHead`) at the last timestep.

        The same as ``forward(...)[0][:, -1]``, but only what that needs is computed. `read`: the context as a cache keeps
        it, in the place of `context` and `has_context_B`. `dropout`: see `Transformer.last`. `whole`: no step is padding.
        """
        tokens_BND, mask_BN = self.until_action(window)
        reading = self.reading(context, has_context_B)
        mask_BN = None if whole else mask_BN
        hidden_BD = self.transformer.last(tokens_BND, mask_BT=mask_BN, **reading, read=read, dropout=dropout)
        return self.action_head(hidden_BD)

    @torch.no_grad()
    def reads(self, window: Experience, context: Experience, has_context_B: Tensor) -> Tensor:
        """How `act` reads the context: the cross-attention of the token that predicts the action, for inspection.

        Returns:
            Means over heads [B, L, S, P] in the L layers that read, of S context timesteps of P tokens. They sum to one
            over (S, P); all are zero where a row has no context.
        """
        layers = len(self.settings.transformer.cross_layers)
        rows, steps = context.mask.shape
        per_step = self.settings.tokens_per_step
        tokens_BND, mask_BN = self.until_action(window)
        reading = self.reading(context, has_context_B)
        _, maps = self.transformer(tokens_BND, mask_BT=mask_BN, return_attention=True, **reading)
        layers_BS = [map_BHTS[:, :, -1].mean(1) for map_BHTS in maps.cross_BHTS if map_BHTS is not None]
        if not layers_BS:
            return tokens_BND.new_zeros(rows, layers, steps, per_step)
        has_context_B11 = has_context_B.to(tokens_BND.device)[:, None, None]
        weights_BLN = torch.stack(layers_BS, 1) * has_context_B11
        return weights_BLN.unflatten(2, (steps, per_step))

    def forward(
        self, window: Experience, context: Experience | None = None, has_context_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Action logits [B, T, A] (or see `ContinuousHead`) and, where `predict_return`, return-to-go logits [B, T, bins]."""
        hidden_BTKD = self.hidden(window, context, has_context_B)
        logits_BTA = self.action_head(hidden_BTKD[:, :, self.action_token])
        if self.return_head is None:
            return logits_BTA, None
        return logits_BTA, self.return_head(hidden_BTKD[:, :, 0])
