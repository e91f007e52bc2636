"""Runs of one method that differ in their seed, trained together: one batched update for all.

Each member is a run as it is alone (`OffPolicyTrainer`): it plays, is judged and saves by itself, from its own random streams,
into its own replay. Its updates are made together with the others', on stacked weights (`recollect.memory_rl.stacked`), and
read and write the very tensors of the members. So members need not be at the same place of their runs, a run that was
begun alone goes on in an ensemble, and the other way round. Where all are at the same place, they also play together.

A member's numbers are those of the run alone but for rounding: a batched product adds in another order than a single one.
The first updates agree to 2e-6 of a tensor's largest number; later ones drift apart, as from one device to another.
On CUDA dropout draws from the device's one generator, so there masks differ from those of the run alone, too.

Shapes: as of `stacked`.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial, reduce
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.progress import Progress
from recollect.artifacts.run import Run
from recollect.common.compiled import compiled
from recollect.common.contract import Inputs
from recollect.common.cuda_graphs import Captured
from recollect.common.masked_mean import masked_means
from recollect.common.polyak import follow
from recollect.common.precision import tf32
from recollect.common.rollout import Episodes
from recollect.common.runs_together import RunsTogether
from recollect.common.transfer import sent
from recollect.environments.parallel import stepped_in_turn
from recollect.memory_rl import playing_together
from recollect.memory_rl.history_policy import HistoryPolicy, reseed_dropout
from recollect.memory_rl.learner import Learner, Turn
from recollect.memory_rl.off_policy import OffPolicyTrainer, trainer_of
from recollect.memory_rl.replay import STORES, Batch, EpisodeReplay
from recollect.memory_rl.rounds_on_device import RoundsOnDevice, remembers_whole
from recollect.memory_rl.stacked import OneAfterTheOther, StackedLSTM, spread_gradients, stacked
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

log = logging.getLogger(__name__)


class Ensemble:
    """The joint update of some members, whose networks, replays and sums of metrics become views of stacked tensors.

    Raises:
        UserError: the method's networks cannot be stacked.
    """

    def __init__(self, members: Sequence[OffPolicyTrainer]) -> None:
        self.members = members
        first = members[0]
        self.hp, self.device = first.hp, first.replay.device
        self.window = self.hp.window(first.horizon)
        self.learner = stacked_learner([member.learner for member in members])
        self.replay = stacked_replay([member.replay for member in members])
        self.adam = copy.copy(first.learner.optimiser)  # one call steps the parameters of all members
        for name in ("parameters", "first", "second", "steps", "decays"):
            joint = [tensor for member in members for tensor in getattr(member.learner.optimiser, name)]
            setattr(self.adam, name, joint)
        self.followed = [tensor for member in members for tensor in member.learner.followed]
        self.targets = [tensor for member in members for tensor in member.learner.targets]
        self.drawn_2R = torch.zeros(2, len(members) * self.hp.batch_size, dtype=torch.int64, device=self.device)
        place_S = torch.arange(len(members), device=self.device)
        self.first_row_R1 = (place_S * first.replay.capacity).repeat_interleave(self.hp.batch_size)[:, None]
        drawn = first.learner.noise(self.hp.batch_size, self.window, 0)
        self.noise = tuple(torch.zeros(len(members) * len(x), *x.shape[1:], device=self.device) for x in drawn)
        self.sums: dict[str, Tensor] = {}
        on_gpu = self.device.type == "cuda"
        # One member's noise may take a millisecond, of which the whole update may have ten.
        self.threads = ThreadPoolExecutor(min(len(members), os.cpu_count() or 1)) if on_gpu and self.noise else None
        # One for rounds and one for evaluations: each keeps its rows, and with them its graphs.
        self.playing, self.judged = (HistoryPolicy(self.learner.network, self.device, graphed=on_gpu) for _ in range(2))
        self.on_device = self._on_device() if on_gpu else None  # how to play a round, and an evaluation
        self.loss = self.learner.loss
        if on_gpu and self.hp.compile and self._compiles():
            torch.compiler.reset()  # of a larger ensemble, which members have left: else it counts as a recompilation
            # Each of several turns leaves parameters without a gradient, which Adam then leaves alone.
            self.loss = compiled(self.learner.loss, self.device, whole=len(self.learner.turns) > 1)
        self.compute: Callable[[], None] = self._compute
        if on_gpu:
            self.compute = Captured(self._compute, "joint updates are made without CUDA graphs")

    def update(self) -> None:
        """One update of every member, of which each has one due."""
        self._draw()
        if self.device.type == "cuda":
            self._reseed("dropout", [member.at.updates for member in self.members])
        self.compute()
        for member in self.members:
            member.at.updates += 1
            member.at.updates_due -= 1
            member.at.logged_updates += 1

    def play(self) -> list[Episodes] | None:
        """The evaluation, or round of episodes, that is next in every member's run; None where they play by themselves."""
        if isinstance(self.learner.network.encoder.sequence, OneAfterTheOther):
            return None
        if all(member.at.evaluation_due for member in self.members):
            if self.on_device is not None:
                return playing_together.evaluated_on_device(self.on_device[1], self.members)
            return playing_together.evaluated(self.judged, self.members)
        if any(member.at.evaluation_due or member.next_round()[0] for member in self.members):
            return None
        self._reseed("dropout while acting", [member.at.rounds for member in self.members])
        if self.on_device is not None:
            return playing_together.round_on_device(self.on_device[0], self.members)
        return playing_together.round_of(self.playing, self.members)

    def _compiles(self) -> bool:
        """Whether the loss is one that torch.compile can have as a whole."""
        sequence = self.learner.network.encoder.sequence
        if not isinstance(sequence, StackedLSTM):
            return self.hp.sequence.kind == "gpt"
        with self.learner.products():
            return sequence.compiles

    def _on_device(self) -> tuple[RoundsOnDevice, RoundsOnDevice] | None:
        """Where members can play without the host: for their rounds, and for their evaluations."""
        network, first = self.learner.network, self.members[0]
        explores = first.learner.drawn_before(0, 0, np.random.default_rng(0)) is not None
        stacks = not isinstance(network.encoder.sequence, OneAfterTheOther)
        if first.hp.actors > 1 or not explores or not stacks or not remembers_whole(network, first.horizon):
            return None
        worlds, judged = zip(*((member.world, member.evaluation_world) for member in self.members), strict=True)
        there, judging = worlds[0].on_device(worlds, self.device), judged[0].on_device(judged, self.device)
        if there is None or judging is None:
            return None
        return (
            RoundsOnDevice(network, there, self.device, explores=first.learner),
            RoundsOnDevice(network, judging, self.device),
        )

    def _draw(self) -> None:
        """Each member's windows and noise, from its own streams, onto the device in copies that nothing waits for."""
        batch = self.hp.batch_size

        def noise_of(member: OffPolicyTrainer) -> tuple[Tensor, ...]:
            return member.learner.noise(batch, self.window, member.at.updates)

        noises = map(noise_of, self.members) if self.threads is None else self.threads.map(noise_of, self.members)
        drawn = []
        for member in self.members:
            drawn.append(member.replay.draw(batch, self.window, seed=member.seed, counter=member.at.updates))
        self.drawn_2R.copy_(sent(np.concatenate(drawn, axis=1), self.device))
        for here, parts in zip(self.noise, zip(*noises, strict=True), strict=True):
            here.copy_(sent(torch.cat(parts), self.device))

    def _reseed(self, purpose: str, counters: Sequence[int], turn: Turn = ()) -> None:
        """Begin each member's streams of dropout as the run alone does; on CUDA the one stream that there is."""
        if self.device.type == "cuda":
            torch.cuda.manual_seed(
                seed_of(f"{purpose}, ensemble", *(member.seed for member in self.members), *counters)
            )
            return
        for member, counter in zip(self.members, counters, strict=True):
            if purpose == "dropout":
                reseed_dropout(member.learner.target, seed_of("dropout in targets", member.seed, counter))
            reseed_dropout(member.learner.online, seed_of(purpose, member.seed, counter, *turn))

    def _compute(self) -> None:
        """The update: a function of tensors that stay where they are. Never waits for the device, asks for no value."""
        batch = self.replay.gather(self.drawn_2R, self.window, self.first_row_R1)
        self.learner.online.train()  # which walks through all modules: not in front of a graph
        metrics: dict[str, Tensor] = {}
        norms = []
        for turn in self.learner.turns:
            norm_S, seen = self._step(batch, turn)
            norms.append(norm_S)
            metrics |= seen
        follow(self.targets, self.followed, self.hp.polyak)
        with torch.no_grad():
            self._add({**metrics, "gradient_norm": reduce(torch.hypot, norms)})

    def _step(self, batch: Batch, turn: Turn) -> tuple[Tensor, dict[str, Tensor]]:
        """One turn of the update: the norm of each member's gradient [k], and metrics, [k] each."""
        if self.device.type != "cuda":
            self._reseed("dropout", [member.at.updates for member in self.members], turn)
        online = self.learner.online
        online.zero_grad(set_to_none=True)
        with self.learner.products():
            loss_S, metrics = self.loss(batch, self.noise, turn)
            loss_S.sum().backward()  # type: ignore[no-untyped-call]
        spread_gradients(online)
        gradients = self.adam.gradients()
        norms = torch.stack(torch._foreach_norm(gradients)).view(len(self.members), -1)
        norm_S = torch.linalg.vector_norm(norms, dim=1)
        if self.hp.gradient_clip is not None:
            factor_S = (self.hp.gradient_clip / (norm_S + 1e-6)).clamp(max=1.0)
            factors = factor_S.repeat_interleave(norms.shape[1]).unbind(0)
            torch._foreach_mul_(gradients, factors)
        self.adam.step()
        return norm_S, metrics

    def _add(self, metrics: dict[str, Tensor]) -> None:
        """Add to the sums, of which each member's are views."""
        if not self.sums:
            self.sums = {name: torch.zeros(len(self.members), device=self.device) for name in metrics}
            for place, member in enumerate(self.members):
                for name, total_S in self.sums.items():
                    total_S[place] = member.sums.get(name, 0.0)
                member.sums = {name: total_S[place] for name, total_S in self.sums.items()}
        for name, value_S in metrics.items():
            self.sums[name].add_(value_S)


