"""Games of consoles play as the package plays them, though nothing is drawn that nobody sees, and are played side by side."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.environments import retro_worker


@pytest.mark.parametrize("seen", [(224, 320), (240, 256), (210, 160), (144, 160), (84, 96), (60, 70)])
def test_frames_shrunk_in_blocks_are_those_of_whole_products(seen: tuple[int, int]) -> None:
    shrinker = retro_worker.Shrinker(seen, (84, 96))
    draws = np.random.default_rng(1)
    for most in (256, 256, 256, 9, 2):
        frame_HWC = draws.integers(0, most, (*seen, 3), np.uint8)
        whole_CYX = shrinker.whole(frame_HWC)
        assert np.rint(shrinker.shrunk(frame_HWC)).tobytes() == np.rint(whole_CYX).tobytes()
    shrinker.use_blocks_of(8)  # also where the library adds in another order, but for rounding
    np.testing.assert_allclose(shrinker.shrunk(frame_HWC), whole_CYX, rtol=1e-12, atol=1e-12)
