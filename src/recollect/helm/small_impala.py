"""The networks of HELM's agents: two convolutions and a linear layer ("small Impala"), and heads with a layer norm.

Source: HELM (Paischer et al. 2022) and its code; specification 4.1 and 4.2. All initial weights come from a generator:
Xavier-uniform with gain sqrt 2 in the encoder, orthogonal with gain sqrt 2 in the heads. Output layers are no exception, so the
first policy is not near uniform, as it usually is in PPO. All biases are zero.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.settings.errors import UserError

GAIN = 2**0.5
CHANNELS = (16, 32)  # times the channel scale


def channels_of(shape: tuple[int, ...]) -> Literal["first", "last"]:
    """Where the channels of images of this shape are: at the shorter end."""
    return "last" if shape[2] < shape[0] else "first"


class SmallImpala(nn.Module):
    """Images uint8 [N, *shape] -> vectors [N, width], not negative. Bytes are divided by 255 here.

    The kernels go by the raw shape, as published: 8 (stride 4), then 4 (stride 2). For images of at most nine rows the first
    is 4 (stride 2). Where the last axis is at most 9 the second is 2 (stride 1). In images [H, W, C] that last axis is the
    channels (Psychlab, as published); see `channels_of`.

    Raises UserError: the images are too small for two convolutions.
    """

    def __init__(
        self, shape: tuple[int, ...], width: int, *, channel_scale: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.channels_last = channels_of(shape) == "last"
        channels, height, across = (shape[2], *shape[:2]) if self.channels_last else shape
        first = (8, 4) if shape[1] > 9 else (4, 2)
        second = (4, 2) if shape[2] > 9 else (2, 1)
        for kernel, stride in (first, second):
            height, across = (height - kernel) // stride + 1, (across - kernel) // stride + 1
        if min(height, across) < 1:
            least = 12 if self.channels_last else 20  # the second kernel is smaller where the channels come last
            raise UserError(
                f"images of shape {shape} are too small for this encoder",
                where="small Impala encoder",
                do=f"use a world whose images are 6 to 9, or at least {least}, pixels high and wide",
            )
        one, two = (scale * channel_scale for scale in CHANNELS)
        self.first = nn.utils.skip_init(nn.Conv2d, channels, one, *first)
        self.second = nn.utils.skip_init(nn.Conv2d, one, two, *second)
        self.linear = nn.utils.skip_init(nn.Linear, two * height * across, width)
        for layer in (self.first, self.second, self.linear):
            nn.init.xavier_uniform_(layer.weight, GAIN, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = (images.permute(0, 3, 1, 2) if self.channels_last else images).float() / 255
        return F.relu(self.linear(F.relu(self.second(F.relu(self.first(x)))).flatten(1)))


class NormedHead(nn.Module):
    """Linear, layer norm without parameters, ReLU, linear: [N, D] -> [N, outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.hidden = nn.utils.skip_init(nn.Linear, inputs, hidden)
        self.last = nn.utils.skip_init(nn.Linear, hidden, outputs)
        for layer in (self.hidden, self.last):
            nn.init.orthogonal_(layer.weight, GAIN, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(x)
        return self.last(F.relu(F.layer_norm(x, x.shape[-1:])))


class ActorCritic(nn.Module):
    """Encoder and two heads: images, and a history vector where there is one -> log-probabilities [N, A], values [N].

    Args:
        history: width of a history vector that the heads read in front of the features; 0: there is none.
        units: of an LSTM between encoder and heads (PyTorch's initialisation, uniform in +-1/sqrt(units)); 0: none.
        reads: width of what the LSTM reads instead of features, which then stand behind its outputs; 0: it reads features.
        actor, critic: widths of the heads' hidden layers.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        actions: int,
        *,
        width: int,
        channel_scale: int,
        history: int = 0,
        units: int = 0,
        reads: int = 0,
        actor: int = 128,
        critic: int = 512,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.units = units
        self.encoder = SmallImpala(shape, width, channel_scale=channel_scale, generator=generator)
        inputs = history + (units + width if reads else units or width)
        self.actor = NormedHead(inputs, actor, actions, generator=generator)
        self.critic = NormedHead(inputs, critic, 1, generator=generator)
        if units:
            self.lstm: nn.LSTM = nn.LSTM(reads or width, units, device="meta").to_empty(device="cpu")
            with torch.no_grad():
                for parameter in self.lstm.parameters():
                    parameter.uniform_(-(units**-0.5), units**-0.5, generator=generator)

    def forward(self, images: Tensor, history_NH: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of single images uint8 [N, *shape], without the LSTM."""
        return self.of_features(self.encoder(images), history_NH)

    def of_features(self, features_NW: Tensor, history_NH: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`forward` of what the encoder made of the images."""
        return self.heads(features_NW if history_NH is None else torch.cat([history_NH, features_NW], 1))

    def heads(self, features_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N, A] and values [N] of what the heads read."""
        return F.log_softmax(self.actor(features_ND), 1), self.critic(features_ND)[:, 0]

    def unroll(self, features_LNW: Tensor, hidden_NU: Tensor, cell_NU: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the LSTM over N sequences of L images, of which it gets the features (or what it `reads`), from a state.

        Gives its outputs [L, N, U], and output and cell [N, U] after the last image.
        """
        outputs_LNU, (hidden_1NU, cell_1NU) = self.lstm(features_LNW, (hidden_NU[None], cell_NU[None]))
        return outputs_LNU, hidden_1NU[0], cell_1NU[0]
