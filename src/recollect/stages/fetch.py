"""fetch: frozen language models and published data from the hub, once, at a pinned revision with checked hashes."""

from __future__ import annotations

from recollect.memory import language_models
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model, published_data
from recollect.stages import paths
from recollect.trajectories import published_fetch


def fetch(name: str) -> None:
    """Fetch a model into ``data/models/{name}``; a model of another source needs no fetching.

    Raises:
        UserError: the model comes from no hub, there is no network, or a hash differs.
    """
    chosen = language_model(name)
    if chosen.source != "hub":
        raise UserError(
            f"'{name}' comes from source '{chosen.source}' and is not fetched",
            where="config/language_models.yaml",
            do="nothing: it is already at hand",
        )
    assert chosen.repository is not None and chosen.revision is not None
    language_models.fetch(
        chosen.repository, chosen.revision, sorted(chosen.sha256), chosen.sha256, paths.model(name).parent
    )


def fetch_data(name: str, revision: str | None = None) -> str:
    """Fetch a published data set into ``data/published/{name}``.

    Args:
        revision: a commit to fetch instead of the pinned one.

    Returns:
        What was fetched, in one sentence.

    Raises:
        UserError: no revision is pinned or given, there is no network, or a hash differs.
    """
    return published_fetch.fetch(name, published_data(name), paths.published(name), revision)
