"""AMAGO's time step encoders: what stands at one time step -> one vector.

A time step is an observation (numbers, an image, or both), a goal sequence where there is one, and the "rl2" vector: what
the last action was and what it led to. Two layouts of it:

- `seed`: whether an episode begins, reward, time / horizon, previous action; "none yet" is all ones (discrete) or -2.
- `head`: reward, previous action; "none yet" is all zeros.

Numbers and rl2 go through InputNorm, the goals through an embedder, an image through a CNN, a linear layer and LayerNorm; a
perceptron reads all of it, and LayerNorm ends it. The encoder `crafter` differs in this: InputNorm is of rl2 alone, numbers
beside an image (the inventory) are divided by 10, an image becomes 256 features, and ids of textures are embedded.

The encoder `image`, of newer released code, sees an image and rl2 alone, and has no InputNorm and no perceptron: 256 features
of the image and 12 of symlog(rl2), one activation and one linear layer on both, LayerNorm.

Source: AMAGO (arXiv 2310.09971), specification 1.1, 1.2 and 4.7. Differences: without goals there is no goal embedder (the
seed code keeps one that gives a constant zero); `hide_rl2` hides with images too (there it had no effect).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.goal_embedders import FeedForwardGoals, TokenGoals
from recollect.amago.images import CNN, ImageNetwork, random_shift
from recollect.amago.input_norm import InputNorm
from recollect.amago.own_parts import Replaceable
from recollect.amago.policy_distributions import Kind
from recollect.amago.share import Seeded
from recollect.amago.texture_embedder import TextureEmbedder
from recollect.amago.trajectory_encoders import ACTIVATIONS, Activation, plain_linear
from recollect.amago.value_bins import symlog
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of

CRAFTER_IMAGE_WIDTH, LARGEST_COUNT = 256, 10.0  # of `crafter`: features of an image; no more of an item can be carried
IMAGE_WIDTH, RL2_WIDTH = 256, 12  # of `image`: features of an image and of rl2


class InputSettings(Replaceable):
    """What the agent sees of a time step, and the encoder of it."""

    PART: ClassVar[str] = "time step encoder"
    OURS: ClassVar[tuple[str, ...]] = ("plain", "crafter", "image")

    layout: Literal["seed", "head"] = Field("seed", description="Of the rl2 vector; see amago.timestep_encoders.")
    encoder: str = Field("plain", description="plain, crafter or image, see amago.timestep_encoders; or your own.")
    hide_rl2: bool = Field(False, description="The agent sees its observations only.")
    hide_rewards: bool = Field(False, description="Of the rl2 vector, the reward is not seen.")
    hidden: tuple[PositiveInt, ...] | Literal["twice"] = Field(
        (512, 512),
        min_length=1,
        description="Hidden widths. Paper: 128, 128 in grids. `twice` (Crafter): two, twice as wide as what they read.",
    )
    width: int = Field(256, ge=1, description="Width of the vector. Paper: 64 to 256.")
    activation: Activation = Field("leaky_relu", description="Naive ablation: relu.")
    input_norm: Literal["fixed", "upstream", "off"] = Field(
        "fixed", description="`upstream`: statistics of features that were normalised before, the seed code's defect."
    )
    cnn: CNN = Field("nature", description="Of image observations. Seed code: nature.")
    augment: bool = Field(False, description="Random shifts of images while learning (DrQ-v2).")
    goals: Literal["ff", "token"] = Field(
        "ff", description="Embedder of goal sequences. MazeRunner: ff; Crafter: token."
    )
    goal_width: int = Field(32, ge=1, description="Its width. Seed code: 32; Crafter: 64.")

    @model_validator(mode="after")
    def _check(self) -> InputSettings:
        if self.hidden == "twice" and self.encoder in ("plain", "image"):
            raise ValueError("only the encoder 'crafter' has hidden layers that are `twice` as wide as what they read")
        return self


@dataclass(frozen=True)
class StepShape:
    """What a time step is made of.

    Attributes:
        vector: numbers of an observation (besides goals and image).
        ids: how many of them, the first ones, say which texture a cell has.
        image: shape of its image, () where there is none.
        goals: (K, G) of its goal sequence, () where there is none.
        kind, actions: of actions; number of discrete ones, or numbers of one.
        horizon: longest rollout.
    """

    vector: int
    kind: Kind
    actions: int
    horizon: int
    image: tuple[int, ...] = ()
    goals: tuple[int, ...] = ()
    ids: int = 0


@dataclass(frozen=True)
class Steps:
    """Time steps [..., ] on the device; None where the world has no such thing.

    Attributes:
        vector: float32 [..., D].
        rl2: float32 [..., R], see `rl2_vector`.
        time: int64 [...], steps since the rollout began.
        image: uint8 [..., *shape].
        goals: float32 [..., K, G] as observations show them.
    """

    vector: Tensor | None
    rl2: Tensor
    time: Tensor
    image: Tensor | None = None
    goals: Tensor | None = None

    def rows(self, rows_N: Tensor) -> Steps:
        """Those of some rows, on the device of `rows_N`."""
        parts = {name: part.to(rows_N.device)[rows_N] for name, part in vars(self).items() if part is not None}
        return Steps(**({"vector": None} | parts))


def rl2_width(shape: StepShape, layout: str) -> int:
    return shape.actions + (3 if layout == "seed" else 1)


def rl2_vector(
    settings: InputSettings, shape: StepShape, previous_action: Tensor, reward: Tensor, time: Tensor, begins: Tensor
) -> Tensor:
    """The rl2 vectors [..., R].

    Args:
        previous_action: int [...] (discrete), int [..., A] of bits (-1: none yet), or float [..., A] (-2: none yet).
        begins: bool [...], whether an episode begins.
    """
    seed = settings.layout == "seed"
    if shape.kind == "discrete":
        known = previous_action.long().clamp(min=0)
        action = functional.one_hot(known, shape.actions).float()
        none = (previous_action < 0)[..., None]
        action = action.masked_fill(none, 1.0 if seed else 0.0)
    elif shape.kind == "binary":
        action = previous_action.float().clamp(min=0.0)
    else:
        action = previous_action.float()
        if not seed:
            action = action.masked_fill(action < -1.5, 0.0)
    parts = [torch.zeros_like(reward) if settings.hide_rewards else reward]
    if seed:
        parts = [begins.float(), *parts, time.float() / shape.horizon]
    vector = torch.cat([torch.stack(parts, -1), action], -1)
    return torch.zeros_like(vector) if settings.hide_rl2 else vector


class _SeesImages(nn.Module):
    """What encoders of images share. `augment_draws` is set while learning, where images are augmented."""

    settings: InputSettings
    augment_draws: Seeded | None = None

    def shown(self, image: Tensor, channels_last: bool) -> Tensor:
        """Images [B, T, *shape] as the encoder reads them."""
        if not self.settings.augment or not self.training or self.augment_draws is None:
            return image
        moved = random_shift(image.movedim(-1, -3) if channels_last else image, self.augment_draws)
        return moved.movedim(-3, -1) if channels_last else moved


class TimestepEncoder(_SeesImages):
    def __init__(self, settings: InputSettings, shape: StepShape, *, seed: int) -> None:
        super().__init__()
        self.settings, self.act = settings, ACTIVATIONS[settings.activation]
        draws = torch.Generator().manual_seed(seed_of("time step encoder", seed))
        self.crafter, self.ids = settings.encoder == "crafter", shape.ids
        rl2 = rl2_width(shape, settings.layout)
        off = settings.input_norm == "off"
        # The seed code's encoder of images alone has no such defect.
        defect = settings.input_norm == "upstream" and (self.crafter or not shape.image)
        self.input_norm = None if off else InputNorm(
            rl2 if self.crafter else shape.vector + rl2,
            order="upstream" if defect else "fixed",
        )  # fmt: skip
        width = shape.vector + rl2
        self.textures: TextureEmbedder | None = None
        if shape.ids:
            if not self.crafter:
                what = f"{shape.ids} of the {shape.vector} numbers are ids of textures, which are no amounts"
                raise UserError(what, where="inputs.encoder", do="set inputs.encoder to crafter")
            self.textures = TextureEmbedder(shape.ids, draws)
            width += self.textures.width - shape.ids
        self.goals: nn.Module | None = None
        if shape.goals:
            if settings.goals == "ff":
                self.goals = FeedForwardGoals(shape.goals[0], shape.goals[1], settings.goal_width, draws)
            else:
                self.goals = TokenGoals(settings.goal_width, draws)
            width += settings.goal_width
        self.cnn: ImageNetwork | None = None
        if shape.image:
            features = CRAFTER_IMAGE_WIDTH if self.crafter or settings.hidden == "twice" else settings.hidden[0]
            self.cnn = ImageNetwork(settings.cnn, shape.image, draws)
            self.image_linear = plain_linear(self.cnn.width, features, draws)
            self.image_norm = nn.LayerNorm(features)
            width += features
        hidden = (2 * width, 2 * width) if settings.hidden == "twice" else settings.hidden
        widths = [width, *hidden, settings.width]
        self.layers = nn.ModuleList(plain_linear(a, b, draws) for a, b in pairwise(widths))
        self.norm = nn.LayerNorm(settings.width)

    def forward(self, steps: Steps, mask_BT: Tensor | None = None) -> Tensor:
        """Vectors [..., width]; with a mask of real steps, training also updates the statistics of InputNorm."""
        vector = None if steps.vector is None else steps.vector.float()
        parts = []
        if self.crafter and vector is not None:
            if self.textures is not None:
                parts.append(self.textures(vector[..., : self.ids]))
            parts.append(vector[..., self.ids :] if self.cnn is None else vector / LARGEST_COUNT)
            vector = None
        x = steps.rl2 if vector is None else torch.cat([vector, steps.rl2], -1)
        parts.append(x if self.input_norm is None else self.input_norm(x, mask_BT))
        if self.goals is not None:
            parts.append(self.goals(steps.goals))
        if self.cnn is not None:
            image = steps.image
            assert image is not None
            image = self.shown(image, self.cnn.channels_last)
            parts.append(self.image_norm(self.image_linear(self.cnn(image))))
        h = torch.cat(parts, -1)
        for layer in self.layers[:-1]:
            h = self.act(layer(h))
        return self.norm(self.layers[-1](h))


class ImageTimestepEncoder(_SeesImages):
    """The encoder `image`, see the head of this file. Raises UserError: there is more to see than an image, or none."""

    def __init__(self, settings: InputSettings, shape: StepShape, *, seed: int) -> None:
        super().__init__()
        if not shape.image or shape.vector or shape.goals:
            what = "the time step encoder 'image' sees an image, and neither numbers beside it nor goals"
            raise UserError(what, where="inputs.encoder", do="show the image alone, or set inputs.encoder to plain")
        self.settings, self.act = settings, ACTIVATIONS[settings.activation]
        draws = torch.Generator().manual_seed(seed_of("time step encoder", seed))
        self.cnn = ImageNetwork(settings.cnn, shape.image, draws)
        self.image_linear = plain_linear(self.cnn.width, IMAGE_WIDTH, draws)
        self.rl2_linear = plain_linear(rl2_width(shape, settings.layout), RL2_WIDTH, draws)
        self.merge = plain_linear(IMAGE_WIDTH + RL2_WIDTH, settings.width, draws)
        self.norm = nn.LayerNorm(settings.width)

    def forward(self, steps: Steps, mask_BT: Tensor | None = None) -> Tensor:
        """Vectors [..., width]."""
        assert steps.image is not None
        image = self.image_linear(self.cnn(self.shown(steps.image, self.cnn.channels_last)))
        both = torch.cat([image, self.rl2_linear(symlog(steps.rl2))], -1)
        return self.norm(self.merge(self.act(both)))


def make_timestep_encoder(settings: InputSettings, shape: StepShape, *, seed: int) -> nn.Module:
    """The time step encoder that the settings name; see `TimestepEncoder.forward` for what it is called with."""
    if (own := settings.own()) is not None:
        made: nn.Module = own.TimestepEncoder(settings, shape, seed=seed)
        return made
    return (ImageTimestepEncoder if settings.encoder == "image" else TimestepEncoder)(settings, shape, seed=seed)
