"""Seeds of a method trained together: one step of their frozen language model reads for all of them, and the host waits less.

- Each member is a run as it is alone (`OnPolicyTrainer`): it plays, learns, logs and saves by itself, from its own random
  streams, with its own network. They only take their steps in turn. So members need not be at the same place of their runs,
  a run that was begun alone goes on together with others, and the other way round.
- On a GPU members are two groups: while it reads for one of them, the host plays the games of the other. On a CPU they are one.
- What new images become is asked of the frozen models for all members of a group at once (`recollect.helm.asking`).
- Their keys and values lie in one ring (`helm.language.shared_memory`). The host waits once for what their agents say. Games that
  other processes play (Procgen, MiniWorld) are played side by side.
- A member's numbers are those of the run alone, but for how sums of more rows are rounded in the language model.

Ours; the released code trains a seed at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts import stopping
from recollect.artifacts.progress import Progress
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.common.runs_together import RunsTogether
from recollect.common.transfer import Fetched
from recollect.helm.asking import Question
from recollect.helm.on_policy import OnPolicyTrainer
from recollect.helm.sampled_policy import ReadsTogether, unpacked_outputs
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings

GROUPS = {"cpu": 1, "cuda": 2}
"""Of members. More would be smaller batches: what the host takes for a step is about what a GPU takes for it."""

RING_BYTES = {"cpu": 2e9, "cuda": 16e9}
"""What the keys and values of those may take that are trained together; more seeds wait for their turn. A Transformer-XL with
511 inputs remembers 75 MB for each game. From 100 or 200 games on, a step takes as much longer as it has more of them."""

Played = tuple[dict[str, Tensor], np.ndarray]
Said = tuple[list[int], Fetched] | None
"""What some agents say of their games, by the places of their runs; None: all of them have failed."""

Finished = Callable[[int, Mapping[str, np.ndarray]], None]


class Together(RunsTogether[OnPolicyTrainer]):
    """Runs on their way to their ends, as many at a time as there is room for.

    Args:
        make_trainer: makes one at the beginning of its run.
        finished: is told the place of each run that has ended and the arrays of its policy, at once.
    """

    def __init__(
        self,
        make_trainer: Callable[[Settings, Inputs], OnPolicyTrainer],
        settings: Sequence[Settings],
        inputs: Inputs,
        runs: Sequence[Run],
        finished: Finished,
    ) -> None:
        super().__init__(runs)
        self.make_trainer, self.settings, self.inputs, self.finished = make_trainer, settings, inputs, finished
        self.steps: dict[int, int] = {}  # of every run that was begun with those that go on, by its place

    def train(self) -> None:
        """Train each run to its end, or to where it breaks. Raises UserError: their memories cannot be shared."""
        waiting = list(range(len(self.runs)))
        while waiting:
            while waiting and not self.trainers:  # until one could be begun, which knows what it takes
                self.begin(waiting.pop(0))
            if not self.trainers:
                break
            left = 1 + len(waiting)
            turns = -(-left // self._room())
            for _ in range(-(-left // turns) - 1):  # about as many in each turn
                self.begin(waiting.pop(0))
            self.steps = {place: trainer.steps for place, trainer in self.trainers.items()}
            total = self.settings[0].method.hyperparameters.steps * len(self.trainers)
            title = f"training {len(self.trainers)} seeds together"
            with Progress(total, title, start=sum(self.steps.values())) as progress:
                while self.trainers:
                    self._go_on(progress)

    def _room(self) -> int:
        """How many runs go on at a time, by what the memory of one takes."""
        for trainer in self.trainers.values():
            history = trainer.agent.history
            if history is not None and history.row_bytes:
                most = RING_BYTES["cuda" if trainer.agent.device.type == "cuda" else "cpu"]
                return max(1, int(most / (history.row_bytes * trainer.hp.actors)))
        return len(self.runs)

    def begin(self, place: int) -> None:
        """Take in a run, from its newest checkpoint."""
        self.attempt(place, partial(self._resumed, place))

    def _resumed(self, place: int) -> None:
        trainer = self.make_trainer(self.settings[place], self.inputs)
        checkpoint = self.runs[place].resume()
        if checkpoint is not None:
            trainer.load(checkpoint.arrays, checkpoint.state)
        self.trainers[place] = trainer

    def _go_on(self, progress: Progress) -> None:
        """Rollout by rollout, until a run has ended or failed, as those that are left share a smaller memory."""
        self.each(self._end, [place for place, trainer in self.trainers.items() if trainer.done])
        going = list(self.trainers)
        groups = groups_of(self.trainers)
        while going and list(self.trainers) == going:
            self.rollout(groups)
            self.steps |= {place: trainer.steps for place, trainer in self.trainers.items()}
            progress.update(sum(self.steps.values()))
            last = self.runs[going[-1]]  # it is saved last, and so knows what it takes to save all
            if last.due(self.steps[going[-1]], self.settings[0].method.hyperparameters.checkpoint_every):
                self.each(partial(self._save, last.clock()), going)
                if stopping.asked():  # all are saved: it ends here, not behind another rollout
                    last.due(self.steps[going[-1]], 0)
            self.each(self._end, [place for place, trainer in self.trainers.items() if trainer.done])

    def rollout(self, groups: Sequence[Group]) -> None:
        """Play a rollout of every run that goes on, and learn from it."""
        for place, played in self._play(groups).items():
            self.attempt(place, partial(self.trainers[place].learn, self.runs[place], *played))

    def _play(self, groups: Sequence[Group]) -> dict[int, Played]:
        """Play a rollout of every run that goes on, and leave out those that fail on the way."""
        with ExitStack() as held:
            for trainer in self.trainers.values():
                held.enter_context(trainer.playing())
            steps = next(iter(self.trainers.values())).hp.rollout
            said = [self._judge(group) for group in groups]
            for left in reversed(range(steps)):
                for number, group in enumerate(groups):
                    self._step(said[number])
                    self._read(group)
                    said[number] = self._judge(group) if left else None
            found = {place: self.attempt(place, trainer.played) for place, trainer in list(self.trainers.items())}
        return {place: played for place, played in found.items() if played is not None}

    def _going(self, places: Sequence[int]) -> dict[int, OnPolicyTrainer]:
        """Those that have not failed."""
        return {place: self.trainers[place] for place in places if place in self.trainers}

    def _judge(self, group: Group) -> Said:
        """Have the agents of a group say what they make of what they see. Nobody waits for it yet."""
        said: dict[int, Tensor] = {}
        for place, trainer in self._going(group.places).items():
            judged = self.attempt(place, partial(_outputs, trainer))
            if judged is not None:
                said[place] = judged
        return (list(said), Fetched(torch.stack(list(said.values())))) if said else None

    def _step(self, said: Said) -> None:
        """Play one step of every run of which something is said."""
        if said is None:
            return
        places, fetched = said
        chosen = {
            place: self.attempt(place, partial(self.trainers[place].begin_step, *unpacked_outputs(both_BA)))
            for place, both_BA in zip(places, fetched.numpy(), strict=True)  # one wait for all
        }
        for place, action_E in chosen.items():  # games that other processes play go on side by side
            if action_E is not None:
                self.attempt(place, partial(self.trainers[place].end_step, action_E))
        for place, trainer in self._going(places).items():  # and so do their beginnings
            self.attempt(place, trainer.begin_episodes)

    def _read(self, group: Group) -> None:
        """Have the runs of a group see what they have come to."""
        if group.shared is None:
            self.each(self._see, self._going(group.places))
            return
        inputs = {group.places.index(place): given for place, given in self._inputs(group).items()}
        vectors = group.shared.step(inputs) if inputs else {}
        for number, vectors_BH in vectors.items():
            place = group.places[number]
            self.attempt(place, partial(_see, self.trainers[place], vectors_BH))

    def _inputs(self, group: Group) -> dict[int, Tensor]:
        """What the language model reads of each run. What frozen models must be asked for is asked for all runs at once."""
        questions: dict[int, Question] = {}
        for place, trainer in self._going(group.places).items():
            question = self.attempt(place, partial(_question, trainer))
            if question is not None:
                questions[place] = question
        asked = {place: question.asked for place, question in questions.items() if question.asked is not None}
        if asked:
            history = next(iter(self.trainers.values())).agent.history
            assert history is not None
            answers = history.answer(torch.cat(list(asked.values()))).split([len(rows) for rows in asked.values()])
            for place, answer in zip(asked, answers, strict=True):
                self.attempt(place, partial(questions[place].told, answer))
        return {place: question.result for place, question in questions.items() if place in self.trainers}

    def _see(self, place: int) -> None:
        trainer = self.trainers[place]
        trainer.agent.see(trainer.observation)

    def _save(self, began: float, place: int) -> None:
        trainer = self.trainers.get(place)
        if trainer is not None and not trainer.done:
            self.runs[place].save(trainer.steps, *trainer.saved(), began=began)

    def _end(self, place: int) -> None:
        trainer = self.trainers.pop(place)
        self.finished(place, trainer.best or trainer.agent.learned())


def _outputs(trainer: OnPolicyTrainer) -> Tensor:
    trainer.look()
    return trainer.agent.outputs()


def _question(trainer: OnPolicyTrainer) -> Question:
    assert trainer.agent.history is not None
    return Question(trainer.agent.history.reading(trainer.observation))


def _see(trainer: OnPolicyTrainer, states_BH: Tensor) -> None:
    assert trainer.agent.history is not None
    trainer.agent.see(trainer.observation, trainer.agent.history.vectors(states_BH))


class Group(NamedTuple):
    """Runs that take their steps together, by their places."""

    places: list[int]
    shared: ReadsTogether | None
    """What reads for all of them, each by its number in `places`; None: they have no history, or one is alone."""


def groups_of(trainers: Mapping[int, OnPolicyTrainer]) -> list[Group]:
    """Runs in groups; see `GROUPS`. Raises UserError: as `share`."""
    device = next((trainer.agent.device.type for trainer in trainers.values()), "cpu")
    parts = np.array_split(list(trainers), GROUPS.get(device, 1))
    groups = []
    for places in (part.tolist() for part in parts if len(part)):
        gc.collect()  # rings that nobody reads go at once: they are in circles with their graphs, and fill a GPU
        groups.append(Group(places, share({place: trainers[place] for place in places})))
    gc.collect()  # each member's own, too
    return groups


def share(trainers: Mapping[int, OnPolicyTrainer]) -> ReadsTogether | None:
    """What reads for all agents, numbered in the order of `trainers`; None: they have no history, or one is alone.

    Raises UserError: such histories are not read together.
    """
    histories = [trainer.agent.history for trainer in trainers.values()]
    if not histories or histories[0] is None:
        return None
    if len(histories) > 1 and any(trainer.hp.bootstrap_truncation for trainer in trainers.values()):
        raise UserError(
            "values behind a time limit are read by each seed alone (`bootstrap_truncation`)",
            where="ensemble",
            do="train the seeds one after the other: take the method out of the scale's `ensembles`",
        )
    return histories[0].share(histories)
