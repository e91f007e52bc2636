"""Many small LSTM actor-critics, two LSTMs per task (actor, critic), each in front of the layers of `actor_critics`.

Back-propagation through time is written out over preallocated buffers, as in `actor_critics` and for the same reason.
What one task computes does not depend, to the bit, on how many others are in the ensemble (a test holds this).
The tests hold each network against torch's own LSTM.

Shapes: N = 2E networks, S sequences of L steps, D features, H units. Sequences stand [N, L, S, ...], so that one step of
all of them is one block per network, and all rows together are the R = L · S inputs of the layers behind the LSTM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from recollect.sources.cpu.actor_critics import ActorCritics, tanh, unfit

State = tuple[torch.Tensor, torch.Tensor]
"""Output and cell [N, S, H] of every LSTM."""


class RecurrentActorCritics(ActorCritics):
    """The LSTMs (H = `units`), their gradients, and everything behind them; otherwise as `ActorCritics`.

    The four gates stand side by side: input, forget, output, cell. There is one bias, the sum of torch's two. The first
    weights are torch's: uniform within ±1/√H.
    """

    def __init__(
        self,
        draws: Sequence[np.random.Generator],
        features: int,
        actions: int,
        hidden: Sequence[int],
        activation: Literal["tanh", "relu"],
        units: int,
        **adam: float,
    ) -> None:
        front = [(features + units, 4 * units), (1, 4 * units)]
        super().__init__(draws, units, actions, hidden, activation, front=front, **adam)
        self.features, self.units = features, units
        self.weight, self.bias = self.front
        bound = units**-0.5
        for e, draw in enumerate(draws):
            for n in (2 * e, 2 * e + 1):
                weight = draw.uniform(-bound, bound, (features + units, 4 * units))
                bias = draw.uniform(-bound, bound, (2, 4 * units)).sum(0, keepdims=True)
                self.weight[n] = torch.from_numpy(weight.astype(np.float32))
                self.bias[n] = torch.from_numpy(bias.astype(np.float32))
        # A logistic function is a hyperbolic tangent of half the argument: with these the gates are one tanh.
        self._halves = torch.ones(4 * units)
        self._halves[: 3 * units] = 0.5
        self.state = self.zero_state(1)
        self.refresh()

    def zero_state(self, sequences: int) -> State:
        """The state before an episode, for so many sequences of every network."""
        shape = (2 * self.count, sequences, self.units)
        return torch.zeros(shape), torch.zeros(shape)

    def refresh(self) -> None:
        """Take over the weights as they are now; to be called wherever they have changed, before anything is computed."""
        self._scaled_weight = torch.mul(self.weight, self._halves, out=self._scratch("weight", self.weight.shape))
        self._scaled_bias = torch.mul(self.bias, self._halves, out=self._scratch("bias", self.bias.shape))

    def _named(self) -> dict[str, torch.Tensor]:
        """The state of acting, too."""
        output_N1H, cell_N1H = self.state
        return super()._named() | {"state/output": output_N1H, "state/cell": cell_N1H}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        if "parameters" in arrays and "state/output" not in arrays:
            raise unfit("The checkpoint has no state of these LSTMs.")
        super().load(arrays)
        self.refresh()

    # ---- acting

    def act(self, features_ED: np.ndarray) -> torch.Tensor:
        """One step of every network: outputs [N, A, 1]. The state of acting moves on."""
        output_N1H, cell_N1H = self.state
        x_N1K = self._scratch("acting", (2 * self.count, 1, self.features + self.units))
        x_N1K[:, 0, : self.features] = self.rows_per_task(features_ED)
        x_N1K[:, :, self.features :] = output_N1H
        gates_N1G = self._scratch("acting gates", (2 * self.count, 1, 4 * self.units))
        self._cell(x_N1K, cell_N1H, gates_N1G, cell_N1H, self._scratch("acting tanh", cell_N1H.shape), output_N1H)
        return self.forward(output_N1H)[1]

    def end_episodes(self, done_E: np.ndarray) -> None:
        """Acting in these tasks goes on from the zero state."""
        ended_N = torch.from_numpy(np.flatnonzero(np.repeat(done_E, 2)))
        for part in self.state:
            part[ended_N] = 0.0

    def peek(self, features_ESD: np.ndarray, state: State) -> torch.Tensor:
        """Outputs [N, A, S] after one step from given states; the state of acting stays."""
        output_NSH, cell_NSH = state
        x_NSK = torch.cat([self.rows_per_task(features_ESD), output_NSH], 2)
        gates_NSG = x_NSK.new_empty(*cell_NSH.shape[:2], 4 * self.units)
        after_NSH, tanh_NSH, seen_NSH = (torch.empty_like(cell_NSH) for _ in range(3))
        self._cell(x_NSK, cell_NSH, gates_NSG, after_NSH, tanh_NSH, seen_NSH)
        return self.forward(seen_NSH)[1]

    # ---- learning

    def unroll(
        self, features_ELSD: np.ndarray, keep_ELS: np.ndarray, state: State
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Run over sequences. Returns what `backward_through_time` needs, and outputs [N, A, R].

        Args:
            features_ELSD: inputs of each task.
            keep_ELS: float32, 0 where an episode begins within the sequence (the state starts anew), else 1.
            state: before the first step; not changed.
        """
        _, length, sequences, features = features_ELSD.shape
        networks, units = 2 * self.count, self.units
        shape = (networks, length, sequences)
        self._x = self._scratch("inputs", (*shape, features + units))
        self._gates = self._scratch("gates", (*shape, 4 * units))
        self._cells = self._scratch("cells", (networks, length + 1, sequences, units))
        self._tanh = self._scratch("tanh cells", (*shape, units))
        output_NLSH = self._scratch("outputs", (*shape, units))
        # What the LSTMs read is the features and, behind them, their own last output.
        given_ELSD = self.put(features_ELSD)
        self._x[0::2, ..., :features] = given_ELSD  # actors
        self._x[1::2, ..., :features] = given_ELSD  # critics
        last_NLSH = self._x[..., features:]
        output_NSH, cell_NSH = state
        last_NLSH[:, 0] = output_NSH
        self._cells[:, 0] = cell_NSH
        keep_NLS1 = self.put(keep_ELS).repeat_interleave(2, dim=0)[..., None]
        self._keep: list[torch.Tensor | None] = []
        for t in range(length):
            keep_NS1 = None if keep_ELS[:, t].all() else keep_NLS1[:, t]
            self._keep.append(keep_NS1)
            if keep_NS1 is not None:
                last_NLSH[:, t] *= keep_NS1
                self._cells[:, t] *= keep_NS1
            self._cell(
                self._x[:, t],
                self._cells[:, t],
                self._gates[:, t],
                self._cells[:, t + 1],
                self._tanh[:, t],
                output_NLSH[:, t],
            )
            if t + 1 < length:
                last_NLSH[:, t + 1] = output_NLSH[:, t]
        return self.forward(output_NLSH.flatten(1, 2))

    def backward_through_time(self, hidden: list[torch.Tensor], d_out_NAR: torch.Tensor) -> None:
        """Write the gradients of all parameters, from those of the outputs of the newest `unroll`."""
        units, shape = self.units, self._tanh.shape
        d_output_NLSH = self.backward(hidden, d_out_NAR, to_inputs=True).view(shape)
        step = (shape[0], *shape[2:])
        d_cell, left, right = (self._scratch(name, step) for name in ("d cell", "left", "right"))
        d_next = self._scratch("d output", step)
        back_NGH = self.weight[:, self.features :].transpose(1, 2)
        d_cell.zero_()
        for t in range(shape[1] - 1, -1, -1):
            into, forget, out, new = self._gates[:, t].split(units, dim=2)
            cell, tanh_cell = self._cells[:, t], self._tanh[:, t]
            d_output = d_output_NLSH[:, t]
            if t + 1 < shape[1]:
                d_output += d_next
            # The output: h = out · tanh(c); a gate's own derivative is out (1 - out).
            torch.mul(d_output, out, out=left)
            d_cell += left
            left *= tanh_cell
            torch.mul(left, tanh_cell, out=right)
            d_cell -= right
            torch.mul(left, out, out=right)
            torch.sub(left, right, out=out)
            # The cell: c = forget · c' + into · new.
            torch.mul(d_cell, into, out=left)
            torch.mul(left, new, out=right)
            new *= right
            torch.sub(left, new, out=new)
            torch.mul(right, into, out=into)
            torch.sub(right, into, out=into)
            d_cell *= forget
            torch.mul(d_cell, cell, out=left)
            forget *= left
            torch.sub(left, forget, out=forget)
            # Where a gate stood, its gradient stands now.
            torch.bmm(self._gates[:, t], back_NGH, out=d_next)
            keep_NS1 = self._keep[t]
            if keep_NS1 is not None:
                d_next *= keep_NS1
                d_cell *= keep_NS1
        rows_NRG = self._gates.flatten(1, 2)
        torch.bmm(self._x.flatten(1, 2).transpose(1, 2), rows_NRG, out=self.front_gradients[0])
        torch.sum(rows_NRG, 1, keepdim=True, out=self.front_gradients[1])

    def _cell(
        self,
        x_NSK: torch.Tensor,
        cell_NSH: torch.Tensor,
        gates_NSG: torch.Tensor,
        new_cell_NSH: torch.Tensor,
        tanh_NSH: torch.Tensor,
        output_NSH: torch.Tensor,
    ) -> None:
        """One step of the LSTMs from [features, output] and cell, into the last four arguments."""
        sums_NSG = self._scratch("gate sums", gates_NSG.shape)
        torch.baddbmm(self._scaled_bias, x_NSK, self._scaled_weight, out=sums_NSG)
        tanh(sums_NSG, gates_NSG)
        gates_NSG[..., : 3 * self.units].mul_(0.5).add_(0.5)
        into, forget, out, new = gates_NSG.split(self.units, dim=2)
        added_NSH = torch.mul(into, new, out=self._scratch("added", new_cell_NSH.shape))
        torch.mul(forget, cell_NSH, out=new_cell_NSH)
        new_cell_NSH += added_NSH
        tanh(new_cell_NSH, tanh_NSH)
        torch.mul(out, tanh_NSH, out=output_NSH)
