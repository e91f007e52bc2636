"""Seeds of a method trained together: one step of their frozen language model reads for all of them, and the host waits less.

- Each member is a run as it is alone (`OnPolicyTrainer`): it plays, learns, logs and saves by itself, from its own random
  streams, with its own network. They only take their steps in turn. So members need not be at the same place of their runs,
  a run that was begun alone goes on together with others, and the other way round.
- What new images become is asked of the frozen models for all members at once (`recollect.helm.asking`).
- The keys and values of all members lie in one ring (`helm.language.shared_memory`). The host waits once for what all agents
  say. Games that other processes play (Procgen) are played side by side.
- A member's numbers are those of the run alone, but for how sums of more rows are rounded in the language model.

Ours; the released code trains a seed at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts import stopping
from recollect.artifacts.progress import Progress
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.common.runs_together import RunsTogether
from recollect.helm.asking import Question
from recollect.helm.on_policy import OnPolicyTrainer
from recollect.helm.sampled_policy import ReadsTogether, apart
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings

RING_BYTES = {"cpu": 2e9, "cuda": 16e9}
"""What the keys and values of those may take that are trained together; more seeds wait for their turn. A Transformer-XL with
511 inputs remembers 75 MB for each game. From 100 or 200 games on, a step takes as much longer as it has more of them."""

Played = tuple[dict[str, Tensor], np.ndarray]
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
        gc.collect()  # rings that nobody reads go at once: they are in circles with their graphs, and fill a GPU
        shared = share(self.trainers)
        gc.collect()  # each member's own, too
        while going and list(self.trainers) == going:
            self.rollout(shared)
            self.steps |= {place: trainer.steps for place, trainer in self.trainers.items()}
            progress.update(sum(self.steps.values()))
            last = self.runs[going[-1]]  # it is saved last, and so knows what it takes to save all
            if last.due(self.steps[going[-1]], self.settings[0].method.hyperparameters.checkpoint_every):
                self.each(partial(self._save, last.clock()), going)
                if stopping.asked():  # all are saved: it ends here, not behind another rollout
                    last.due(self.steps[going[-1]], 0)
            self.each(self._end, [place for place, trainer in self.trainers.items() if trainer.done])

    def rollout(self, shared: ReadsTogether | None) -> None:
        """Play a rollout of every run that goes on, and learn from it. `shared`: see `share`."""
        for place, played in self._play(shared).items():
            self.attempt(place, partial(self.trainers[place].learn, self.runs[place], *played))

    def _play(self, shared: ReadsTogether | None) -> dict[int, Played]:
        """Play a rollout of every run that goes on, and leave out those that fail on the way."""
        members = dict(self.trainers)
        with ExitStack() as held:
            for trainer in members.values():
                held.enter_context(trainer.playing())
            for _ in range(next(iter(members.values())).hp.rollout):
                self._step(members, shared)
            found = {place: self.attempt(place, trainer.played) for place, trainer in list(self.trainers.items())}
        return {place: played for place, played in found.items() if played is not None}

    def _step(self, members: Mapping[int, OnPolicyTrainer], shared: ReadsTogether | None) -> None:
        """One step of every run."""
        said: dict[int, Tensor] = {}
        for place, trainer in list(self.trainers.items()):
            judged = self.attempt(place, partial(_judged, trainer))
            if judged is not None:
                said[place] = judged
        if not said:
            return
        on_host = torch.stack(list(said.values())).cpu().numpy()  # one wait for all
        chosen = {
            place: self.attempt(place, partial(self.trainers[place].begin_step, *apart(both_BA)))
            for place, both_BA in zip(said, on_host, strict=True)
        }
        for place, action_E in chosen.items():  # games that other processes play go on side by side
            if action_E is not None:
                self.attempt(place, partial(self.trainers[place].end_step, action_E))
        for place, trainer in list(self.trainers.items()):  # and so do their beginnings
            self.attempt(place, trainer.begin_episodes)
        if shared is None:
            self.each(self._see, self.trainers)
            return
        numbers = {place: number for number, place in enumerate(members)}
        inputs = {numbers[place]: given for place, given in self._inputs().items()}
        vectors = shared.step(inputs) if inputs else {}
        for place, number in numbers.items():
            if number in vectors:
                self.attempt(place, partial(_see, self.trainers[place], vectors[number]))

    def _inputs(self) -> dict[int, Tensor]:
        """What the language model reads of each run. What frozen models must be asked for is asked for all runs at once."""
        questions: dict[int, Question] = {}
        for place, trainer in list(self.trainers.items()):
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


def _judged(trainer: OnPolicyTrainer) -> Tensor:
    trainer.look()
    return trainer.agent.judge()


def _question(trainer: OnPolicyTrainer) -> Question:
    assert trainer.agent.history is not None
    return Question(trainer.agent.history.reading(trainer.observation))


def _see(trainer: OnPolicyTrainer, states_BH: Tensor) -> None:
    assert trainer.agent.history is not None
    trainer.agent.see(trainer.observation, trainer.agent.history.vectors(states_BH))


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
