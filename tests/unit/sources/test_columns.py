"""Columns that grow on disk: what goes wrong there is a message."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from recollect.settings.errors import UserError
from recollect.sources.columns import Columns, Rows

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has this device")
@pytest.mark.parametrize("ask", [Columns.state, Columns.arrays])
def test_a_disk_that_is_full_is_a_message_also_where_it_shows_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Columns], object]
) -> None:
    def full(columns: Columns, name: str, kept: int = 0) -> IO[bytes]:
        return FULL.open("r+b")

    monkeypatch.setattr(Columns, "_open", full)
    columns = Columns(tmp_path)
    some = np.zeros(3, np.int8)
    columns.append(2, Rows(some, some, some.astype(np.float32), some.astype(bool)), "a")  # stays in a buffer
    with pytest.raises(UserError, match=r"rows cannot be written: .*No space left"):
        ask(columns)
    for file in columns._files.values():
        with contextlib.suppress(OSError):
            file.close()
