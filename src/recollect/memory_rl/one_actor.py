"""One actor's step, by hand: what `HistoryPolicy` computes for one row, on numpy arrays and without modules.

Memory-RL's papers collect with one actor. A step is then 0.05 ms of arithmetic, and the calls of PyTorch around it
took ten times as long. numpy's calls take less. On a CPU the arrays are the network's own weights; from another device
they are copied for each episode.

Outputs equal those of `HistoryPolicy` to 1e-6 of their size, as sums are taken in another order; dropout draws the same bits
(on a GPU the plain policy draws from the device, so there only their distribution is the same). So an action is another
one only where two outputs are nearer to each other than that. GPTs that do not slide and LSTMs act so, with discrete actions;
see `OneActor.of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from recollect.common.cpu.dropout import Dropout
from recollect.common.rollout import Episodes, VectorWorld
from recollect.common.sequence_models import RecurrentSequence
from recollect.common.transformer import Block, Transformer
from recollect.environments import faults
from recollect.memory_rl.history_policy import HistoryNetwork
from recollect.memory_rl.transformer_sequence import TransformerSequence

Vector = np.ndarray
_ROOT, _CUBE = math.sqrt(2 / math.pi), 0.044715  # of the tanh form of GELU


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values; on a CPU they are not copied."""
    return tensor.detach().cpu().numpy()


class _Linear:
    """``W x + b``; what it returns is written over by the next call."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight, self.bias = _array(weight), _array(bias)
        self._out = np.empty(len(self.bias), np.float32)

    def __call__(self, x: Vector) -> Vector:
        out = np.dot(self.weight, x, out=self._out)
        out += self.bias
        return out


def _linear(layer: nn.Module) -> _Linear:
    assert isinstance(layer, nn.Linear)
    return _Linear(layer.weight, layer.bias)


class _Norm:
    """Layer normalisation; what it returns is written over by the next call."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self.gain, self.bias, self.eps = _array(norm.weight), _array(norm.bias), norm.eps
        self._mean = np.full(len(self.gain), 1 / len(self.gain), np.float32)
        self._out = np.empty_like(self.gain)

    def __call__(self, x: Vector) -> Vector:
        out = np.subtract(x, x.dot(self._mean), out=self._out)
        out *= 1 / math.sqrt(float(out.dot(out)) / len(out) + self.eps)
        out *= self.gain
        out += self.bias
        return out


def _gelu(x: Vector, out: Vector) -> Vector:
    np.multiply(x, x, out=out)
    out *= _ROOT * _CUBE
    out += _ROOT
    out *= x
    np.tanh(out, out=out)
    out += 1.0
    out *= x
    out *= 0.5
    return out


def _add(h: Vector, y: Vector, kept: Callable[[int], Vector] | None) -> None:
    if kept is not None:
        y *= kept(len(y))
    h += y


class _Block:
    """A layer of the GPT, with the keys and values of the tokens so far."""

    def __init__(self, block: Block, keys_values: np.ndarray) -> None:
        self.norm_attention, self.norm_mlp = _Norm(block.norm_attention), _Norm(block.norm_mlp)
        self.qkv, self.out = _linear(block.qkv), _linear(block.attention_out)
        self.mlp_in, self.mlp_out = _linear(block.mlp_in), _linear(block.mlp_out)
        self.keys_HLD, self.values_HLD = keys_values
        heads, length, width = self.keys_HLD.shape
        self._scores = np.empty(length, np.float32)
        self._ones = np.ones(length, np.float32)
        self._read_HD = np.empty((heads, width), np.float32)
        self._inner = np.empty(len(self.mlp_in.bias), np.float32)

    def __call__(self, h: Vector, t: int, kept: Callable[[int], Vector] | None) -> None:
        """Add what the layer makes of token t to its hidden state; `kept` gives the next dropout factors."""
        heads, _, width = self.keys_HLD.shape
        q_HD, k_HD, v_HD = self.qkv(self.norm_attention(h)).reshape(3, heads, width)
        self.keys_HLD[:, t], self.values_HLD[:, t] = k_HD, v_HD
        q_HD *= width**-0.5
        end = t + 1
        kept_HT = None if kept is None else kept(heads * end).reshape(heads, end)
        scores, ones = self._scores[:end], self._ones[:end]
        for head in range(heads):
            np.dot(self.keys_HLD[head, :end], q_HD[head], out=scores)
            scores -= np.maximum.reduce(scores)
            np.exp(scores, out=scores)
            scores /= scores.dot(ones)
            if kept_HT is not None:
                scores *= kept_HT[head]
            np.dot(scores, self.values_HLD[head, :end], out=self._read_HD[head])
        _add(h, self.out(self._read_HD.reshape(-1)), kept)
        _add(h, self.mlp_out(_gelu(self.mlp_in(self.norm_mlp(h)), self._inner)), kept)


