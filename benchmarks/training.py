"""One training step, against the same model whose transformer is the transformers library's GPT-2.

Embeddings, heads, loss, batches, dropout (0.1), optimiser and weights are the same on both sides; the transformer is
what differs. Where nothing is dropped both give the same loss and gradients. Batches are windows as they are drawn in
training, so some are padded on the left, and every window of RA-DT reads one of 50 steps (retrieval is not timed).
On a GPU both sides train in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2Model

from benchmarks.harness import Comparison, Goal, Side, waiting
from benchmarks.weights import lively
from recollect.common.transformer import TransformerSettings
from recollect.radt.decision_transformer import DecisionTransformer, DecisionTransformerSettings, Experience
from recollect.radt.supervised import Optimisation, make_optimiser
from recollect.settings.seeding import generator


@dataclass(frozen=True)
class Case:
    """A model and a batch."""

    method: str
    width: int
    layers: int
    heads: int
    batch: int
    context: int
    device: str = "cpu"
    compiled: bool = False
    dropout: float = 0.1
    lively: bool = False
    bfloat16: bool = False  # also on a CPU

    @property
    def text(self) -> str:
        """For the table."""
        where = "" if self.device == "cpu" else ", GPU"
        return f"training {self.method}, d{self.width} L{self.layers}, batch {self.batch}{where}" + (
            ", compiled" if self.compiled else ""
        )


RELEASED = {
    (method, width): f"{method.replace('-', '').lower()}_d{width}_training"
    for method in ("DT", "RA-DT", "AD")
    for width in (64, 512)
}
QUICK = (Case("DT", 16, 2, 2, 3, 6), Case("RA-DT", 16, 2, 2, 3, 6), Case("AD", 16, 2, 2, 3, 8))
FULL = (
    Case("DT", 512, 4, 8, 16, 50),
    Case("RA-DT", 512, 4, 8, 16, 50),
    Case("AD", 512, 4, 8, 4, 200),
    Case("DT", 64, 2, 4, 64, 50),
    Case("RA-DT", 64, 2, 4, 64, 50),
    Case("AD", 64, 2, 4, 16, 200),
)
GPU = (
    Case("DT", 512, 4, 8, 128, 50, "cuda"),
    Case("RA-DT", 512, 4, 8, 128, 50, "cuda"),
    Case("AD", 512, 4, 8, 128, 200, "cuda"),
)


class NoPositions(nn.Module):
    """In the place of GPT-2's position table: our embedding has added positions already."""

    def forward(self, position: Tensor) -> Tensor:
        """Nothing to add."""
        return torch.zeros((), device=position.device)


