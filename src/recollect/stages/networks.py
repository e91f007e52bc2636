"""Networks of runs: whether each can be made for what its environment shows, before anything runs.

A run finds that out when it begins, but its histories may take hours before. A method that can be asked has a function
``check(settings, facts)`` in its file, or else ``build_network(settings, facts)``, which raises a UserError. Where the world
does not matter it has a function ``check_settings(settings)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, environment_settings, method_path, played_method, resolve
from recollect.settings.still import held_still
from recollect.stages.stage import Job

if TYPE_CHECKING:
    from recollect.common.contract import Facts


@held_still()
def check_networks(jobs: Iterable[Job]) -> None:
    """Make the network of each environment and method that runs, or is judged, once, without weights.

    Raises:
        UserError: one cannot be made; the message names environment, method and scale, too.
    """
    tried = [(job.scale, job.env, _tried(job)) for job in jobs if job.stage in ("run", "measure", "evaluate")]
    for scale, env, method in dict.fromkeys(tried):
        try:
            _check(scale, env, method)
        except UserError as error:
            raise error.at(f"environment '{env}' with method '{method}' at scale {scale}: {error.where}") from error


def _tried(job: Job) -> str:
    """The method whose settings a job makes its network with: a variant that is judged alone acts by settings of its own."""
    return job.method if job.stage == "evaluate" else played_method(job.scale, job.env, job.method)


def _check(scale: str, env: str, method: str) -> None:
    import torch

    settings = resolve(scale, env, method, seed=0)
    module = algorithm_module(settings.method.algorithm, where=method_path(method))
    if hasattr(module, "check_settings"):
        module.check_settings(settings)
    check = getattr(module, "check", getattr(module, "build_network", None))
    facts = None if check is None else _facts(scale, env)
    if check is not None and facts is not None:
        with torch.device("meta"):
            check(settings, facts)


def _facts(scale: str, env: str) -> Facts | None:
    """What an environment shows; of a world whose packages are not here only that its numbers are not whole, else None."""
    from recollect.common.contract import Facts, facts_of
    from recollect.common.work import known_of

    environment = environment_settings(scale, env)
    try:
        return facts_of(environment)
    except UserError:
        size = int(known_of("observations", env, 0)) if environment.images is None else environment.images.width
        # Which actions there are matters little to whether a network can be made. How long an episode is would matter.
        return Facts(size, observation_values=(), actions=2, horizon=1) if size else None
