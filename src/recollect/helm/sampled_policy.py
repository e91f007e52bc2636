"""What HELM and its baselines act with: a network that reads images and, in its own way, the past; actions are drawn.

An `Agent` plays B rows at once. Its base class remembers nothing but what a `History` gives it (a vector per row, which
is never trained); `helm.ppo_lstm` has one whose memory is trained.

Shapes: B rows, H numbers of a history's vector, A actions; E, T, N, M as of `on_policy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part
from recollect.common.batched_policy import BatchedPolicy
from recollect.common.distinct_images import DistinctImages, RolloutFeatures
from recollect.common.draws import categorical_from_uniform
from recollect.common.transfer import sent
from recollect.common.weights import arrays_of
from recollect.environments import counter_rng
from recollect.helm.asking import Answer, Asking
from recollect.helm.graphs_by_shape import GraphsByShape
from recollect.helm.small_impala import ActorCritic


class ReadsTogether(Protocol):
    """A frozen model that reads for several agents in one step."""

    def step(self, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """What it makes of each agent's inputs, by the agent's number. An agent without inputs has failed and never reads again."""


class History(Protocol):
    """Turns what B rows have seen into one vector each. Nothing in it is trained.

    A checkpoint has `arrays`, a policy only what was `learned`. What inspection pages show of the newest image is `traced`
    at every step and `maps` at some (see `recollect.common.contract.Traced`); `words` names the tokens.
    """

    width: int

    @property
    def rows_at_once(self) -> int | None: ...

    def start(self, batch: int) -> None: ...

    def reset(self, mask_B: np.ndarray) -> None: ...

    @property
    def row_bytes(self) -> float:
        """What it keeps of a row, where that is much; else 0."""

    def read(self, images: np.ndarray) -> Tensor:
        """The vectors [B, width] after one more image each, uint8 [B, *shape], which is remembered."""

    def peek(self, images: np.ndarray) -> Tensor:
        """As `read`, but nothing is remembered."""

    def reading(self, images: np.ndarray) -> Asking:
        """`read` as an `Asking`: yields what it asks of the frozen model, is sent the answer, and returns the model's outputs.

        `answer` is the same for all seeds, so one call of it can serve several.
        """

    @property
    def answer(self) -> Answer: ...

    def vectors(self, states_BH: Tensor) -> Tensor:
        """What `read` returns, of what `reading` returned."""

    def share(self, histories: Sequence[Any]) -> ReadsTogether | None:
        """What reads for several agents at once, of which this is the first's; None: it is alone, and reads by itself.

        Raises UserError: it cannot.
        """

    def arrays(self) -> dict[str, Any]: ...

    def load(self, arrays: Mapping[str, Any]) -> None: ...

    def learned(self) -> dict[str, np.ndarray]: ...

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]: ...

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]: ...

    def words(self, tokens: Sequence[int]) -> list[str]: ...


class Minibatch(NamedTuple):
    """What one step of the optimiser is about: moments of a rollout, of which moment n is step n // E of game n % E."""

    moment: Tensor
    """int64, of any shape."""
    there: Tensor | None = None
    """bool, of the same shape: False where a moment only fills the shape up. None: all count."""


