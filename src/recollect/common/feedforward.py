"""The embedders that turn one step into one token.

Source: Memory-RL (Ni et al. 2023). A token is the concatenation of the action, reward and observation embeddings, in
that order; a width of 0 leaves the input out. Vectors are embedded by Linear + ReLU, images by two small convolutions.
All of it has PyTorch's default initialisation, drawn here from an explicit generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.common.distinct_images import distinct_rows
from recollect.settings.errors import UserError

_WORTH_COMPARING = 128  # images; fewer, as those of a step of some actors, are encoded as they are


def default_init(module: nn.Linear | nn.Conv2d, generator: torch.Generator | None) -> None:
    """PyTorch's own initialisation of a layer, weights and biases uniform in +-1/sqrt(fan in), from a generator."""
    bound = 1.0 / math.sqrt(module.weight[0].numel())
    with torch.no_grad():
        module.weight.uniform_(-bound, bound, generator=generator)
        if module.bias is not None:
            module.bias.uniform_(-bound, bound, generator=generator)


class VectorEmbedder(nn.Module):
    """Linear + ReLU, of numbers of any type: [..., D] -> [..., width]."""

    def __init__(self, input_width: int, width: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.linear = nn.utils.skip_init(nn.Linear, input_width, width)
        default_init(self.linear, generator)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.linear(x.float()))


class ImageEmbedder(nn.Module):
    """Two 2x2 convolutions (8 and 16 channels, stride 1, ReLU) and a linear layer: uint8 [..., C*H*W] -> [..., width].

    Pixels are divided by 255 here; environments deliver them as bytes. Images are flat; of a shape [C, H, W] or
    [H, W, C], whichever end is shorter is the channels.
    """

    def __init__(self, shape: Sequence[int], width: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        self.channels_last = self.shape[2] < self.shape[0]
        height, breadth, channels = self.shape if self.channels_last else (*self.shape[1:], self.shape[0])
        if min(height, breadth) < 3:
            what = f"images of shape {self.shape} are too small for two convolutions of 2x2"
            raise UserError(what, where="the world's observations", do="show images of 3x3 at least, or numbers")
        self.first = nn.utils.skip_init(nn.Conv2d, channels, 8, 2)
        self.second = nn.utils.skip_init(nn.Conv2d, 8, 16, 2)
        self.linear = nn.utils.skip_init(nn.Linear, 16 * (height - 2) * (breadth - 2), width)
        for layer in (self.first, self.second, self.linear):
            default_init(layer, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Embed flat images of any leading shape; on a CPU each of several equal ones once."""
        flat_ND = x.reshape(-1, x.shape[-1])
        leading = x.shape[:-1]
        if len(flat_ND) >= _WORTH_COMPARING and flat_ND.device.type == "cpu":
            first_M, place_N = distinct_rows(flat_ND)
            if len(first_M) <= len(flat_ND) // 2:
                features_MW = self.every(flat_ND[first_M])
                return features_MW.index_select(0, place_N).reshape(*leading, -1)
        return self.every(flat_ND).reshape(*leading, -1)

    def every(self, flat_ND: Tensor) -> Tensor:
        """Embed each of flat images [N, C*H*W] by itself."""
        images = flat_ND.reshape(-1, *self.shape)
        if self.channels_last:
            images = images.permute(0, 3, 1, 2)
        features = functional.relu(self.first(images.float() / 255.0))
        features = functional.relu(self.second(features))
        return self.linear(features.flatten(1))


class TokenEmbedder(nn.Module):
    """(previous action, its reward, the observation it led to) -> one token.

    Args:
        actions: number of discrete actions. Index `actions` means "none yet" and is embedded as the zero vector.
        action_size: numbers of a continuous action (then `actions` is 0); "none yet" is the zero vector itself.
        action_embedding, reward_embedding, observation_embedding: output widths; 0 leaves that input out.
        observation_first: the observation's part stands before the others, not after them.
    """

    one_hot: Tensor

    def __init__(
        self,
        actions: int,
        observation_width: int,
        *,
        action_size: int = 0,
        action_embedding: int,
        reward_embedding: int,
        observation_embedding: int,
        image_shape: Sequence[int] | None = None,
        observation_first: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.actions, self.action_size = actions, action_size
        self.observation_first = observation_first
        self.width = action_embedding + reward_embedding + observation_embedding
        entries = actions + action_size
        self.action = VectorEmbedder(entries, action_embedding, generator=generator) if action_embedding else None
        self.reward = VectorEmbedder(1, reward_embedding, generator=generator) if reward_embedding else None
        self.observation: nn.Module | None = None
        if observation_embedding and image_shape is not None:
            self.observation = ImageEmbedder(image_shape, observation_embedding, generator=generator)
        elif observation_embedding:
            self.observation = VectorEmbedder(observation_width, observation_embedding, generator=generator)
        table = torch.cat([torch.eye(actions), torch.zeros(1, actions)])
        self.register_buffer("one_hot", table, persistent=False)

    def read(self, action: Tensor, reward: Tensor, observation: Tensor) -> list[Tensor]:
        """Those of its inputs that tokens depend on."""
        parts = ((self.action, action), (self.reward, reward), (self.observation, observation))
        return [values for embedder, values in parts if embedder is not None]

    def no_action(self, batch: int, device: torch.device | str) -> Tensor:
        """The previous action of a first token, in each of B rows: int64 [B], or float [B, A]."""
        if self.action_size:
            return torch.zeros(batch, self.action_size, device=device)
        return torch.full((batch,), self.actions, device=device)

    def forward(self, action: Tensor, reward: Tensor, observation: Tensor) -> Tensor:
        """Actions int [...] (continuous: float [..., A]), rewards [...], observations [..., D] -> tokens [..., width]."""
        parts = []
        if self.action is not None:
            parts.append(self.action(action if self.action_size else self.one_hot[action]))
        if self.reward is not None:
            parts.append(self.reward(reward[..., None]))
        if self.observation is not None:
            place = 0 if self.observation_first else len(parts)
            parts.insert(place, self.observation(observation))
        return torch.cat(parts, dim=-1)
