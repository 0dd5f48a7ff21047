"""Arrow columns as the values of Python examples."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ._ids import is_text


def to_examples(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch as dictionaries.

    **Arguments:**

    - `batch`: any record batch.

    **Returns:**

    One dictionary per row. Text is `str`, binary `bytes`; numbers are NumPy scalars and lists of
    numbers NumPy arrays, so that both keep their type; tensors are NumPy arrays with their shape;
    other nested values are lists and dictionaries; a missing value is `None`.
    """
    names = batch.schema.names
    rows = zip(*map(_values, batch.columns), strict=True)
    # Of all ways to make many dictionaries this is the one that runs no Python code for each.
    return map(dict, map(zip, itertools.repeat(names), rows))


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if is_text(kind):
        return column.to_pylist()
    if isinstance(column, pa.FixedShapeTensorArray) and not column.null_count:
        return list(column.to_numpy_ndarray())
    if _is_number(kind):
        return _numbers(column)
    if _is_list(kind) and _is_number(kind.value_type):
        return _lists(column)
    return column.to_pylist()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _numbers(column: pa.Array) -> list[Any]:
    if not column.null_count:
        return list(column.to_numpy(zero_copy_only=False))
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    numbers = filled.to_numpy(zero_copy_only=False)
    return [number if ok else None for number, ok in zip(numbers, valid, strict=True)]


def _lists(column: pa.Array) -> list[Any]:
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()
    values = flat.to_numpy(zero_copy_only=False)
    lengths = column.value_lengths() if not pa.types.is_fixed_size_list(column.type) else None
    if lengths is None:
        sizes = np.where(column.is_valid().to_numpy(zero_copy_only=False), column.type.list_size, 0)
    else:
        sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes)
    lists = [values[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    if not column.null_count:
        return lists
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return [item if ok else None for item, ok in zip(lists, valid, strict=True)]
