"""Acting with a context that is read by cross-attention, one timestep per call: only what a step changes is computed.

- A context is embedded, and its keys and values made, when a row's context changes; retrieval mostly finds again what it
  found a step before.
- While an episode fits into the window, a row whose context stayed takes one cached step; one whose context is new is
  encoded anew, it alone.
- Where a row's window slides (or positions count its padding), positions count from its first timestep, so all of it is
  encoded anew; its context is not. The other rows then go with it, in one call of the network.

The logits are those of `DecisionTransformer.act` on whole windows, up to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recollect.common.acting_state import Acting
from recollect.common.transfer import sent
from recollect.radt.acting import CachedSteps, InContextPolicy
from recollect.radt.decision_transformer import DecisionTransformer
from recollect.radt.experience import Experience


class CachedReading(Acting):
    """What a policy that reads a context keeps from step to step. `timesteps`: of the window."""

    acting = ("steps", "context_BSD", "next_B")

    def __init__(
        self, network: DecisionTransformer, rows: int, timesteps: int, dtype: torch.dtype | None = None
    ) -> None:
        self.network = network
        self.rows = rows
        self.timesteps = timesteps
        self.steps = CachedSteps(network, rows, timesteps, dtype)
        self.context_BSD: Tensor | None = None
        self.next_B = np.zeros(rows, np.int64)  # the step that would continue what each row's cache holds

    def act(self, policy: InContextPolicy, context: Experience, has_context_B: Tensor, changed_B: np.ndarray) -> Tensor:
        """Action logits [B, A] (or see `ContinuousHead`) for now.

        Args:
            changed_B: rows whose context is another than at the last call.
        """
        if changed_B.any():
            self._read(context, has_context_B, changed_B)
        network, cache = self.network, self.steps.cache
        step_B = policy.step_B
        if not network.goes_on or (step_B >= self.timesteps).any():  # a window slides
            self.next_B[:] = -1
            return policy.act_on(policy.window(self.timesteps), cache.context)
        anew_B = changed_B | (step_B != self.next_B) | (step_B == 0)
        self.next_B = step_B + 1
        if not anew_B.any():
            return self.steps.append_now(policy.now())
        # R rows are encoded anew; the others take one step.
        rows = sent(np.flatnonzero(anew_B), policy.device)
        window = policy.window(self.timesteps, anew_B)
        tokens_RND, mask_RN = network.until_action(window)
        hidden_RND = cache.refill(rows, tokens_RND, mask_RN)
        logits_RA = network.action_head(hidden_RND[:, -1])
        if anew_B.all():
            return logits_RA
        others_B = sent(~anew_B, policy.device)
        logits_BA = self.steps.append_now(policy.now(), others_B)
        logits_BA[rows] = logits_RA
        return logits_BA

    def _read(self, context: Experience, has_context_B: Tensor, changed_B: np.ndarray) -> None:
        rows = sent(np.flatnonzero(changed_B), has_context_B.device)
        reading = self.network.reading(context.select(rows), has_context_B[rows])
        changed_RSD = reading["context_BSD"]
        if self.context_BSD is None:
            self.context_BSD = changed_RSD.new_zeros(self.rows, *changed_RSD.shape[1:])
        self.context_BSD[rows] = changed_RSD
        mask_BS = self.network.token_mask(context.mask)
        self.steps.cache.set_context(self.context_BSD, mask_BS, has_context_B, rows_B=changed_B)
