"""What can be set of vision-language models and token vocabularies, which HELMv2 and SHELM see with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from recollect.settings import still
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder, entries_of, merge, validated
from recollect.settings.resolve import language_model, listed, scale_settings
from recollect.settings.schema import Frozen, LanguageModelSettings


class HubFile(Frozen):
    """One file on the model hub."""

    repository: str = Field(description="owner/name.")
    revision: str = Field(description="Commit hash, never a branch.")
    file: str = Field(description="Its name there.")
    sha256: str = Field("", description="Verified after fetching; a file without one is not fetched.")


class VisionLanguageModelSettings(Frozen):
    """Where a frozen model of images and texts comes from (config/vision_language_models.yaml)."""

    source: Literal["hub", "trained", "random"]
    network: str = Field("", description="source: hub. One of recollect.helm.vision.clip.SHAPES.")
    files: dict[str, HubFile] = Field({}, description="source: hub. Name in the model's folder -> file.")
    fit: Literal["crop", "squash"] = Field(
        "crop", description="source: hub. How a frame that is not square becomes one; CLIP crops."
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto",
        description="source: hub. Of products of its image encoder; auto, as released: float16 on a GPU, else float32.",
    )
    language_model: str = Field("minilm", description="source: trained. What its texts are read with.")
    hyperparameters: dict[str, Any] = Field(
        default_factory=dict, description="source: trained. Of helm.vision.dual_encoder."
    )
    width: int = Field(32, ge=1, description="source: random. Numbers that an image or text becomes.")


class TokenVocabularySettings(Frozen):
    """The words that SHELM sees with (config/token_vocabularies.yaml, stage `embed-vocabulary`)."""

    vision_language_model: str = Field(description="Embeds them; a name of config/vision_language_models.yaml.")
    language_model: str = Field(description="Must know them; a name of config/language_models.yaml.")
    match: Literal["exact", "stripped", "cased"] = Field(
        "exact",
        description="When a string of one vocabulary is one of the other: as it is (as released), without the space that "
        "ends a word of CLIP's, or that also in lower case or capitalised.",
    )
    templates: str | None = Field(None, description="A name of `templates:` in the same file; null: the bare word.")
    words: tuple[str, ...] = Field((), description="These instead of the vision-language model's own vocabulary.")


def vision_language_model(name: str, scale: str | None = None) -> VisionLanguageModelSettings:
    """Where the vision-language model of this name comes from, at a scale that may say something of it."""
    content, where = listed("vision-language model", name, "vision_language_models")
    at_scale = scale_settings(scale).vision_language_models.get(name, {}) if scale is not None else {}
    return validated(VisionLanguageModelSettings, merge(content, at_scale), where=where)


def fetched_model(name: str) -> LanguageModelSettings | VisionLanguageModelSettings:
    """A frozen model of either kind that comes from the hub; a name that both kinds have is a language model's."""
    seeing = name in entries_of("vision_language_models") and name not in entries_of("language_models")
    chosen = vision_language_model(name, None) if seeing else language_model(name)
    if chosen.source != "hub":
        raise UserError(
            f"the model '{name}' comes from source '{chosen.source}' and is not fetched",
            where="config/language_models.yaml and config/vision_language_models.yaml",
            do="nothing: it is already at hand, or a rule trains it",
        )
    return chosen


def trained_model(name: str, scale: str) -> VisionLanguageModelSettings:
    chosen = vision_language_model(name, scale)
    if chosen.source != "trained":
        raise UserError(
            f"the vision-language model '{name}' comes from source '{chosen.source}' and is not trained here",
            where=f"config/vision_language_models.yaml: {name}",
            do=f"ask for data/models/{name}/model.safetensors, if it is one that is fetched",
        )
    return chosen


def token_vocabulary(name: str) -> TokenVocabularySettings:
    content, where = listed("token vocabulary", name, "token_vocabularies", "vocabularies")
    return validated(TokenVocabularySettings, content, where=where)


def prompt_templates(name: str | None) -> tuple[str, ...]:
    """The texts that stand around a word, `{}`; for no name the bare word."""
    if name is None:
        return ("{}",)
    texts, where = listed("templates", name, "token_vocabularies", "templates")
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t.count("{}") == 1 for t in texts):
        raise UserError(
            f"the templates '{name}' are not such texts", where=where, do="write a list of texts with one {} each"
        )
    return tuple(texts)


def resolved_vision_language_model(scale: str, name: str) -> dict[str, Any]:
    """A vision-language model at a scale, every default included, also those of how one is trained here."""
    prepared = still.prepared(f"{scale} model {name}")
    if prepared is not None:
        return prepared
    from recollect.helm.vision.dual_encoder import Hyperparameters  # imports torch, which Snakemake must not

    model = vision_language_model(name, scale)
    where = f"{config_folder() / 'vision_language_models.yaml'}: {name}.hyperparameters (scale {scale})"
    checked = validated(Hyperparameters, model.hyperparameters, where=where)
    return {**model.model_dump(mode="json"), "hyperparameters": checked.model_dump(mode="json")}
