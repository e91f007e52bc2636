"""The networks and the loss of `recollect.sources.cpu` as ordinary modules with autograd, one task at a time.

They say in few words what that folder computes; the tests of `ppo` and `recurrent_ppo` compare the two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.masked_mean import ALL
from recollect.common.ppo_loss import ppo_loss
from recollect.sources.cpu.actor_critics import ActorCritics
from recollect.sources.cpu.recurrent_actor_critics import RecurrentActorCritics

State = tuple[Tensor, Tensor]


def perceptron(networks: ActorCritics, number: int, outputs: int) -> nn.Sequential:
    """The layers of one of the N networks: [R, D] -> [R, outputs]."""
    layers: list[nn.Module] = []
    for weight_NIO, bias_N1O in zip(networks.parameters[:-2:2], networks.parameters[1:-2:2], strict=True):
        layers += [_linear(weight_NIO[number].T, bias_N1O[number, 0])]
        layers += [nn.Tanh() if networks.activation == "tanh" else nn.ReLU()]
    weight_NAH, bias_NA1 = networks.parameters[-2:]
    return nn.Sequential(*layers, _linear(weight_NAH[number, :outputs], bias_NA1[number, :outputs, 0]))


def _linear(weight_OI: Tensor, bias_O: Tensor) -> nn.Linear:
    linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0])
    linear.weight.data, linear.bias.data = weight_OI.clone(), bias_O.clone()
    return linear


class RecurrentNetwork(nn.Module):
    """One of the N recurrent networks: torch's own LSTM, stepped one observation at a time, and the layers behind it."""

    def __init__(self, networks: RecurrentActorCritics, number: int, outputs: int) -> None:
        super().__init__()
        features, units = networks.features, networks.units
        # Ours stand as input, forget, output, cell; torch's as input, forget, cell, output.
        gates = [*range(2 * units), *range(3 * units, 4 * units), *range(2 * units, 3 * units)]
        weight_GK = networks.weight[number][:, gates].T
        self.lstm = nn.LSTMCell(features, units)
        self.lstm.weight_ih.data, self.lstm.weight_hh.data = weight_GK.clone().split((features, units), dim=1)
        self.lstm.bias_ih.data = networks.bias[number, 0, gates].clone()
        self.lstm.bias_hh = nn.Parameter(torch.zeros(4 * units), requires_grad=False)  # ours have one bias
        self.behind = perceptron(networks, number, outputs)

    def forward(self, x_LSD: Tensor, keep_LS: Tensor, state: State) -> tuple[Tensor, State]:
        """Outputs [L, S, outputs] and the state after the last step; where `keep` is 0, an episode begins."""
        outputs = []
        for x_SD, keep_S in zip(x_LSD, keep_LS, strict=True):
            output_SH, cell_SH = state
            state = self.lstm(x_SD, (output_SH * keep_S[:, None], cell_SH * keep_S[:, None]))
            outputs.append(self.behind(state[0]))
        return torch.stack(outputs), state


def loss_of(
    logits_BA: Tensor,
    value_B: Tensor,
    action_B: Tensor,
    old_log_B: Tensor,
    advantage_B: Tensor,
    return_B: Tensor,
    *,
    clip: float,
    value_coefficient: float,
    entropy: float,
) -> Tensor:
    """PPO's loss of one task's minibatch; arguments as in `output_gradients`."""
    log_BA = F.log_softmax(logits_BA, dim=1)
    return ppo_loss(
        log_BA,
        value_B,
        action_B,
        old_log_B,
        ALL.standardised(advantage_B),
        return_B,
        clip=clip,
        value_coefficient=value_coefficient,
        entropy=entropy,
    ).loss
