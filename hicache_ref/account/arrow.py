"""Arrow's tables from columns of numbers.

Rules of this file
- Arrays are put together from their buffers: `pyarrow.array` would import pandas, which takes longer than a replay of
  a thousand requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa


def numbers(values: Any, valid: Any = None) -> pa.Array:
    """[rows] of any kind of number, from anything with a buffer. `valid`: [rows] bool; others are null."""
    column = np.asarray(values)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), len(column), [bits, pa.py_buffer(column.copy())])


def labels(codes: Any, names: Sequence[str]) -> pa.DictionaryArray:
    """[rows] of `names`, by their places in it, which fit a byte: a list of them, or an array of bytes."""
    ends = np.array([0, *accumulate(len(name.encode()) for name in names)], np.int32)
    words = pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer("".join(names).encode()))
    return pa.DictionaryArray.from_arrays(numbers(np.frombuffer(bytes(codes), np.int8)), words)


def table(columns: Mapping[str, Any]) -> pa.Table:
    """Of columns by name: Arrow's, or of numbers."""
    arrays = [column if isinstance(column, pa.Array) else numbers(column) for column in columns.values()]
    return pa.Table.from_arrays(arrays, list(columns))
