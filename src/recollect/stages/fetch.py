"""fetch, fetch_data: frozen models and published data from the hub, once, at a pinned revision with checked hashes.

They need the network, so they run where Snakemake runs: compute nodes often have none. What is there counts as made: whatever
reads it checks hashes of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from recollect.helm.settings import fetched_model
from recollect.settings.resolve import canonical, published_data
from recollect.settings.schema import LanguageModelSettings
from recollect.stages import paths
from recollect.stages.stage import Resources, Stage


def fetch(name: str) -> Path:
    """Fetch a frozen model into ``data/models/{name}``; a model of another source needs no fetching.

    Returns:
        Its file.

    Raises:
        UserError: the model comes from no hub, there is no network, or a hash differs.
    """
    from recollect.common import language_model_files
    from recollect.helm.language.published_transformer_xl import CONVERTERS
    from recollect.helm.vision import vision_language

    chosen = fetched_model(name)
    if isinstance(chosen, LanguageModelSettings):
        language_model_files.provide(chosen, paths.model(name).parent, CONVERTERS)
    else:
        vision_language.provide(chosen, paths.model(name).parent)
    return paths.model(name)


def fetch_data(
    name: str, *, revision: Annotated[str | None, "A commit to fetch instead of the pinned one."] = None
) -> str:
    """Fetch a published data set into ``data/published/{name}``.

    Returns:
        What was fetched, in one sentence.

    Raises:
        UserError: no revision is pinned or given, there is no network, or a hash differs.
    """
    from recollect.sources import published_fetch

    return published_fetch.fetch(name, published_data(name), paths.published(name), revision)


STAGE = Stage(
    name="fetch",
    over=("model",),
    writes={"model": paths.model},
    settings=lambda name: canonical(fetched_model(name)),
    made=lambda name: paths.model(name).is_file(),
    asks=Resources((1500, 1500), (60, 60)),
    local=True,
    run=fetch,
)
DATA = Stage(
    name="fetch_data",
    over=("dataset",),
    writes={"index": paths.published},
    settings=lambda name: canonical(published_data(name)),
    made=lambda name: paths.published(name).is_file(),
    command="fetch --data {wildcards.dataset}",
    asks=Resources((1500, 1500), (240, 240)),
    local=True,
    run=fetch_data,
)
FETCHED = (STAGE, DATA)