def stacked_learner(learners: Sequence[Learner]) -> Learner:
    """A learner whose loss is [k]: one of each member. Raises UserError: its networks cannot be stacked."""
    whole: Any = copy.copy(learners[0])
    whole.online = stacked([learner.online for learner in learners])
    whole.target = stacked([learner.target for learner in learners])
    names = [name for name, module in learners[0].online.named_modules() if module is learners[0].network]
    whole.network = whole.online.get_submodule(names[0])
    whole.mean = partial(masked_means, members=len(learners))
    return cast("Learner", whole)


def stacked_replay(replays: Sequence[EpisodeReplay]) -> EpisodeReplay:
    """Rings one behind the other, to gather from; the members' own become views of them."""
    whole = copy.copy(replays[0])
    for name in STORES:
        store = torch.stack([getattr(replay, name) for replay in replays])
        for replay, view in zip(replays, store, strict=True):
            setattr(replay, name, view)
        setattr(whole, name, store.flatten(0, 1))
    return whole


class Together(RunsTogether[OffPolicyTrainer]):
    """Runs that differ in their seed on their way to their ends.

    Attributes:
        made: updates of every run that was begun, by its place.
        plays_together: no longer, once that has failed where each run plays by itself.
    """

    def __init__(
        self,
        learner: Callable[..., Learner],
        settings: Sequence[Settings],
        inputs: Inputs,
        runs: Sequence[Run],
        finished: Callable[[int, HistoryPolicy], None],
    ) -> None:
        super().__init__(runs)
        self.learner, self.settings, self.device, self.finished = learner, settings, inputs.device, finished
        self.made: dict[int, int] = {}
        self.plays_together = True

    def train(self) -> None:
        """Train each run to its end, or to where it breaks."""
        self.each(self._begin, range(len(self.runs)))
        self._count()
        title, start = f"training {len(self.made)} seeds together", sum(self.made.values())
        with tf32(False, self.device), Progress(self._expected, title, "updates", start=start) as progress:
            while self.trainers:
                self._update(progress)
            self._show(progress)
        gc.collect()

    def _update(self, progress: Progress) -> None:
        """Make updates until a run has ended or failed, as those that are left are a smaller ensemble."""
        going = list(self.trainers)
        gc.collect()  # an ensemble is in a circle with its graphs: the last one's memory is free only then
        ensemble = Ensemble(list(self.trainers.values()))
        self._catch_up(ensemble)
        while list(self.trainers) == going:
            ensemble.update()
            self._count()
            self._show(progress)
            last = going[-1]  # of one round of saves it knows what all of them cost
            if self.runs[last].due(self.made[last], ensemble.hp.checkpoint_every):
                self.each(partial(self._save, self.runs[last].clock()), going)
            self._catch_up(ensemble)

    def _catch_up(self, ensemble: Ensemble) -> None:
        """Do all that comes before the next update of each run; those that have ended leave."""
        while True:
            self.each(self._end, [place for place, trainer in self.trainers.items() if trainer.done])
            waiting = [place for place, trainer in self.trainers.items() if not trainer.at.updates_due]
            if not waiting:
                return
            episodes, failure = None, ""
            if self.plays_together and len(waiting) == len(ensemble.members):
                episodes, failure = _played(ensemble)
            if episodes is not None:
                for place, own in zip(waiting, episodes, strict=True):
                    self.attempt(place, partial(self.trainers[place].take, self.runs[place], own))
                continue
            self.each(self._advance, waiting)
            if failure and all(place in self.trainers for place in waiting):  # so it is no seed's own
                self.plays_together = False
                log.warning("seeds play one after the other from now on, which is slower: %s", failure)

    @property
    def _expected(self) -> int:
        """Updates of all runs; of one that has ended or failed, those that it made."""
        expected = {place: trainer.expected_updates for place, trainer in self.trainers.items()}
        return sum((self.made | expected).values())

    def _show(self, progress: Progress) -> None:
        progress.total = self._expected
        progress.update(sum(self.made.values()))

    def _count(self) -> None:
        self.made |= {place: trainer.at.updates for place, trainer in self.trainers.items()}

    def _begin(self, place: int) -> None:
        with stepped_in_turn() if len(self.runs) > 1 else nullcontext():
            trainer = trainer_of(self.learner, self.settings[place], self.device)
        checkpoint = self.runs[place].resume()
        if checkpoint is not None:
            trainer.load(checkpoint.arrays, checkpoint.state)
        self.trainers[place] = trainer

    def _advance(self, place: int) -> None:
        self.trainers[place].advance(self.runs[place])

    def _save(self, began: float, place: int) -> None:
        trainer = self.trainers[place]
        if not trainer.done:
            self.runs[place].save(trainer.at.updates, *trainer.saved(), began=began)

    def _end(self, place: int) -> None:
        trainer = self.trainers.pop(place)
        trainer.learner.network.eval()
        self.finished(place, trainer.policy)


