"""page: trace -> `results/{scale}/inspect/{env}/{method}/seed_{seed}.html`, the inspection page of one run."""

from __future__ import annotations

from recollect.settings.catalogue import declaration
from recollect.settings.resolve import environment_mapping, method_mapping, scale_settings
from recollect.settings.still import held_still
from recollect.stages import paths, provenance
from recollect.stages.stage import Job, Resources, Stage


@held_still()
def page(scale: str, env: str, method: str, seed: int) -> None:
    """Write the inspection page of a traced run: its world from above or, where that is not known, the images that it sees."""
    from recollect.artifacts.sealed import sealing
    from recollect.common.traces import Trace
    from recollect.figures.inspection import inspection_page
    from recollect.figures.token_page import token_page

    known = STAGE.provenance(Job("page", scale, env, method, str(seed)))
    trace = Trace.open(paths.trace(scale, env, method, seed))
    written = token_page if trace.shows_images and trace.cell_N2 is None else inspection_page
    html = written(
        trace,
        method=method_mapping(scale, env, method).get("title") or method,
        environment=environment_mapping(scale, env).get("title") or env,
        warning=_warning(scale, env, method),
    )
    target = paths.page(scale, env, method, seed)
    with sealing(target, kind="page", provenance={**known, "seed": seed}) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _warning(scale: str, env: str, method: str) -> str:
    """What a page says where its numbers mean nothing."""
    from recollect.figures.spec import RANDOM_MODEL, SMOKE_WORDS

    if scale_settings(scale).wiring_test:
        return SMOKE_WORDS
    return RANDOM_MODEL if provenance.uses_random_model(scale, env, method) else ""


def has_page(scale: str, env: str, method: str) -> bool:
    """Whether a run can be shown: its world has a function `scene`, which draws it, or its method sees images."""
    return is_drawn_from_above(scale, env) or bool(provenance.frozen_models(scale, env, method))


def is_drawn_from_above(scale: str, env: str) -> bool:
    """Whether the file of an environment's world has a function `scene`."""
    world = str(environment_mapping(scale, env).get("world"))
    return declaration("world", world, "scene") is not None


STAGE = Stage(
    name="page",
    over=("scale", "env", "method", "seed"),
    reads=lambda *of: {"trace": paths.trace(*of)},
    writes={"html": paths.page},
    settings=provenance.page_text,
    modules=lambda *of: ["recollect.figures.inspection", "recollect.figures.token_page"],
    asks=Resources((1000, 1000), (30, 30)),
    local=True,
    run=page,
)
