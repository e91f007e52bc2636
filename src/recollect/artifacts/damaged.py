"""What readers of other people's files raise where such a file is cut or changed."""

from __future__ import annotations

import zipfile
import zlib

DAMAGED = (
    *(OSError, ValueError, EOFError, LookupError, TypeError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
