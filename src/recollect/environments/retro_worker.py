"""Plays one game of stable-retro for our side of it (`retro.py`): there can be one emulator in a process.

Run by our own Python. The protocol is that of `procgen_worker.py`; the batch has one game. `begin` loads a start and plays
its first frame, `step` plays one action for some frames. Shared arrays: `action` (a number, or a bit for
each button), `actions` (how many there are), `reward`, `first` (it is over), `frame`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recollect.environments.procgen_worker import Server

# The border of a picture says which console it is, as upstream's.
BORDERS = {
    "Snes": (18, 196, 65), "Nes": (191, 40, 17), "PCEngine": (232, 211, 19), "GameGear": (25, 230, 199),
    "Genesis": (8, 8, 201), "GbColor": (124, 49, 189), "GbAdvance": (182, 49, 189), "GameBoy": (59, 58, 58),
    "Gb": (59, 58, 58), "Sms": (255, 255, 255), "Atari2600": (219, 157, 147),
}  # fmt: skip
BORDER = 2
BLOCK = 8  # rows or columns of a picture that are computed at once
TRIED = 3  # frames that two ways of shrinking are compared on


def shares(size: int, wanted: int) -> np.ndarray:
    """How much of each of `size` pixels in a row lies in each of `wanted`, float64 [wanted, size]; rows sum to 1."""
    edge = np.linspace(0, size, wanted + 1)
    pixel = np.arange(size)
    overlap = np.minimum(edge[1:, None], pixel + 1) - np.maximum(edge[:-1, None], pixel)
    clipped: np.ndarray = np.clip(overlap, 0, None) * wanted / size
    return clipped


def blocks(share_YH: np.ndarray, most: int) -> list[tuple[slice, slice, np.ndarray]]:
    """Rows of a matrix, at most so many at once: which they are, the columns they need, and what stands there."""
    found = []
    for first in range(0, len(share_YH), most):
        part = share_YH[first : first + most]
        needed = np.flatnonzero(part.any(0))
        columns = slice(int(needed[0]), int(needed[-1]) + 1)
        found.append((slice(first, first + len(part)), columns, np.ascontiguousarray(part[:, columns])))
    return found


class Shrinker:
    """Shrinks frames by area: the product of a frame with a matrix of shares from each side.

    Those matrices are nearly all zeros, so few rows or columns are computed at once, from those that they need. The result
    is that of the whole product to the bit, as far as the linear algebra library adds in the same order. Where it does
    not, which is tried on some frames, the whole is computed.

    Args:
        seen: rows and columns of a frame.
        wanted: rows and columns that are shown.
    """

    def __init__(self, seen: tuple[int, int], wanted: tuple[int, int]) -> None:
        self.wanted = wanted
        self.shares = [shares(size, shown) for size, shown in zip(seen, wanted, strict=True)]
        self.use_blocks_of(BLOCK)
        draws = np.random.default_rng(0)
        for _ in range(TRIED):
            frame_HWC = draws.integers(0, 256, (*seen, 3), np.uint8)
            if not np.array_equal(self.shrunk(frame_HWC), self.whole(frame_HWC)):
                self.use_blocks_of(max(wanted))
                break

    def use_blocks_of(self, most: int) -> None:
        self.row_blocks, self.column_blocks = (blocks(share, most) for share in self.shares)

    def whole(self, frame_HWC: np.ndarray) -> np.ndarray:
        """What a frame becomes, by two products of whole matrices; float64 [C, Y, X]."""
        rows_YH, columns_XW = self.shares
        whole_CYX: np.ndarray = rows_YH @ frame_HWC.transpose(2, 0, 1).astype(np.float64) @ columns_XW.T
        return whole_CYX

    def shrunk(self, frame_HWC: np.ndarray) -> np.ndarray:
        """The same, computed in blocks."""
        height, width, channels = frame_HWC.shape
        rows, columns = self.wanted
        pixels_HN = frame_HWC.reshape(height, width * channels).astype(np.float64)
        low_YN = np.empty((rows, width * channels))
        for shown, needed, share in self.row_blocks:
            np.matmul(share, pixels_HN[needed], out=low_YN[shown])
        low_CYW = np.ascontiguousarray(low_YN.reshape(rows, width, channels).transpose(2, 0, 1))
        low_NW = low_CYW.reshape(channels * rows, width)
        small_NX = np.empty((channels * rows, columns))
        for shown, needed, share in self.column_blocks:
            np.matmul(low_NW[:, needed], share.T, out=small_NX[:, shown])
        return small_NX.reshape(channels, rows, columns)


class Game:
    """One game; see the head of the file."""

    def __init__(self, arrays: dict[str, np.ndarray], options: dict[str, Any]) -> None:
        import stable_retro as retro

        self.arrays = arrays
        self.frames = int(options["frame_skip"])
        self.buttons = bool(options["buttons"])
        kind = retro.Actions.FILTERED if self.buttons else retro.Actions.DISCRETE
        self.inner = retro.make(options["game"], use_restricted_actions=kind, render_mode="rgb_array")
        arrays["actions"][0] = self.inner.action_space.n
        seen_rows, seen_columns = self.inner.observation_space.shape[:2]
        rows, columns = arrays["frame"].shape[2:]
        self.shrinker = Shrinker((seen_rows, seen_columns), (rows, columns))
        self.border = BORDERS.get(self.inner.system, (0, 0, 0)) if options["border"] else None

    def begin(self, which: list[dict[str, Any]]) -> None:
        if which[0]["start"] is not None:
            import stable_retro as retro

            self.inner.load_state(which[0]["start"], retro.data.Integrations.DEFAULT)
        self.arrays["reward"][0] = 0
        self.arrays["first"][0] = False
        self._show(self.inner.reset()[0])

    def step(self) -> None:
        """Play the action until the frames are over or the game is.

        That is the package's `step` again and again, without the pictures and the variables of frames that nobody sees.
        Buttons stay pressed.
        """
        pressed = self.arrays["action"]
        action = pressed[: self.inner.action_space.n].astype("int8") if self.buttons else int(pressed[0])
        emulator, data = self.inner.em, self.inner.data
        for player, mask in enumerate(self.inner.action_to_array(action)):
            emulator.set_button_mask(mask, player)
        reward = 0.0
        for _ in range(self.frames):
            emulator.step()
            data.update_ram()
            reward += float(data.current_reward())
            over = bool(data.is_done())
            if over:
                break
        self.arrays["reward"][0] = reward
        self.arrays["first"][0] = over
        self._show(self.inner.get_screen(apply_rotation=True))

    def _show(self, frame_HWC: np.ndarray) -> None:
        """Shrink a frame by area, and draw the border."""
        shown = self.arrays["frame"][0]
        shown[:] = np.rint(self.shrinker.shrunk(frame_HWC))
        if self.border is not None:
            color = np.array(self.border, np.uint8)[:, None, None]
            shown[:, :BORDER] = color
            shown[:, -BORDER:] = color
            shown[:, :, :BORDER] = color
            shown[:, :, -BORDER:] = color


def load() -> str:
    import stable_retro

    return str(stable_retro.__version__).strip()


if __name__ == "__main__":
    Server(Game, load).run()
