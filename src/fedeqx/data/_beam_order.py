"""A total order of all examples, and its division into ranges that become one shard each.

Rows are ordered by group and, within a group, by their place in the source. A range begins at any
row: a large group is spread over as many ranges as its size asks for.
"""

import bisect
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ._seeding import generator

# A place is a part of the source, and a row in it.
ROW_BITS = 40
# Samples of the order: with 16 in a range, ranges are of one size within some 25%.
SAMPLES = 1 << 18
_PER_RANGE = 16
# What an example takes besides its values.
_ROW_BYTES = 16


def order_keys(keys: pa.Array, places: np.ndarray) -> pa.Array:
    """Keys (large_binary) that sort by group key first and by place second.

    **Arguments:**

    - `keys`: the rows' group keys, see `_ids`.
    - `places`: their places, nonnegative int64.
    """
    # Two zero bytes end the group key. Zeros in it are marked, so that no key looks like the
    # beginning of a longer one.
    escaped = pc.call_function(
        "replace_substring",
        [keys.cast(pa.large_binary())],
        pc.ReplaceSubstringOptions(b"\x00", b"\x00\x01"),
    )
    tails = np.zeros((len(keys), 10), np.uint8)
    tails[:, 2:] = places.astype(">u8").view(np.uint8).reshape(-1, 8)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(10), len(keys), [None, pa.py_buffer(tails.tobytes())]
    )
    ends = fixed.cast(pa.binary()).cast(pa.large_binary())
    empty = pa.scalar(b"", pa.large_binary())
    return pc.call_function("binary_join_element_wise", [escaped, ends, empty])


class Sketch(NamedTuple):
    """Some rows of many, drawn in proportion to their bytes: those of the highest priorities.

    Priority sampling (Duffield, Lund and Thorup, J. ACM 54(6), 2007). The draws are a function of
    the rows' places, so that a sketch depends neither on who sees which rows nor on the order.
    """

    size: int
    priorities: np.ndarray
    weights: np.ndarray
    keys: pa.Array

    @staticmethod
    def empty() -> "Sketch":
        """The sketch of no rows."""
        return Sketch(0, np.zeros(0), np.zeros(0), pa.array([], pa.large_binary()))

    @staticmethod
    def of(keys: pa.Array, sizes: np.ndarray, places: np.ndarray) -> "Sketch":
        """The sketch of consecutive rows with these order keys, bytes and places."""
        weights = sizes.astype(float) + _ROW_BYTES
        draws = 1 - generator("ranges", int(places[0])).random(len(keys))
        return Sketch(int(sizes.sum()), weights / draws, weights, keys)

    @staticmethod
    def join(sketches: "list[Sketch]", samples: int = SAMPLES) -> "Sketch":
        """The sketch of all rows of several sketches together."""
        total = sum(sketch.size for sketch in sketches)
        priorities = np.concatenate([sketch.priorities for sketch in sketches])
        weights = np.concatenate([sketch.weights for sketch in sketches])
        keys = pa.concat_arrays([sketch.keys for sketch in sketches])
        if len(priorities) > samples:
            kept = np.sort(np.argpartition(-priorities, samples)[:samples])
            priorities, weights, keys = priorities[kept], weights[kept], keys.take(pa.array(kept))
        return Sketch(total, priorities, weights, keys)

    def bounds(self, range_bytes: int, samples: int = SAMPLES) -> list[bytes]:
        """The order keys at which ranges of about so many bytes begin, without the first range."""
        if not len(self.keys):
            return []
        wanted = -(-self.size // range_bytes)
        # With few samples for each, ranges would be of very different sizes: make them larger.
        count = wanted if len(self.keys) < samples else min(wanted, samples // _PER_RANGE)
        least = self.priorities.min() if len(self.keys) >= samples else 0.0
        order = pc.call_function("array_sort_indices", [self.keys])
        # What a sampled row stands for: itself and those that were not drawn.
        ends = np.cumsum(np.maximum(self.weights, least)[order.to_numpy()])
        targets = ends[-1] * np.arange(1, count) / count
        starts = np.unique(np.searchsorted(ends, targets, "right"))
        starts = starts[(starts > 0) & (starts < len(ends))]
        return self.keys.take(order).take(pa.array(starts)).to_pylist()


def split_at(batch: pa.RecordBatch, bounds: list[bytes]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each range, as (number of the range, rows).

    **Arguments:**

    - `batch`: rows with their order key in the first column.
    - `bounds`: the order keys at which the ranges begin, without the first.
    """
    order = pc.call_function("array_sort_indices", [batch.column(0)])
    ordered = batch.take(order)
    keys = ordered.column(0).to_pylist()
    start = 0
    while start < len(keys):
        number = bisect.bisect_right(bounds, keys[start])
        end = bisect.bisect_left(keys, bounds[number], start) if number < len(bounds) else len(keys)
        yield number, ordered.slice(start, end - start)
        start = end