class GPT2(nn.Module):
    """GPT-2 in the place of `recollect.common.transformer.Transformer`, with its weights."""

    def __init__(self, ours: nn.Module, settings: TransformerSettings) -> None:
        super().__init__()
        p = settings.dropout
        config = GPT2Config(
            vocab_size=1,
            n_positions=1,
            n_embd=settings.width,
            n_layer=settings.layers,
            n_head=settings.heads,
            activation_function="gelu",
            resid_pdrop=p,
            embd_pdrop=p,
            attn_pdrop=p,
            add_cross_attention=bool(settings.cross_layers),
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.model = GPT2Model(config)
        self.model.wpe = NoPositions()  # type: ignore[assignment]
        del self.model.wte
        copy_weights(ours, self.model)

    def forward(
        self, x_BTD: Tensor, *, mask_BT: Tensor | None = None, context_BSD: Tensor | None = None,
        context_mask_BS: Tensor | None = None, has_context_B: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """As `Transformer.forward`; every row has a context."""
        del has_context_B
        found = self.model(
            inputs_embeds=x_BTD,
            attention_mask=None if mask_BT is None else mask_BT.long(),
            encoder_hidden_states=context_BSD,
            encoder_attention_mask=None if context_mask_BS is None else context_mask_BS.long(),
        )
        return found.last_hidden_state


@torch.no_grad()
def copy_weights(ours: Any, theirs: Any) -> None:
    """The weights of our transformer into a GPT-2 (whose matrices are transposed)."""

    def copy(source: Any, target: Any) -> None:
        weight = source.weight if isinstance(source, nn.LayerNorm) else source.weight.T
        target.weight.copy_(weight)
        target.bias.copy_(source.bias)

    for block, layer in zip(ours.blocks, theirs.h, strict=True):
        copy(block.norm_attention, layer.ln_1)
        copy(block.qkv, layer.attn.c_attn)
        copy(block.attention_out, layer.attn.c_proj)
        copy(block.norm_mlp, layer.ln_2)
        copy(block.mlp_in, layer.mlp.c_fc)
        copy(block.mlp_out, layer.mlp.c_proj)
        if block.cross:
            copy(block.norm_cross, layer.ln_cross_attn)
            copy(block.cross_q, layer.crossattention.q_attn)
            copy(block.cross_kv, layer.crossattention.c_attn)
            copy(block.cross_out, layer.crossattention.c_proj)
    copy(ours.norm_final, theirs.ln_f)


def network_of(case: Case) -> DecisionTransformer:
    """Our model."""
    reads = case.method == "RA-DT"
    settings = DecisionTransformerSettings(
        return_to_go=case.method != "AD",
        return_embedding="bins" if reads else "linear",
        positions=1600,
        context_positions=1600 if reads else 0,
        transformer=TransformerSettings(
            width=case.width,
            layers=case.layers,
            heads=case.heads,
            dropout=case.dropout,
            cross_attention="all" if reads else "none",
        ),
    )
    network = DecisionTransformer(settings, seed=0).train()
    return lively(network, 2 * (512 / case.width) ** 0.5) if case.lively else network


def twin_of(case: Case) -> DecisionTransformer:
    """The same model with GPT-2 inside."""
    twin = network_of(case)
    twin.transformer = GPT2(twin.transformer, twin.settings.transformer)  # type: ignore[assignment]
    return twin.train()


def window(case: Case, batch: int, end_B: np.ndarray, purpose: str) -> Experience:
    """Random experience, left padded: the last `end_B` timesteps are real."""
    draw = generator("benchmark windows", purpose)
    steps = case.context
    real = torch.from_numpy(np.arange(steps) >= steps - end_B[:, None])
    first = draw.integers(0, 50, (batch, 1))
    time = torch.from_numpy(np.maximum(first + np.arange(steps) - (steps - end_B[:, None]), 0))
    return Experience(
        observation=torch.from_numpy(draw.integers(0, 10, (batch, steps, 2))) * real[..., None],
        return_to_go=torch.from_numpy(draw.random((batch, steps), np.float32) * 90) * real,
        action=torch.where(real, torch.from_numpy(draw.integers(0, 5, (batch, steps))), 5),
        reward=torch.from_numpy(draw.integers(0, 2, (batch, steps)).astype(np.float32)) * real,
        timestep=time * real,
        mask=real,
    ).map(lambda field: field.to(case.device))


def batch_of(case: Case) -> tuple[Experience, Experience | None]:
    """A window as it is drawn from episodes of 100 steps, and the full window that RA-DT reads."""
    draw = generator("benchmark window ends")
    if case.method == "AD":  # a whole earlier episode, then a prefix of the current one
        end_B = case.context // 2 + draw.integers(1, case.context // 2, case.batch)
    else:
        end_B = np.minimum(draw.integers(1, 2 * case.context, case.batch), case.context)
    now = window(case, case.batch, end_B, "now")
    if case.method != "RA-DT":
        return now, None
    return now, window(case, case.batch, np.full(case.batch, case.context), "context")


def trainer(network: DecisionTransformer, case: Case) -> Callable[[], Tensor]:
    """A function that does one training step on the batch and gives the loss."""
    network.to(case.device)
    now, context = batch_of(case)
    has_context = None if context is None else torch.ones(case.batch, dtype=torch.bool)
    optimiser = make_optimiser(network, Optimisation(learning_rate=1e-3))
    forward: Any = torch.compile(network) if case.compiled else network
    real = now.mask.flatten().nonzero(as_tuple=True)[0]
    target = now.action.flatten()[real]

    def step() -> Tensor:
        with torch.autocast(case.device, torch.bfloat16, enabled=case.bfloat16 or case.device != "cpu"):
            logits_BTA, _ = forward(now, context, has_context)
        loss = F.cross_entropy(logits_BTA.flatten(0, 1)[real].float(), target)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.25)
        optimiser.step()
        return loss.detach()

    return step


def difference(case: Case) -> float:
    """One step that drops nothing on the CPU: the largest relative difference of the loss and of a (clipped) gradient.

    The gradients of embeddings and heads are compared: they come through every part of the transformer.
    """
    # So little dropout that nothing is ever dropped, but not zero: that would take other paths than those that are timed.
    case = replace(case, dropout=1e-12, lively=True, device="cpu", compiled=False, batch=min(case.batch, 4))
    ours, theirs = network_of(case), twin_of(case)
    loss, other_loss = float(trainer(ours, case)()), float(trainer(theirs, case)())
    shared = dict(theirs.named_parameters())
    gaps = [abs(loss - other_loss) / abs(loss)]
    for name, parameter in ours.named_parameters():
        if parameter.grad is not None and not name.startswith("transformer."):
            other = shared[name].grad
            assert other is not None
            gaps.append(float((parameter.grad - other).norm() / parameter.grad.norm()))
    return max(gaps)


def comparisons(quick: bool) -> Iterator[Comparison]:
    """CPU, and GPU where there is one (eager and compiled)."""
    cases: tuple[Case, ...] = QUICK if quick else FULL
    if torch.cuda.is_available():
        gpu = tuple(replace(case, device="cuda") for case in QUICK) if quick else GPU
        cases += gpu if quick else gpu + tuple(replace(case, compiled=True) for case in gpu)
    for case in cases:
        plain = replace(case, compiled=False)
        yield Comparison(
            work=case.text,
            unit="samples",
            plain="the same on transformers' GPT-2" + (", not compiled" if case.compiled else ""),
            ours=Side(waiting(trainer(network_of(case), case), case.device), case.batch),
            against=Side(waiting(trainer(twin_of(plain), plain), case.device), case.batch),
            difference=partial(difference, case),
            tolerance=1e-4,
            rounds=3 if case.width > 64 and case.device == "cpu" else None,
            goal=Goal(1.5 if case.device == "cpu" else 2.0),
            released="" if case.device != "cpu" else RELEASED.get((case.method, case.width), ""),
            notes=("forward, backward and AdamW, dropout 0.1; windows padded as in training, without retrieval",),
        )
