"""Trains an image encoder together with a Decision Transformer on learning histories of images; then it is frozen.

As RA-DT does for Procgen: a DT whose embedding of observations is IMPALA's network learns the histories' actions, and its
encoder gives all methods their vectors (released: `precompute_img_embeds.py` with the policy's `embed_image`, of the
checkpoint `procgen_encoders_custom_v2`). The settings are those of the environment's `dt`. Differences, and why:

- No configuration of that pre-training is released; its checkpoint's name, `dt_mediumplus_64`, is the size of `dt` here.
- Released, what the encoder gives is the observation's token itself. Here the DT's linear embedding follows, as it does for
  the vectors that the methods read; it is thrown away with the DT.
- Initial weights of the encoder are LeCun-normal, those of an encoder that stays random; PyTorch's there.

Source: RA-DT (arXiv 2410.07071), specification 1.8 and 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.artifacts.run import Run
from recollect.common.contract import facts_of
from recollect.common.histories import Histories
from recollect.common.image_encoders.registry import blank_network, draw_weights
from recollect.common.transfer import sent
from recollect.radt import dt
from recollect.radt.decision_transformer import DecisionTransformer, Experience
from recollect.radt.supervised import ExperienceStore, train_supervised
from recollect.radt.windows import WindowSampler
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of


class SeeingTransformer(nn.Module):
    """A Decision Transformer behind an image encoder.

    Args:
        encoder: images [N, C, H, W] of 0 to 1 -> vectors [N, W].
        last: images are [H, W, C].
    """

    def __init__(self, encoder: nn.Module, network: DecisionTransformer, *, last: bool) -> None:
        super().__init__()
        self.encoder, self.network, self.last = encoder, network, last

    def forward(self, window: Experience, images_N: Tensor) -> Any:
        """What the DT says of windows whose N real steps show these images, uint8; see `DecisionTransformer.forward`."""
        frames = images_N.permute(0, 3, 1, 2) if self.last else images_N
        seen_NW = self.encoder(frames.float() / 255)
        observation_BTW = seen_NW.new_zeros(*window.mask.shape, seen_NW.shape[-1])
        observation_BTW[window.mask] = seen_NW
        fields = {name: getattr(window, name) for name in window.__dataclass_fields__}
        return self.network(Experience(**{**fields, "observation": observation_BTW}))

    def reseed_dropout(self, seed: int) -> None:
        self.network.reseed_dropout(seed)


def train_encoder(settings: Settings, histories: Histories, run: Run, *, device: str = "cpu") -> dict[str, Tensor]:
    """Train an encoder for an environment of images.

    Args:
        settings: of the environment with the method `dt`.
        histories: of images, uint8 [N, ...], usually mapped from disk: a step reads the images of its own windows.

    Returns:
        The encoder's weights, on the CPU.

    Raises:
        UserError: the environment has no images or its histories hold none, or the encoder is none that can be trained.
    """
    images, chosen = settings.environment.images, settings.method.hyperparameters
    shape = histories.observation.shape[1:]
    if images is None or len(shape) != 3 or histories.observation.dtype != np.uint8:
        raise UserError(
            f"the observations are {histories.observation.dtype} of shape {shape}, and an image encoder learns from images",
            where=histories.where,
            do="remove `images` from the environment, or make histories of images",
        )
    facts = facts_of(settings.environment)
    encoder = blank_network(images, shape)
    draw_weights(encoder, seed_of("image encoder", images.encoder, images.seed))
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network = dt.build_network(settings, facts)
    model: Any = SeeingTransformer(encoder, network, last=images.channels == "last").to(device)
    sampler = WindowSampler(histories, **chosen.sampling(settings.seed))
    # All but the images stands on the device.
    blind = Histories({**histories.arrays(), "observation": np.zeros((len(histories), 1), np.float32)})
    store = ExperienceStore(blind, actions=facts.actions, device=device, reward_scale=chosen.reward_scale)

    def batch_of(step: int) -> tuple[Experience, Tensor]:
        windows = sampler.batch(step)
        images_N = np.asarray(histories.observation[windows.rows[windows.mask]])
        return store.windows(windows.rows, windows.mask), sent(images_N, device)

    def loss_of(model: Callable[..., Any], batch: tuple[Experience, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        window, images_N = batch
        return dt.action_loss(model(window, images_N)[0], window)

    train_supervised(
        model,
        batch_of=batch_of,
        loss_of=loss_of,
        # Not compiled: batches differ in how many images they have, and each number would be compiled anew.
        settings=chosen.optimisation.model_copy(update={"compile": False}),
        run=run,
        seed=settings.seed,
        device=device,
    )
    return {name: weight.detach().cpu().contiguous() for name, weight in model.encoder.state_dict().items()}