class _GPT:
    def __init__(self, sequence: TransformerSequence, tokens: int) -> None:
        self._gpt: Transformer = sequence.transformer
        gpt = self._gpt
        shape = (len(gpt.blocks), 2, gpt.heads, tokens, gpt.head_width)
        self._blocks = [_Block(block, kv) for block, kv in zip(gpt.layers(), np.empty(shape, np.float32), strict=True)]
        self._norm = _Norm(gpt.norm_final)
        self._places_TD = _array(sequence.positions.table_LD)
        # All that an episode can draw, with the roundings of single steps.
        ends = np.arange(1, tokens + 1)
        self._draws = _fours(gpt.width) * tokens * (1 + 2 * len(self._blocks))
        self._draws += len(self._blocks) * int(_fours(gpt.heads * ends).sum())

    def begin(self, dropout: bool) -> None:
        self._t = self._drawn = 0
        p = self._gpt.p_embedding if dropout else 0.0
        self._kept = self._next_factors if p else None
        if p:
            self._factors = self._gpt.dropout.keep((self._draws,), p).mul_(Dropout.scale(p)).numpy()

    def _next_factors(self, count: int) -> Vector:
        first = self._drawn
        self._drawn = first + _fours(count)
        return self._factors[first : first + count]

    def __call__(self, x: Vector) -> Vector:
        h = x + self._places_TD[self._t]
        if self._kept is not None:
            h *= self._kept(len(h))
        for block in self._blocks:
            block(h, self._t, self._kept)
        self._t += 1
        return self._norm(h)


def _fours(count: Any) -> Any:
    """Dropout draws words of four."""
    return (count + 3) // 4 * 4


class _LSTM:
    def __init__(self, sequence: RecurrentSequence) -> None:
        H = sequence.output_width
        self._weights = [[_array(weight) for weight in layer] for layer in sequence.cells.all_weights]
        self._states = np.zeros((sequence.layers, 2, H), np.float32)
        # sigmoid(x) = tanh(x / 2) / 2 + 1/2: one tanh makes all gates; order: input, forget, cell, output.
        self._half = np.full(4 * H, 0.5, np.float32)
        self._shift = self._half.copy()
        self._half[2 * H : 3 * H], self._shift[2 * H : 3 * H] = 1.0, 0.0
        self._gates, self._other = np.empty((2, 4 * H), np.float32)

    def begin(self, dropout: bool) -> None:
        self._states.fill(0.0)
        self._layers = [
            (ih, hh, b_ih + b_hh, *state)
            for (ih, hh, b_ih, b_hh), state in zip(self._weights, self._states, strict=True)
        ]

    def __call__(self, x: Vector) -> Vector:
        gates, other = self._gates, self._other
        for ih, hh, bias, hidden, cell in self._layers:
            np.dot(ih, x, out=gates)
            gates += np.dot(hh, hidden, out=other)
            gates += bias
            gates *= self._half
            np.tanh(gates, out=gates)
            gates *= self._half
            gates += self._shift
            write, forget, new, read = gates.reshape(4, -1)
            cell *= forget
            new *= write
            cell += new
            np.tanh(cell, out=hidden)
            hidden *= read
            x = hidden
        return x


