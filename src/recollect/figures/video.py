"""Videos: pictures with a line of words under each, as an mp4, a gif, or a strip of a few of them in one PNG."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from recollect.artifacts.sealed import check_writable, write_bytes
from recollect.settings.errors import UserError, nearest

FPS = 8
STRIP = 8  # pictures of a strip
LINE, NARROW = 18, 360  # pixels: height of the words, and the width below which pictures get margins so that they fit
SUFFIXES = (".mp4", ".gif", ".png")


def check_video(path: Path) -> None:
    """Refuse a path before the work that would be lost.

    Raises:
        UserError: another suffix than those of `SUFFIXES`, a place that cannot be written, or an mp4 without its package.
    """
    if path.suffix not in SUFFIXES:
        what = f"'{path.suffix}' is no kind of video" if path.suffix else "the path does not say which kind of video"
        raise UserError(what, where=f"--video {path}", do=nearest(path.suffix, SUFFIXES))
    if path.suffix == ".mp4" and find_spec("imageio_ffmpeg") is None:
        do = "`.venv/bin/uv pip install --python .venv/bin/python imageio-ffmpeg` in the clone, or write a .gif, which needs none"
        raise UserError("an mp4 needs the package 'imageio-ffmpeg', which is not installed", where=path, do=do)
    check_writable(path)


def write_video(path: Path, pictures: Iterable[tuple[np.ndarray, str]], count: int) -> None:
    """Write a video so that it is whole or absent.

    Args:
        path: see `check_video`.
        pictures: uint8 [H, W, 3], all of the same shape, each with the words under it.
        count: how many there are.
    """
    frames = (captioned(*picture) for picture in pictures)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"video{path.suffix}"
        if path.suffix == ".mp4":
            _write_mp4(made, frames)
        elif path.suffix == ".gif":
            first, *others = (Image.fromarray(frame).quantize(64, dither=Image.Dither.NONE) for frame in frames)
            first.save(made, save_all=True, append_images=others, duration=1000 // FPS, loop=0)
        else:
            places = set(np.linspace(0, count - 1, min(STRIP, count)).astype(int).tolist())
            shown = [frame for place, frame in enumerate(frames) if place in places]
            Image.fromarray(np.concatenate(shown, axis=1)).save(made)
        write_bytes(path, made.read_bytes())


def captioned(picture: np.ndarray, words: str) -> np.ndarray:
    """The picture with words under it, uint8 [H, W, 3]; both sides are even numbers, which videos want."""
    height, width = picture.shape[:2]
    wide = max(width, NARROW) + max(width, NARROW) % 2
    canvas = Image.new("RGB", (wide, height + height % 2 + LINE), (238, 240, 243))
    canvas.paste(Image.fromarray(picture), ((wide - width) // 2, 0))
    ImageDraw.Draw(canvas).text((wide / 2, canvas.height - LINE / 2), words, (26, 26, 26), font_size=12, anchor="mm")
    return np.array(canvas)


def _write_mp4(path: Path, frames: Iterator[np.ndarray]) -> None:
    import imageio_ffmpeg

    first = next(frames)
    size = (first.shape[1], first.shape[0])
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=FPS, macro_block_size=2, ffmpeg_log_level="error")
    writer.send(None)
    try:
        for frame in chain([first], frames):
            writer.send(frame.tobytes())
    finally:
        writer.close()
