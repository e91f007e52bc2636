"""fetch: frozen models and published data from the hub, once, at a pinned revision with checked hashes."""

from __future__ import annotations

from recollect.common import language_model_files
from recollect.helm import vision_language
from recollect.settings.errors import UserError
from recollect.settings.resolve import fetched_model, published_data
from recollect.settings.schema import LanguageModelSettings
from recollect.sources import published_fetch
from recollect.stages import paths


def fetch(name: str) -> None:
    """Fetch a model into ``data/models/{name}``; a model of another source needs no fetching.

    Raises:
        UserError: the model comes from no hub, there is no network, or a hash differs.
    """
    chosen = fetched_model(name)
    if chosen.source != "hub":
        raise UserError(
            f"'{name}' comes from source '{chosen.source}' and is not fetched",
            where="config/language_models.yaml and config/vision_language_models.yaml",
            do="nothing: it is already at hand, or a rule trains it",
        )
    if isinstance(chosen, LanguageModelSettings):
        language_model_files.provide(chosen, paths.model(name).parent)
    else:
        vision_language.provide(chosen, paths.model(name).parent)


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