class OneActor:
    """The history of one row.

    Args:
        tokens: most steps of an episode.
    """

    @classmethod
    def of(cls, network: HistoryNetwork, tokens: int) -> OneActor | None:
        """None where the network cannot act so."""
        sequence = network.encoder.sequence
        if isinstance(sequence, TransformerSequence):
            settings = sequence.transformer.settings
            plain = not sequence.slides and not settings.cross_layers and settings.activation == "gelu_tanh"
            fits = plain and len(set(settings.dropouts)) == 1
        else:
            fits = isinstance(sequence, RecurrentSequence) and sequence.kind == "lstm"
        return cls(network, tokens) if fits and not network.encoder.embedder.action_size else None

    def __init__(self, network: HistoryNetwork, tokens: int) -> None:
        self._network, self._most = network, tokens
        self.no_action = network.encoder.embedder.actions
        self._read: list[int] | None = None

    @torch.no_grad()
    def begin(self, dropout_seed: int | None) -> None:
        """Start an episode with the network's present weights.

        Args:
            dropout_seed: a GPT drops out as in training, from a stream with this seed; None: nothing is dropped.
        """
        embedder = self._network.encoder.embedder
        self._device = embedder.one_hot.device
        where = [parameter.data_ptr() for parameter in self._network.parameters()]
        if self._device.type != "cpu" or where != self._read:
            self._read_weights()
            self._read = where
        if dropout_seed is not None:
            self._network.encoder.sequence.reseed_dropout(dropout_seed)
        self._sequence.begin(dropout_seed is not None)
        self._sees_reward = embedder.reward is not None
        self._tokens_seen: dict[tuple[int, float, bytes], Vector] = {}

    def _read_weights(self) -> None:
        sequence, head = self._network.encoder.sequence, self._network.head
        self._sequence: _GPT | _LSTM
        if isinstance(sequence, TransformerSequence):
            self._sequence = _GPT(sequence, self._most)
        else:
            assert isinstance(sequence, RecurrentSequence)
            self._sequence = _LSTM(sequence)
        self._hidden, self._last = [_linear(layer) for layer in head.hidden], _linear(head.last)

    def outputs(self, action: int, reward: float, observation: np.ndarray) -> Vector:
        """Outputs [A] after one more token (see `HistoryPolicy.outputs`); the next call writes over them."""
        key = action, reward if self._sees_reward else 0.0, observation.tobytes()
        token = self._tokens_seen.get(key)
        if token is None:  # few differ in an episode of these worlds
            token = self._tokens_seen[key] = self._token(action, reward, observation)
        x = self._sequence(token)
        for layer in self._hidden:
            x = layer(x)
            np.maximum(x, 0.0, out=x)
        return self._last(x)

    @torch.no_grad()
    def _token(self, action: int, reward: float, observation: np.ndarray) -> Vector:
        parts = np.array([action]), np.array([reward], np.float32), observation.reshape(1, -1)
        return _array(self._network.encoder.embedder(*(torch.from_numpy(part).to(self._device) for part in parts)))[0]


def play_alone(world: VectorWorld, actor: OneActor, choose: Callable[[Vector, int], int]) -> Episodes:
    """`play_episodes` of one instance; `choose` maps the outputs [A] of step t, and t, to an action."""
    T, space = world.horizon, world.single_observation_space
    observations = np.zeros((1, T + 1, *space.shape), space.dtype)
    actions, rewards = np.zeros((1, T), np.int64), np.zeros((1, T), np.float32)
    terminals, success, length = np.zeros((1, T), np.uint8), np.full(1, np.nan), T
    action, reward = actor.no_action, 0.0
    observations[:, 0] = world.reset(options={"reset_mask": np.ones(1, bool)})[0]
    for t in range(T):
        action = choose(actor.outputs(action, reward, observations[0, t]), t)
        observation_1D, reward_1, terminated, truncated, info = world.step(np.array([action]))
        reward = reward_1.item()
        observations[0, t + 1], rewards[0, t], actions[0, t] = observation_1D[0], reward, action
        if terminated.item() or truncated.item():
            terminals[0, t], length = terminated.item(), t + 1
            success[:] = np.asarray(info.get("success", np.nan), np.float64)
            break
    observations, actions, rewards = observations[:, : length + 1], actions[:, :length], rewards[:, :length]
    faults.check_episode(world, observations[0], rewards[0])
    return Episodes(observations, actions, rewards, terminals[:, :length], np.array([length]), success)
