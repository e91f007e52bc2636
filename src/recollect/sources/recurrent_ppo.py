"""Recurrent PPO for the learning histories: PPO whose actor and critic remember, one agent per task, all tasks at once.

- Every agent is sb3-contrib's ``RecurrentPPO("MlpLstmPolicy")``, the source agent of RA-DT in MazeRunner (defaults there,
  defaults here): an LSTM each for actor and critic, two tanh layers of 64 behind each, states zeroed where an episode
  begins and carried from rollout to rollout, one step of Adam per minibatch. `ppo` says what holds for both.
- Minibatches are whole segments of `segment` steps, each begun from the state that was recorded when it was played;
  gradients end at its ends, and states are reset within it. There a minibatch is a run of consecutive steps, with the
  rollout turned by a random offset in each epoch: gradients end at the offset, too.
- Each LSTM has one bias where torch has two that are added (and so moved twice as far).
- An episode that the horizon cut short is bootstrapped from the critic's value of its last observation, as there. The
  code that made the released data writes that value into the reward it stores, too: ``stored_reward="with_value"``.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from recollect.common.advantages import advantages
from recollect.common.draws import categorical_from_uniform
from recollect.sources import ppo
from recollect.sources.cpu.output_gradients import log_softmax
from recollect.sources.cpu.recurrent_actor_critics import RecurrentActorCritics, State
from recollect.sources.recording import task_generators

ACTIONS = "discrete"


class Hyperparameters(ppo.Hyperparameters):
    """The source agent. "Paper" values are those of MazeRunner (sb3-contrib's defaults)."""

    rollout: int = Field(128, gt=1, description="Steps between two learning phases. Paper: 128.")
    minibatch: int = Field(
        128,
        gt=1,
        description="Transitions per gradient step; must divide `rollout`. Larger is faster and smoother. Paper: 128.",
    )
    segment: int = Field(
        128,
        gt=1,
        description="Steps through which gradients flow back; must divide `minibatch`. Shorter is faster. Paper: up to 128.",
    )
    epochs: int = Field(10, gt=0, description="Passes over each rollout. Paper: 10.")
    entropy: float = Field(0.0, ge=0, description="Weight of the entropy bonus; more explores longer. Paper: 0.")
    units: int = Field(256, gt=0, description="Width of each LSTM. Paper: 256.")
    hidden: tuple[int, ...] = Field(
        (64, 64), description="Widths of the layers behind each LSTM; may be none. Paper: 64, 64."
    )

    stored_reward: Literal["paid", "with_value"] = Field(
        "paid",
        description="At the last step of an episode that the horizon cut: what was paid, or (released) with the discounted "
        "value that is bootstrapped there.",
    )

    @model_validator(mode="after")
    def _segments_fill_the_minibatch(self) -> Hyperparameters:
        if self.minibatch % self.segment:
            raise ValueError(f"segment {self.segment} does not divide minibatch {self.minibatch}")
        return self


class LastLooks:
    """What the critics look at once more after a rollout: where every task stands then, and the ends of cut episodes.

    A page has room for what the horizon can cut, in its column 0 for where a task stands; a world that cuts more gets further
    pages. All are of one size, so that no bit of a task's depends on the others.

    Args:
        count: tasks, E.
        features: of an encoded observation.
        room: columns of a page.
    """

    def __init__(self, networks: RecurrentActorCritics, count: int, features: int, room: int) -> None:
        self.networks, self.count, self.features, self.room = networks, count, features, room
        self.pages = [self._page()]
        self.used_E = np.ones(count, np.int64)
        self.cuts: list[tuple[int, np.ndarray, np.ndarray]] = []

    def note(self, t: int, cut_M: np.ndarray, seen_ED: np.ndarray) -> None:
        """Keep what these tasks saw last, and what their networks remember, before their episodes end.

        Args:
            t: the step that was cut.
            cut_M: places of the tasks.
            seen_ED: encoded last observations of all tasks.
        """
        place_M = self.used_E[cut_M]
        if place_M.max() == self.room * len(self.pages):
            self.pages.append(self._page())
        for number in np.unique(place_M // self.room):
            on_it = place_M // self.room == number
            task_K, column_K = cut_M[on_it], place_M[on_it] % self.room
            features_ESD, state = self.pages[number]
            features_ESD[task_K, column_K] = seen_ED[task_K]
            for kept, part in zip(state, self.networks.state, strict=True):
                for network in (0, 1):
                    kept[2 * task_K + network, column_K] = part[2 * task_K + network, 0]
        self.used_E[cut_M] += 1
        self.cuts.append((t, cut_M, place_M))

    def worth(self, now_ED: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """What the critics give: where every task stands [E], and at each step that was cut [T, E], else 0."""
        features_ESD, state = self.pages[0]
        features_ESD[:, 0] = now_ED
        for kept, part in zip(state, self.networks.state, strict=True):
            kept[:, 0] = part[:, 0]
        worth_ES = np.concatenate([self.networks.peek(*page)[1::2, 0].numpy() for page in self.pages], axis=1)
        cut_worth_TE = np.zeros((steps, self.count), np.float32)
        for t, cut_M, place_M in self.cuts:
            cut_worth_TE[t, cut_M] = worth_ES[cut_M, place_M]
        return worth_ES[:, 0], cut_worth_TE

    def _page(self) -> tuple[np.ndarray, State]:
        """Room for features [E, room, D], and states of the LSTMs."""
        return np.zeros((self.count, self.room, self.features), np.float32), self.networks.zero_state(self.room)


class RecurrentPPO(ppo.EnsemblePPO):
    """E agents in E tasks; arguments: `recollect.sources.ppo.EnsemblePPO`."""

    title: ClassVar[str] = "recurrent PPO"
    settings: Hyperparameters
    networks: RecurrentActorCritics

    def _build_networks(self) -> RecurrentActorCritics:
        return RecurrentActorCritics(
            task_generators("recurrent-ppo-weights", self.seed, self.tasks),
            self.inputs.features,
            self.recorder.actions,
            self.settings.hidden,
            self.settings.activation,
            self.settings.units,
            learning_rate=self.settings.learning_rate,
            epsilon=self.settings.adam_epsilon,
        )

    def _play(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """See `EnsemblePPO._play`; keeps the states at the starts of segments, and what cut episodes are worth."""
        noise_TE = self._noise(steps)
        networks, recorder, count = self.networks, self.recorder, len(self.tasks)
        values_TE = np.empty((steps + 1, count), np.float32)
        logs_TE = np.empty((steps, count), np.float32)
        self._starts: list[State] = []
        looks = LastLooks(networks, count, self.inputs.features, room=2 + steps // recorder.world.horizon)
        for t in range(steps):
            if t % self.settings.segment == 0:
                self._starts.append((networks.state[0].clone(), networks.state[1].clone()))
            out_NA1 = networks.act(self.inputs.encode(recorder.observation))
            log_EA = log_softmax(out_NA1[0::2])[..., 0].numpy()
            values_TE[t] = out_NA1[1::2, 0, 0].numpy()
            action_E = categorical_from_uniform(log_EA, noise_TE[t])
            logs_TE[t] = np.take_along_axis(log_EA, action_E[:, None], axis=1)[:, 0]
            recorder.step(action_E)
            if recorder.truncated.any():
                looks.note(t, np.flatnonzero(recorder.truncated), self.inputs.encode(recorder.final_observation))
            networks.end_episodes(recorder.done[recorder.length - 1])
        values_TE[steps], self._cut_worth_TE = looks.worth(self.inputs.encode(recorder.observation), steps)
        if self.settings.stored_reward == "with_value":
            played = slice(recorder.length - steps, recorder.length)
            recorder.reward[played] += np.float32(self.settings.gamma) * self._cut_worth_TE
        return values_TE, logs_TE

    def _learn(self, rollout: slice, values_TE: np.ndarray, log_probabilities_TE: np.ndarray) -> None:
        settings, recorded, count = self.settings, self.recorder, len(self.tasks)
        stored = settings.stored_reward == "with_value"  # then the value is in the reward already
        reward_TE = recorded.reward[rollout] + np.float32(0 if stored else settings.gamma) * self._cut_worth_TE
        done_TE = recorded.done[rollout]
        advantage_TE = advantages(reward_TE, done_TE, values_TE, settings.gamma, settings.gae_lambda)
        keep_TE = np.ones_like(reward_TE)
        keep_TE[1:] = ~done_TE[:-1]
        segments, length = settings.rollout // settings.segment, settings.segment
        keep_TE[::length] = 1  # the recorded states are zeroed there already
        batches = settings.rollout // settings.minibatch

        def by_segment(array_TE: np.ndarray) -> np.ndarray:
            """[T, E, ...] -> [E, G, L, ...], G segments of L steps."""
            split = array_TE.reshape(segments, length, count, *array_TE.shape[2:])
            return np.ascontiguousarray(np.moveaxis(split, 2, 0))

        features_EGLD = by_segment(self.inputs.encode(recorded.observations[rollout]))
        action_TE, return_TE = recorded.action[rollout].astype(np.int64), advantage_TE + values_TE[:-1]
        rows_EGL = [by_segment(array) for array in (action_TE, log_probabilities_TE, advantage_TE, return_TE)]
        keep_EGL = by_segment(keep_TE)
        starts_NGH = [torch.stack(parts, dim=1).squeeze(2) for parts in zip(*self._starts, strict=True)]
        task_E1, network_N1 = np.arange(count)[:, None], torch.arange(2 * count)[:, None]
        for order_EG in np.swapaxes(self._orders(segments), 0, 1):
            for chosen_ES in np.split(order_EG, batches, axis=1):
                # Sequences stand behind time in the networks: [E, S, L, ...] -> [E, L, S, ...].
                features_ELSD, keep_ELS, *rows_ELS = (
                    np.swapaxes(array[task_E1, chosen_ES], 1, 2) for array in (features_EGLD, keep_EGL, *rows_EGL)
                )
                of_network_NS = torch.from_numpy(np.repeat(chosen_ES, 2, axis=0))
                output_NSH, cell_NSH = (part[network_N1, of_network_NS] for part in starts_NGH)
                hidden, out_NAR = self.networks.unroll(features_ELSD, keep_ELS, (output_NSH, cell_NSH))
                batch = [self.networks.put(array.reshape(count, -1)) for array in rows_ELS]
                d_out_NAR = self._output_gradients(out_NAR, None, *batch)
                self.networks.backward_through_time(hidden, d_out_NAR)
                self._update()

    def _update(self) -> None:
        super()._update()
        self.networks.refresh()


generate = partial(ppo.train_ensembles, RecurrentPPO)
