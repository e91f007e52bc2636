"""HELMv2's read-out: image features, standardised one by one and given the scale of a language model's word embeddings.

The released code uses the batch's own statistics. So what an agent's image becomes depends on what the other agents see. One
agent alone gives NaN, and agents that see the same all get the mean of the embeddings. So there are three kinds of statistics:

- `batch`: mean and unbiased std of the batch at hand, as released; refused for a batch of one.
- `running`: mean and variance of all features so far, updated in front of each use while training (parallel Welford). The
  first image of an agent alone has no spread yet: its deviation counts as 1.
- `frozen`: those of a calibration, e.g. of a random policy's images, or those that a `running` one ended with.

Source: HELMv2 (2022 workshop paper) and its released code; specification 3.2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from recollect.settings.errors import UserError

Statistics = Literal["batch", "running", "frozen"]
EPSILON = 1e-8


def alone() -> UserError:
    return UserError(
        "one agent alone has no spread",
        where="feature statistics: batch",
        do="play the variant `played_alone` (`played_statistics: trained`), or more than one episode; or train with `running` or "
        "`frozen`",
    )


class FeatureRescaling:
    """``(y - mean) / (std + 1e-8) * target std + target mean``, feature by feature."""

    def __init__(self, target_std_W: Tensor, target_mean_W: Tensor, statistics: Statistics = "batch") -> None:
        self.statistics, self.width = statistics, len(target_std_W)
        self.target_std_W, self.target_mean_W = target_std_W, target_mean_W
        self.count = 0
        self.mean_W = torch.zeros(self.width, dtype=torch.float64, device=target_std_W.device)
        self.squares_W = torch.zeros_like(self.mean_W)  # sum of squared distances from the mean

    @classmethod
    def like(cls, embeddings_VW: Tensor, statistics: Statistics = "batch") -> FeatureRescaling:
        """To the scale of a language model's word embeddings, whose width is that of the features."""
        return cls(*torch.std_mean(embeddings_VW.detach().float(), dim=0), statistics)

    @torch.no_grad()
    def __call__(self, features_NW: Tensor, *, update: bool = True) -> Tensor:
        """Rescaled features [N, W] of one step's images, one row per agent; with `update`, `running` statistics grow.

        Raises UserError: another width, a batch of one with `batch`, or no statistics yet.
        """
        if features_NW.shape[1] != self.width:
            raise UserError(
                f"features of width {features_NW.shape[1]} cannot be given the scale of embeddings of width {self.width}",
                where="feature statistics",
                do="choose a vision-language model as wide as the language model (CLIP RN50 with Transformer-XL)",
            )
        features_NW = features_NW.float()
        if self.statistics == "batch":
            if len(features_NW) < 2:
                raise alone()
            std_W, mean_W = torch.std_mean(features_NW, dim=0)
        else:
            if self.statistics == "running" and update:
                self.take_in(features_NW)
            if self.count < (1 if self.statistics == "running" else 2):
                raise UserError(
                    f"the statistics stand on {self.count} images",
                    where=f"feature statistics: {self.statistics}",
                    do="give `take_in` the features of some images first",
                )
            variance_W = self.squares_W / (self.count - 1) if self.count > 1 else torch.ones_like(self.squares_W)
            mean_W, std_W = self.mean_W.float(), variance_W.sqrt().float()
        return (features_NW - mean_W) / (std_W + EPSILON) * self.target_std_W + self.target_mean_W

    def take_in(self, features_NW: Tensor) -> None:
        """Add features to the statistics (of `running`; and of `frozen`, before it is used)."""
        rows_NW = features_NW.detach().to(self.mean_W)
        added, total = len(rows_NW), self.count + len(rows_NW)
        if not added:
            return
        mean_W = rows_NW.mean(0)
        away_W = mean_W - self.mean_W
        self.squares_W = self.squares_W + (rows_NW - mean_W).square().sum(0) + away_W**2 * (self.count * added / total)
        self.mean_W, self.count = self.mean_W + away_W * (added / total), total

    def arrays(self) -> dict[str, np.ndarray]:
        """The statistics, for checkpoints and policies (nothing with `batch`)."""
        if self.statistics == "batch":
            return {}
        return {
            "count": np.array(self.count, np.int64),
            "mean": self.mean_W.cpu().numpy(),
            "squares": self.squares_W.cpu().numpy(),
        }

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        if self.statistics != "batch":
            self.count = int(arrays["count"])
            self.mean_W = torch.from_numpy(np.array(arrays["mean"])).to(self.mean_W)
            self.squares_W = torch.from_numpy(np.array(arrays["squares"])).to(self.mean_W)