class Agent:
    """Acts on images and a history vector, or (`history` None) on images alone. The network is trained."""

    def __init__(self, network: ActorCritic, history: History | None, device: torch.device | str) -> None:
        self.network, self.history, self.device = network.to(device), history, torch.device(device)
        self.features = RolloutFeatures(network.encoder)
        forward = partial(self._forward, network, self.features)
        self.acting_graph = GraphsByShape(forward, "acting goes on without CUDA graphs")
        self._images = torch.zeros(0, dtype=torch.uint8)
        self._history_BH: Tensor | None = None

    # ---- acting

    def start(self, batch: int) -> None:
        if self.history is not None:
            self.history.start(batch)

    def forget(self, mask_B: np.ndarray) -> None:
        """The rows of the mask begin an episode."""
        if self.history is not None:
            self.history.reset(mask_B)

    def see(self, images: np.ndarray, vectors_BH: Tensor | None = None) -> None:
        """Look at images uint8 [B, *shape]: what `act`, `value` and `record` then are about.

        `vectors_BH`: what the history makes of them, where it has read them already.
        """
        self._images = self.put(images)
        if self.history is not None:
            self._history_BH = self.history.read(images) if vectors_BH is None else vectors_BH

    def record(self) -> dict[str, Tensor]:
        """What the update must know of this moment: [B, ...] each. Called in front of `act`."""
        found = {"image": self._images}
        return found if self._history_BH is None else {**found, "history": self._history_BH}

    def act(self) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities [B, A] and values [B]; a GPU is waited for once."""
        return unpacked_outputs(self.outputs())

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """What `act` gives, on the device: values behind log-probabilities [B, A + 1], until the next call; nothing waits."""
        return self._of_images(self._images, self._history_BH)

    @torch.no_grad()
    def value(self, images: np.ndarray | None = None) -> np.ndarray:
        """Values [B] of what the rows see, or would if they saw these images next; nothing is remembered."""
        if images is None:
            return self.act()[1]
        history_BH = None if self.history is None else self.history.peek(images)
        return unpacked_outputs(self._of_images(self.put(images), history_BH))[1]

    def _of_images(self, images: Tensor, history_BH: Tensor | None) -> Tensor:
        return self.acting_graph(images) if history_BH is None else self.acting_graph(images, history_BH)

    @staticmethod
    def _forward(network: ActorCritic, features: RolloutFeatures, images: Tensor, *remembered: Tensor) -> Tensor:
        """What the network says of images [B, A + 1]. `remembered`: the history vectors, where there are any."""
        return packed_outputs(*network.of_features(features(images), *remembered))

    # ---- what inspection pages show, see `History`

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {} if self.history is None else self.history.traced(rows_N)

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {} if self.history is None else self.history.maps(rows_N)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [] if self.history is None else self.history.words(tokens)

    # ---- learning

    def epoch(
        self,
        images: DistinctImages,
        moments: Mapping[str, Tensor],
        done_TE: np.ndarray,
        batches: int,
        draws: np.random.Generator,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One pass over a rollout of N = T * E moments in random order, minibatch by minibatch.

        Each is computed with the weights as they are when it is asked for.

        Args:
            images: of all moments.
            moments: what else `record` gave, [N, ...]; moment n is step n // E of row n % E.

        Yields which moments [M], their log-probabilities [M, A] and values [M].
        """
        for minibatch in self.minibatches(done_TE, batches, draws):
            yield minibatch.moment, *self.of_minibatch(images, moments, minibatch)

    def minibatches(self, done_TE: np.ndarray, batches: int, draws: np.random.Generator) -> Iterator[Minibatch]:
        """The minibatches of a pass on the device, of few shapes, so that CUDA graphs can make their updates."""
        for chosen_M in self.put(draws.permutation(done_TE.size)).tensor_split(batches):
            yield Minibatch(chosen_M)

    def of_minibatch(
        self, images: DistinctImages, moments: Mapping[str, Tensor], minibatch: Minibatch
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [M, A] and values [M] of a minibatch's moments, with the weights as they are; see `epoch`."""
        history_NH = moments.get("history")
        features_MW = images.features(self.network.encoder, minibatch.moment)
        return self.network.of_features(features_MW, None if history_NH is None else history_NH[minibatch.moment])

    # ---- bytes

    def put(self, array: np.ndarray) -> Tensor:
        return sent(array, self.device)

    def arrays(self) -> dict[str, Any]:
        """The network, and all that changes while acting."""
        found = joined(network=self.network.state_dict())
        if self.history is not None:
            found |= joined(history=self.history.arrays())
        return found if self._history_BH is None else {**found, "seen": self._history_BH}

    def load(self, arrays: Mapping[str, Any], images: np.ndarray) -> None:
        """Put back what `arrays` gave, with the images that the rows saw then."""
        weights = part(arrays, "network")
        self.network.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
        self._images = self.put(images)
        if self.history is not None:
            self.history.load(part(arrays, "history"))
            self._history_BH = torch.as_tensor(arrays["seen"]).to(self.device)

    def state_arrays(self) -> dict[str, Any]:
        """What changes while it plays and nothing is learned, see `recollect.common.acting_state`."""
        return {} if self.history is None else joined(history=self.history.arrays())

    def load_state(self, arrays: Mapping[str, Any], device: Any = None) -> None:
        if self.history is not None:
            self.history.load(part(arrays, "history"))

    def learned(self) -> dict[str, np.ndarray]:
        """What makes a policy: the network's parameters, and what the history has of its own."""
        found = joined(network=arrays_of(self.network))
        if self.history is not None:
            found |= joined(history=self.history.learned())
        return {name: np.array(value) for name, value in found.items()}


def packed_outputs(log_BA: Tensor, value_B: Tensor) -> Tensor:
    """Values behind log-probabilities, [B, A + 1]."""
    return torch.cat([log_BA, value_B[:, None]], 1)


def unpacked_outputs(both: Tensor | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities [B, A] and values [B] as arrays, see `packed_outputs`; a GPU is waited for once."""
    both = both.cpu().numpy() if isinstance(both, Tensor) else both
    return np.ascontiguousarray(both[:, :-1]), np.ascontiguousarray(both[:, -1])


class SampledPolicy(BatchedPolicy):
    """Plays an agent; a row's actions are drawn with its own seed, or `likeliest`.

    So no row depends on the others, but of HELMv2 with the statistics of its batch.
    """

    acting = (*BatchedPolicy.acting, "agent")

    def __init__(self, agent: Agent, *, likeliest: bool = False) -> None:
        self.agent, self.device, self.likeliest = agent, agent.device, likeliest
        self.rows_at_once = None if agent.history is None else agent.history.rows_at_once
        self._log_BA, self._value_B = np.zeros((0, 1), np.float32), np.zeros(0, np.float32)
        self._action_B = np.zeros(0, np.int64)

    def begin(self, rows: int) -> None:
        self.agent.start(rows)

    def forget(self, mask_B: np.ndarray) -> None:
        self.agent.forget(mask_B)

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        """Actions int64 [B]; where done, the image begins an episode, and what came before is forgotten."""
        ended_B, _ = self.next_step(done_B)
        if ended_B.any():
            self.forget(ended_B)
        self.agent.see(observation_BD)
        self._log_BA, self._value_B = self.agent.act()
        if self.likeliest:
            self._action_B = self._log_BA.argmax(1)
        else:
            # Not `action_chances`: its other stream would change every score that was published with this one.
            noise_B = (counter_rng.draw(self.seeds_B, self.draws_B) >> np.uint64(40)).astype(np.float32) * 2**-24
            self.draws_B = self.draws_B + np.uint64(1)
            self._action_B = categorical_from_uniform(self._log_BA, noise_B)
        return self._action_B

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """Log-probabilities, action, value, and what the history says of the newest image; see `contract.Traced`."""
        found = {"outputs": self._log_BA[rows_N], "action": self._action_B[rows_N], "value": self._value_B[rows_N]}
        return {**found, **self.agent.traced(rows_N)}

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return self.agent.maps(rows_N)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return self.agent.words(tokens)

    def arrays(self) -> dict[str, np.ndarray]:
        return self.agent.learned()
