"""Passive T-Maze 1500 with the paper's GPT and settings, for as long as it may take: `python -m benchmarks.long_run`.

Trains as `recollect train --scale paper --env tmaze_passive_1500 --method dqn_gpt --seed 42` does and says how far it
got, with updates and environment steps per second beside the released code's way (`online.PlainAgent`), which is timed
between, in the same run, on the same batches. Time is that of the processor on CPUs, of the clock on GPUs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import waiting
from benchmarks.online import PlainAgent, settings_of
from recollect.artifacts.run import Run
from recollect.memory_rl.dqn import make_trainer
from recollect.memory_rl.off_policy import OffPolicyTrainer


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds that a piece of work takes."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    done = waiting(work, device)
    began = clock()
    done()
    return clock() - began


def long_run(seconds: float, quick: bool, comparisons: int = 3) -> dict[str, Any]:
    """Train for so many seconds; the released way is timed `comparisons` times, evenly spread, outside of them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = settings_of(quick)
    trainer: OffPolicyTrainer = make_trainer(settings, device)
    kept = tempfile.TemporaryDirectory()  # until the function ends
    folder = Path(kept.name)
    run = Run(
        folder / "run", folder / "checkpoints", settings_text="",
        env=settings.environment.name, method=settings.method.name, seed=settings.seed,
    )  # fmt: skip
    spent, plain_updates, plain_steps, own_steps = 0.0, [], [], []
    while spent < seconds and not trainer.done:
        spent += timed(partial(trainer.advance, run), device)
        due = len(plain_updates) < comparisons and spent >= seconds * (len(plain_updates) + 0.5) / comparisons
        if due and trainer.at.updates:
            agent = PlainAgent(trainer, trainer.hp.batch_size)
            dropout = trainer.hp.sequence.dropout
            plain_updates.append(timed(agent.update, device))
            other = make_trainer(settings, device)  # its world and counters are not the run's
            own_steps.append(timed(partial(other.play_round, False, 1), device) / trainer.horizon)
            plain_steps.append(timed(partial(agent.play, other.world, dropout, 0.1), device) / trainer.horizon)
            print(f"{spent:.0f} s: {trainer.at}", flush=True)
    counts = trainer.at
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "environment": settings.environment.name,
        "seconds": spent,
        "updates": counts.updates,
        "updates_of_the_run": trainer.planned_updates,
        "episodes": counts.episodes,
        "environment_steps": counts.env_steps,
        "evaluations": counts.evaluations,
        "updates_per_second": counts.updates / spent,
        "updates_per_second_of_the_released_way": len(plain_updates) / max(sum(plain_updates), 1e-9),
        "steps_per_second": len(own_steps) / max(sum(own_steps), 1e-9),
        "steps_per_second_of_the_released_way": len(plain_steps) / max(sum(plain_steps), 1e-9),
    }


def main() -> None:
    """Run, and print what was reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long to train (default: an hour)")
    parser.add_argument("--quick", action="store_true", help="T-Maze 20: shows that it works, not how far it gets")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(json.dumps(long_run(chosen.seconds, chosen.quick), indent=1))


if __name__ == "__main__":
    main()
