"""An image encoder as it was before it was trained: what its weights are worth, and not its shape.

Weights are drawn as those of CLIP are before training (Radford et al. 2021, the released model code): PyTorch's defaults, and
class, positions and the last matrix of a vision transformer normal, with one over the root of its width as deviation.
"""

from __future__ import annotations

import torch
from torch import nn

from recollect.settings.seeding import seed_of


@torch.no_grad()
def forget(encoder: nn.Module, seed: int) -> None:
    """Draw all weights of an image encoder anew; no other random numbers are touched. Its norms do nothing but standardise."""
    draws = torch.Generator().manual_seed(seed_of("untrained image encoder", seed))
    for layer in encoder.modules():
        if isinstance(layer, nn.LayerNorm | nn.BatchNorm2d):
            layer.reset_parameters()
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            bound = layer.weight[0].numel() ** -0.5
            for weights in layer.parameters():
                weights.uniform_(-bound, bound, generator=draws)
        else:
            for name, weights in layer.named_parameters(recurse=False):
                if name == "in_proj_weight":
                    nn.init.xavier_uniform_(weights, generator=draws)
                elif name == "in_proj_bias":
                    weights.zero_()
                else:
                    width = weights.shape[0] if name == "proj" else weights.shape[-1]
                    weights.normal_(0.0, width**-0.5, generator=draws)
