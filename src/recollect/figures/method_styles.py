"""One colour, marker and dash per method name, the same in every figure.

Colours are those of Okabe and Ito (2008), which stay apart under the common kinds of colour blindness; marker and dash
repeat the distinction for print without colour. Plain short dashes are kept for published values and dots for
constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb

from recollect.settings.seeding import seed_of

BLUE, SKY, GREEN, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#CC79A7"
VERMILLION, ORANGE, GREY, BLACK = "#D55E00", "#E69F00", "#5E5E5E", "#1A1A1A"
SOLID: Any = "solid"
LONG_DASH: Any = (0, (4.6, 1.1))
DASH_DOT: Any = (0, (4.6, 1.1, 1.1, 1.1))
SHORT_DASH: Any = (0, (2.6, 1.6))
DOTS: Any = (0, (1, 1.5))


@dataclass(frozen=True)
class MethodStyle:
    color: str
    marker: str
    dash: Any = SOLID

    def marker_size(self, size: float | None = None) -> float:
        """Points; None: the usual size."""
        usual = mpl.rcParams["lines.markersize"]
        return (size or usual) * MARKER_SIZES.get(self.marker, 1.0)


def tinted(color: str, share: float) -> tuple[float, float, float]:
    """A colour mixed with white, whose share is given."""
    red, green, blue = (1 - (1 - part) * (1 - share) for part in to_rgb(color))
    return red, green, blue


def shaded(color: str, share: float) -> str:
    """A colour mixed with black or, where the share is negative, with white."""
    red, green, blue = to_rgb(color) if share > 0 else tinted(color, -share)
    rest = 1 - max(share, 0.0)
    return to_hex((red * rest, green * rest, blue * rest))


METHOD_STYLES: dict[str, MethodStyle] = {
    "radt": MethodStyle(BLUE, "o"),
    "radt_agnostic": MethodStyle(SKY, "s", DASH_DOT),
    "ad": MethodStyle(VERMILLION, "^"),
    "dpt": MethodStyle(ORANGE, "D", LONG_DASH),
    "dt": MethodStyle(GREY, "v"),
    "helm": MethodStyle(BLUE, "o"),
    "helmv2": MethodStyle(SKY, "D", DASH_DOT),
    "shelm": MethodStyle(GREEN, "P"),
    "shelm.untrained_images": MethodStyle(shaded(GREEN, -0.42), "X", LONG_DASH),
    "shelm_lstm": MethodStyle(ORANGE, "D", DASH_DOT),
    "ppo_lstm": MethodStyle(VERMILLION, "s"),
    "ppo_cnn": MethodStyle(GREY, "v", LONG_DASH),
    # How actions are picked: the colour of the method, darker (the likeliest) or lighter (drawn).
    "radt.greedy": MethodStyle(shaded(BLUE, 0.5), "P", LONG_DASH),
    "ad.greedy": MethodStyle(shaded(VERMILLION, 0.5), "X", LONG_DASH),
    "ad.sampled": MethodStyle(shaded(VERMILLION, -0.42), "<", DASH_DOT),
    "dt.greedy": MethodStyle(BLACK, "d", DASH_DOT),
}
#: The sequence model gives the look of `<algorithm>_<sequence model>`: a transformer is blue in every figure.
SEQUENCE_STYLES: dict[str, MethodStyle] = {
    "gpt": MethodStyle(BLUE, "o"),
    "transformer": MethodStyle(BLUE, "o"),
    "lstm": MethodStyle(VERMILLION, "s"),
    "gru": MethodStyle(ORANGE, "^", DASH_DOT),
    "rnn": MethodStyle(PURPLE, "D", DASH_DOT),
    "ff": MethodStyle(GREY, "v", LONG_DASH),
}
#: Variants of one of these keep its colour, darker or lighter: share of black or (negative) of white, and the dash.
FAMILY: tuple[tuple[float, Any], ...] = ((-0.42, LONG_DASH), (0.5, DASH_DOT), (-0.64, SOLID))
FAMILY_MARKERS = {"gpt": "Phd", "transformer": "Phd", "lstm": "DXp"}
#: Markers of which little would be left within their white edge, and how much larger they are drawn.
MARKER_SIZES = {"*": 1.6, "P": 1.3, "X": 1.3, "d": 1.2, "<": 1.1, ">": 1.1, "v": 1.15, "^": 1.15}
SPARE_STYLES: tuple[MethodStyle, ...] = (
    MethodStyle(GREEN, "P"),
    MethodStyle(PURPLE, "X", DASH_DOT),
    MethodStyle(BLACK, "d", LONG_DASH),
    MethodStyle(ORANGE, "h"),
    MethodStyle(SKY, "<"),
    MethodStyle(VERMILLION, ">", DASH_DOT),
    MethodStyle(BLUE, "p", LONG_DASH),
    MethodStyle(GREY, "*", DASH_DOT),
)


def styles_of(methods: Sequence[str]) -> dict[str, MethodStyle]:
    """The look of each method of a figure; no two of them get the same.

    Names in the tables above have a fixed look, and so have, in the order of the figure, the first variants of a GPT, a
    transformer or an LSTM. Any other name (a user's own method) gets a spare style that depends on its name alone,
    or the next one where that is taken.
    """
    looks: dict[str, MethodStyle] = {}
    for method in methods:
        fixed = METHOD_STYLES.get(method) or SEQUENCE_STYLES.get(method.rsplit("_", 1)[-1])
        if fixed is not None and fixed not in looks.values():
            looks[method] = fixed
    for sequence, markers in FAMILY_MARKERS.items():
        color = SEQUENCE_STYLES[sequence].color
        variants = []
        for method in methods:
            base, dot, _ = method.partition(".")
            if dot and base.endswith(f"_{sequence}"):
                variants.append(method)
        for method, (share, dash), marker in zip(variants, FAMILY, markers, strict=False):
            looks[method] = MethodStyle(shaded(color, share), marker, dash)
    for method in methods:
        if method not in looks:
            looks[method] = _spare_style(method, list(looks.values()))
    return {method: looks[method] for method in methods}


def _spare_style(method: str, taken: Sequence[MethodStyle]) -> MethodStyle:
    """A spare style that is not taken, of a new colour if there is one; the name says where the search begins."""
    first = seed_of("method style", method) % len(SPARE_STYLES)
    order = SPARE_STYLES[first:] + SPARE_STYLES[:first]
    colors = {look.color for look in taken}
    unused = [look for look in order if look not in taken]
    of_new_color = [look for look in unused if look.color not in colors]
    return (of_new_color or unused or order)[0]
