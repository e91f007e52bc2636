"""play: policy -> a video of a few episodes of one task. No part of the workflow: a person asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recollect.settings.errors import UserError
from recollect.settings.resolve import resolve
from recollect.stages import inspect
from recollect.stages.evaluate import say_if_stale
from recollect.stages.stage import Job, Stage

if TYPE_CHECKING:
    import numpy as np


def play(
    scale: str,
    env: str,
    method: str,
    seed: int,
    *,
    video: Annotated[str, "Where to write it: a .mp4, a .gif, or a .png with a strip of a few pictures."],
    task: Annotated[int, "Place of the task in its split, from 0."] = 0,
    episodes: Annotated[int, "Of its episodes so many are played, from the first on."] = 3,
    split: Annotated[str, "Task split that is played."] = "eval",
    device: str = "cpu",
) -> str:
    """Play a trained policy, and write a video of some episodes."""
    from recollect.artifacts.progress import Progress
    from recollect.environments.drawing import drawn
    from recollect.evaluation import filming
    from recollect.evaluation.tracing import chosen_tasks
    from recollect.figures.video import check_video, write_video

    if episodes < 1:
        raise UserError(f"{episodes} episodes cannot be played", where="--episodes", do="name a number from 1 on")
    path = Path(video)
    check_video(path)
    settings = resolve(scale, env, method, seed)
    environment = settings.environment
    inspect.STAGE.provenance(Job("inspect", scale, env, method, str(seed)), device)  # its inputs are there and whole
    chosen_tasks(environment, split, [task])
    of = (environment, split, task)
    with closing(filming.world_of(*of, seed=seed)) as world:
        drawn(world, 0)  # a world that cannot be drawn says so before the policy plays

    say_if_stale(scale, env, method, seed)
    policy = inspect.trained_policy(settings, device)
    with Progress(episodes, f"playing {method} on {env}, seed {seed}", "episodes") as progress:
        steps = filming.play(policy, *of, episodes=episodes, seed=seed, progress=lambda done: progress.update(done))
    count = len(steps) + sum(step.done for step in steps)
    with Progress(count, f"writing {path}", "pictures") as progress:

        def told() -> Iterator[tuple[np.ndarray, str]]:
            for done, picture in enumerate(filming.pictures(*of, steps, seed=seed), 1):
                yield picture
                progress.update(done)

        write_video(path, told(), count)
    returns = [sum(step.reward for step in steps if step.episode == episode) for episode in range(episodes)]
    return f"{path}: task {task}, returns {', '.join(f'{each:.4g}' for each in returns)}"


COMMAND = Stage(
    name="play",
    over=inspect.STAGE.over,
    writes={},
    asks=inspect.STAGE.asks,
    changes=True,
    example="--scale demo --env dark_room_7x7 --method radt --seed 0 --task 3 --video out.gif",
    run=play,
)
