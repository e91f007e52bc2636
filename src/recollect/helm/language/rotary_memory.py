"""A causal transformer with rotary positions (SmolLM2) as memory: it reads on behind what it remembers, as Transformer-XL.

Unlike GPT-2's, its ring of keys and values rolls exactly (see `rotary_transformer`), so every input is read once.
"""

from __future__ import annotations

from functools import partial

import torch

from recollect.common.language_models import RANDOM_VOCABULARY, package_weights
from recollect.helm.language.frozen_products import hold_products
from recollect.helm.language.language_vocabulary import vocabulary
from recollect.helm.language.ring_memory import RingMemory
from recollect.helm.language.rotary_transformer import RotaryCache, RotaryTransformer, RotaryTransformerSettings
from recollect.helm.language.token_window import unfit
from recollect.settings.schema import LanguageModelSettings

RANDOM = RotaryTransformerSettings(
    vocabulary=RANDOM_VOCABULARY, width=32, layers=2, heads=4, shared_heads=2, head_width=8, inner=64
)


def rotary_memory(
    settings: LanguageModelSettings,
    *,
    memory_length: int,
    layers: int | None,
    batch_tokens: int,
    dtype: torch.dtype,
    graphed: bool,
    device: str | torch.device,
) -> RingMemory:
    """A model of Llama's architecture as memory; see `language_memory`. A row begins with nothing to attend to but its first input.

    Raises:
        UserError: its package is missing or another version, or it has fewer layers.
    """
    if settings.source == "random":
        network = RotaryTransformer(RANDOM.shortened(layers), seed=0).eval().requires_grad_(False)
    elif settings.source == "package":
        from recollect.helm.language.rotary_file import load

        network = load(package_weights(settings), layers=layers)
    else:
        raise unfit("A model of this kind is read from a package only.", "Set source: package, or another kind.")
    network = network.to(device)
    hold_products(network.layers, dtype)
    ring = partial(RotaryCache, network, length=memory_length, tokens=batch_tokens, dtype=dtype, graphed=graphed)
    return RingMemory(ring, network.embeddings.detach(), vocabulary(settings))
