"""page: trace -> `results/{scale}/inspect/{env}/{method}/seed_{seed}.html`, the inspection page of one run."""

from __future__ import annotations

from recollect.artifacts.sealed import sealing
from recollect.common.traces import Trace
from recollect.figures.inspection import inspection_page
from recollect.figures.token_page import token_page
from recollect.settings.resolve import environment_mapping, method_mapping
from recollect.stages import paths, provenance


def page(scale: str, env: str, method: str, seed: int) -> None:
    """Write the inspection page of a traced run: its world from above or, where that is not known, the images that it sees.

    Raises:
        UserError: the trace is missing or corrupted, or its world cannot be drawn and shows no images.
    """
    source = paths.trace(scale, env, method, seed)
    known = provenance.describe(
        provenance.page_text(scale, env, method), provenance.page_code(scale, env, method), [source]
    )
    trace = Trace.open(source)
    written = token_page if trace.shows_images and trace.cell_N2 is None else inspection_page
    html = written(
        trace,
        method=method_mapping(scale, env, method).get("title") or method,
        environment=environment_mapping(scale, env).get("title") or env,
        wiring_test=scale == "smoke" or provenance.uses_random_model(scale, env, method),
    )
    with sealing(paths.page(scale, env, method, seed), kind="page", provenance=known) as temporary:
        temporary.write_text(html, encoding="utf-8")