def _played(ensemble: Ensemble) -> tuple[list[Episodes] | None, str]:
    """What all members play at once, and how that failed, if it did. None: each plays by itself next.

    So where the world of one fails, that one alone stops.
    """
    played = [member.evaluation_world if member.at.evaluation_due else member.world for member in ensemble.members]
    before = [(member.at.explored, world.get_state()) for member, world in zip(ensemble.members, played, strict=True)]
    try:
        return ensemble.play(), ""
    except Exception as error:
        log.debug("not played together", exc_info=True)
        for member, world, (explored, state) in zip(ensemble.members, played, before, strict=True):
            member.at.explored = explored
            world.set_state(state)
        return None, f"{type(error).__name__}: {error}"


def train_together(
    learner: Callable[..., Learner],
    settings: Sequence[Settings],
    inputs: Inputs,
    runs: Sequence[Run],
    finished: Callable[[int, HistoryPolicy], None],
) -> dict[int, Exception]:
    """Train runs that differ in their seed to their ends, each from its newest checkpoint.

    Args:
        inputs: of all of them.
        finished: is told the place of each run that has ended, and its policy, at once.

    Returns:
        what broke, by the place of the run that it broke; the others went on without it.

    Raises:
        UserError: the method's updates cannot be made together.
    """
    together = Together(learner, settings, inputs, runs, finished)
    together.train()
    return together.failed
