"""The one table that figures read: a number per row, and what it is a number of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from recollect.settings.errors import UserError

SCORE_DTYPES: dict[str, str] = {
    "env": "str",
    "method": "str",
    "seed": "int64",
    "step": "int64",
    "split": "str",
    "task": "int32",
    "episode": "int32",
    "metric": "str",
    "value": "float64",
}
SCORE_COLUMNS: list[str] = list(SCORE_DTYPES)
_DTYPES: dict[str, Any] = {
    name: pd.StringDtype(na_value=np.nan) if dtype == "str" else np.dtype(dtype) for name, dtype in SCORE_DTYPES.items()
}
_TEXTS = [name for name, dtype in SCORE_DTYPES.items() if dtype == "str"]
LEARNING = "learning"  # the split of evaluations that are made while a run learns
NOT_ONE = -1  # task or episode of a number that belongs to no single one, e.g. a training loss

BLANKS: dict[str, Any] = {"env": "", "method": "", "seed": -1}  # left for the run to fill in


def scores_frame(
    *,
    env: Any = "",
    method: Any = "",
    seed: Any = -1,
    step: Any,
    split: Any,
    task: Any = NOT_ONE,
    episode: Any = NOT_ONE,
    metric: Any,
    value: Any,
) -> pd.DataFrame:
    """Build score rows from scalars and arrays, broadcast against each other and flattened (C order).

    A return curve of T tasks, E episodes: ``task=np.arange(T)[:, None], episode=np.arange(E), value=returns_TE``.
    `env`, `method` and `seed` may be left to the run, which fills them in.

    Returns:
        a frame with the columns and dtypes of SCORE_DTYPES.

    Raises:
        UserError: a column is not of its type.
    """
    given = [env, method, seed, step, split, task, episode, metric, value]
    try:
        arrays = np.broadcast_arrays(*(np.asarray(column) for column in given))
    except ValueError as error:
        shapes = {name: np.shape(column) for name, column in zip(SCORE_COLUMNS, given, strict=True)}
        raise ValueError(f"score columns do not fit together: {shapes}") from error
    columns = {name: array.reshape(-1) for name, array in zip(SCORE_COLUMNS, arrays, strict=True)}
    typed = {name: column for name, array in columns.items() if (column := _typed(name, array)) is not None}
    if len(typed) == len(columns):
        return pd.DataFrame(typed)
    return check_scores(pd.DataFrame(columns), where="score rows")


def check_scores(frame: pd.DataFrame, *, where: object) -> pd.DataFrame:
    """The frame with its columns in order and of their dtypes, or a UserError about `where`.

    `value` may be NaN (a loss that diverged), nothing else may.
    """
    # Most frames were checked already, and figures read hundreds of them.
    is_typed = frame.dtypes.to_dict() == _DTYPES
    if is_typed and list(frame) == SCORE_COLUMNS and not any(frame[name].hasnans for name in _TEXTS):
        return frame.reset_index(drop=True)
    do = f"a score table has exactly the columns {', '.join(SCORE_COLUMNS)}"
    missing = [name for name in SCORE_COLUMNS if name not in frame.columns]
    unknown = [str(name) for name in frame.columns if name not in SCORE_DTYPES]
    if missing or unknown:
        what = "; ".join(
            f"{said} {', '.join(names)}" for said, names in (("missing", missing), ("unknown", unknown)) if names
        )
        raise UserError(f"the columns are wrong: {what}", where=where, do=do)
    return pd.DataFrame({name: _column(frame[name], name, where) for name in SCORE_COLUMNS}).reset_index(drop=True)


def concat_scores(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all frames one after the other; without frames, an empty score table."""
    checked = [check_scores(frame, where="score rows") for frame in frames]
    if not checked:
        return pd.DataFrame({name: pd.Series(dtype=_DTYPES[name]) for name in SCORE_COLUMNS})
    return pd.concat(checked, ignore_index=True)


def _typed(name: str, array: np.ndarray) -> Any:
    """A new column of a numpy array [N] that is plainly of its type, which needs no check; else None."""
    kind, wanted = array.dtype.kind, _DTYPES[name]
    if SCORE_DTYPES[name] == "str":
        return pd.array(array, dtype=wanted) if kind == "U" else None
    if kind not in ("iuf" if name == "value" else "iu"):
        return None
    column = array.astype(wanted)
    return column if name == "value" or np.array_equal(column, array) else None


def _column(series: pd.Series, name: str, where: object) -> pd.Series:
    wanted = SCORE_DTYPES[name]
    do = f"give {name} as {wanted}"
    if wanted != "float64" and series.isna().any():
        raise UserError(f"column '{name}' has empty cells", where=where, do=do)
    if series.dtype == _DTYPES[name]:
        return series
    if wanted == "str":
        if not pd.api.types.is_string_dtype(series) and len(series):
            raise UserError(f"column '{name}' holds {series.dtype}, not text", where=where, do=do)
        return series.astype(_DTYPES[name])
    if not (pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series)) and len(series):
        raise UserError(f"column '{name}' holds {series.dtype}, not numbers", where=where, do=do)
    converted = series.astype(_DTYPES[name])
    if wanted != "float64" and not np.array_equal(converted.to_numpy(), series.to_numpy()):
        raise UserError(f"column '{name}' holds numbers that are not {wanted}", where=where, do=do)
    return converted
