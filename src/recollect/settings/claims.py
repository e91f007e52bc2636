"""Published claims (config/claims/*.yaml): what a paper says, and the contrasts of scores that it asserts at each scale.

A file says the claim once, with its contrasts at scale `paper`. It is judged there, and at the scales that `scales` names,
with what differs there: other runs may show the same claim. A claim of the user's own that names no scales is judged at all
that draw what it compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from recollect.settings import catalogue
from recollect.settings.errors import UserError, nearest
from recollect.settings.layers import extended_scales, scale_settings
from recollect.settings.loading import config_folder, config_path, entries_in, merge, names, read_yaml, validated
from recollect.settings.resolve import figure_settings
from recollect.settings.schema import Frozen
from recollect.settings.still import remembered

PAPERS = tuple(paper.name for paper in catalogue.PAPERS.values())
OWN = "Your own"
"""What stands for the paper of a claim that names none."""
MARKS = {"holds": "✓", "contradicted": "✗", "undecided": "?", "not run": "–"}
"""Verdict -> what stands for it in a table and below a figure."""


class ArmSettings(Frozen):
    """Scores of one side of a contrast; what the second side does not say is as on the first."""

    env: str | None = None
    method: str | None = None
    split: str | None = Field(None, description="Task split; learning: the learning curve; null: eval.")
    episodes: tuple[float, float] | None = Field(
        None,
        description="From and to which share of the episodes, or of the learning curve: [0.75, 1] is the last quarter; null: all.",
    )

    @field_validator("episodes")
    @classmethod
    def _a_part(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 <= value[0] < value[1] <= 1:
            raise ValueError("write two shares that rise, of 0 to 1")
        return value


class Arm(NamedTuple):
    """Scores of one side of a contrast, all said."""

    env: str
    method: str
    split: str = "eval"
    episodes: tuple[float, float] = (0.0, 1.0)


class ContrastSettings(Frozen):
    """One comparison that a claim asserts: mean of `this` minus mean of `that`, paired over seeds and tasks."""

    says: str = Field(description="What is compared, in words.")
    this: ArmSettings
    that: ArmSettings | float = Field(description="Other scores, or a number, e.g. chance.")
    metric: str = "return"
    wanted: Literal["above", "below", "equal"] = "above"
    margin: float = Field(
        0.0, ge=0, description="The difference that would count; of `equal` the largest that would not."
    )

    @property
    def arms(self) -> list[Arm]:
        """Its sides that have scores."""
        known: dict[str, Any] = {}
        found = []
        for side in (self.this, self.that):
            if isinstance(side, ArmSettings):
                known |= side.model_dump(exclude_none=True)
                found.append(Arm(**known))
        return found

    @model_validator(mode="after")
    def _first_side_is_whole(self) -> ContrastSettings:
        if self.this.env is None or self.this.method is None:
            raise ValueError("`this` needs `env` and `method`")
        return self

    @model_validator(mode="after")
    def _two_sides(self) -> ContrastSettings:
        if len(self.arms) == 2 and self.arms[0] == self.arms[1]:
            raise ValueError("`this` and `that` are the same scores: say in `that` what differs")
        return self

    @model_validator(mode="after")
    def _equal_needs_a_margin(self) -> ContrastSettings:
        if self.wanted == "equal" and self.margin == 0:
            raise ValueError("`equal` needs a margin above zero: no two means are the same to the last bit")
        return self


class PublishedNumber(Frozen):
    says: str
    value: float
    read: str = Field(description="How it was read: of which table, or off which figure, by whom.")


class ClaimSettings(Frozen):
    """One published claim (config/claims/<name>.yaml) at a scale."""

    name: str
    paper: str = Field(
        OWN, max_length=40, description=f"Whose claim it is: {', '.join(PAPERS)}, or any few words for one of yours."
    )
    short: str = Field(max_length=40, description="Its name below a figure, where there is room for a few words.")
    headline: bool = Field(False, description="One of those that a paper is known for.")
    statement: str = Field(description="The claim in one sentence, as the paper makes it.")
    source: str = Field("", description="Figure, table or section of the paper.")
    published: tuple[PublishedNumber, ...] = ()
    figure: str = Field(description="The figure that shows it, whose seeds it is judged on.")
    contrasts: tuple[ContrastSettings, ...] = Field(min_length=1)
    needed: int | None = Field(
        None, ge=1, description="How many contrasts must hold, e.g. for `in most tasks`; null: all."
    )
    window: int | None = Field(
        None, ge=1, description="Evaluations over which a learning curve is smoothed; null: as in its figure, or 10."
    )
    differs: str = Field("", description="What of this scale is unlike the paper, in one sentence.")

    @model_validator(mode="after")
    def _as_many_can_hold(self) -> ClaimSettings:
        if self.needed is not None and self.needed > len(self.contrasts):
            raise ValueError(f"`needed` is {self.needed}, and there are {len(self.contrasts)} contrasts")
        return self


@remembered
def claim_settings(scale: str, claim: str) -> ClaimSettings:
    """The checked settings of a claim at a scale. Raises UserError: it names a scale or a run that there is not."""
    path = config_path("claims", claim)
    for name in _at_scales(claim):
        if name not in names("scales"):
            do = nearest(str(name), names("scales"))
            raise UserError(f"there is no scale '{name}'", where=f"{path}: scales", do=do)
    settings = _checked(scale, claim)
    missing = _not_drawn(scale, settings)
    if missing:
        raise missing[0]
    return settings


def _checked(scale: str, claim: str) -> ClaimSettings:
    return validated(ClaimSettings, {**_content(scale, claim), "name": claim}, where=config_path("claims", claim))


def _not_drawn(scale: str, claim: ClaimSettings) -> list[UserError]:
    """What the figure of a claim has not at a scale, of what is compared."""
    drawn = figure_settings(scale, claim.figure)
    found = []
    for contrast in claim.contrasts:
        for arm in contrast.arms:
            for name, known in ((arm.env, drawn.environments), (arm.method, drawn.methods)):
                if name not in known:
                    what = f"figure '{claim.figure}' at scale '{scale}' has no {name}"
                    where = f"{config_path('claims', claim.name)}: {contrast.says}"
                    found.append(UserError(what, where=where, do=nearest(name, known)))
    return found


@remembered
def claims_of(scale: str, figures: tuple[str, ...] | None = None) -> list[ClaimSettings]:
    """The claims that some figures show at a scale: paper by paper, headline claims first, then by name.

    Args:
        figures: None: all. Claims of other figures are not looked at, so that no wrong one stops a figure.

    A scale that draws less of a figure than the scale which it extends has not the claims that need the rest.
    """
    about = names("claims")
    if figures is not None:
        about = [name for name in about if _content(scale, name).get("figure") in figures]
    found = [claim_settings(scale, name) for name in about if _is_judged_now(scale, name)]
    return sorted(found, key=lambda claim: (*_place(claim.paper), not claim.headline, claim.name))


def _place(paper: str) -> tuple[int, str]:
    """Of a paper in tables: those that are reproduced here, then others by their names."""
    return (PAPERS.index(paper), "") if paper in PAPERS else (len(PAPERS), paper)


def judged_elsewhere(scale: str, figures: tuple[str, ...]) -> dict[str, list[str]]:
    """Claims about some figures that are not judged at a scale -> the scales at which they are.

    Either no scale of its file is this one, or the figure does not draw here what the claim compares.
    """
    about = [name for name in names("claims") if _content(scale, name).get("figure") in figures]
    others = [name for name in about if not _is_judged_now(scale, name)]
    return {name: [other for other in names("scales") if _is_judged_now(other, name)] for name in others}


def _is_judged_now(scale: str, claim: str) -> bool:
    return is_judged(scale, claim) and not _left_out(scale, claim)


def _left_out(scale: str, claim: str) -> bool:
    """Whether this scale does not draw what a claim compares, and another one does: that which it extends, or any."""
    if _is_for_all_scales(claim):
        others = (other for other in names("scales") if not _not_drawn(other, _checked(other, claim)))
        return bool(_not_drawn(scale, _checked(scale, claim))) and next(others, None) is not None
    *extended, _ = extended_scales(scale)
    if not extended or not is_judged(extended[-1], claim) or _content(scale, claim) != _content(extended[-1], claim):
        return False
    return bool(_left_out(extended[-1], claim) or _not_drawn(scale, claim_settings(extended[-1], claim)))


def _content(scale: str, claim: str) -> dict[str, Any]:
    """What a claim's file says at a scale, not checked."""
    content = {key: said for key, said in read_yaml(config_path("claims", claim)).items() if key != "scales"}
    at_scales = _at_scales(claim)
    return merge(content, *(at_scales.get(name) or {} for name in extended_scales(scale)))


def _at_scales(claim: str) -> Mapping[str, Any]:
    """What differs at scales, by their names, as a claim's file says it."""
    path = config_path("claims", claim)
    return entries_in(read_yaml(path), "scales", path)


def is_judged(scale: str, claim: str) -> bool:
    """Whether a claim is about a scale: one of the papers' own size, or one that its file names or that extends such."""
    if _is_for_all_scales(claim):
        return True
    at_scales = _at_scales(claim)
    return scale_settings(scale).published == "paper" or any(name in at_scales for name in extended_scales(scale))


def _is_for_all_scales(claim: str) -> bool:
    """Whether a claim is the user's own and names no scales."""
    return not config_path("claims", claim).is_relative_to(config_folder()) and not _at_scales(claim)
