"""check --env: an environment is played and a method trained for seconds, and what they do not keep of their promises is said.

It is meant for worlds and methods of one's own. All that is made lies in a temporary folder.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.settings.catalogue import mine_folder
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder
from recollect.settings.resolve import algorithm_module, environment_settings, method_path, resolve, with_source
from recollect.settings.working_in import working_in
from recollect.stages.inputs import is_trained
from recollect.stages.making import make_job
from recollect.stages.pairs import check_pair
from recollect.stages.stage import Job

if TYPE_CHECKING:
    from recollect.environments.checker import Finding


def check_own(scale: str, env: str, method: str | None = None) -> Iterator[str]:
    """Try an environment, and a method in it; a line for each promise that is not kept, and a last one.

    Args:
        scale: how long the method trains, and how often it is judged.

    Raises:
        UserError: something is not known, the method cannot learn there, or a promise is not kept; this is said at the end.
    """
    found = 0
    for finding in _findings(scale, env, method):
        found += 1
        yield str(finding)
    if found:
        what, do = f"{found} promises are not kept, named above", "mend them, the first one first"
        if found == 1:
            what, do = "1 promise is not kept, named above", "mend it"
        raise UserError(what, where=f"recollect check --env {env}", do=do)
    kept = f"environment '{env}'" if method is None else f"environment '{env}' and method '{method}'"
    yield f"{kept}: every promise that was tried is kept (scale {scale})"


def _findings(scale: str, env: str, method: str | None) -> Iterator[Finding]:
    from recollect.environments.checker import findings

    environment = with_source(scale, environment_settings(scale, env))
    splits = list(environment.evaluation.splits)
    if environment.source is not None:
        splits.append(environment.source.split)
    any_wrong = False
    for finding in findings(environment.world, environment.options, ("train", *splits)):
        any_wrong = True
        yield finding
    if method is not None and not any_wrong:  # else the world's faults would be said to be the method's
        yield from _of_method(scale, env, method)


def _of_method(scale: str, env: str, method: str) -> Iterator[Finding]:
    """Train it for as long as the scale does, save, load and judge it. Raises UserError: it cannot learn in this environment."""
    from recollect.environments.checker import failure

    check_pair(scale, env, method)
    settings = resolve(scale, env, method, seed=0)
    file = Path(str(algorithm_module(settings.method.algorithm, where=method_path(method)).__file__))
    stage = "run" if is_trained(scale, env, method) else "evaluate"
    try:
        with _elsewhere():
            make_job(Job(stage, scale, env, method, "0"), "cpu")
    except Exception as error:  # a method fails in its own way
        yield failure(error, file)


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """For as long as a block lasts, be in a temporary folder, with the same configuration and the same `mine`."""
    config, mine = config_folder().absolute(), mine_folder()
    with (
        tempfile.TemporaryDirectory(prefix="recollect_") as scratch,
        working_in(scratch, config=config, mine=mine, anew=True),
    ):
        yield
