"""One group: its examples as a lazy stream, or a part of them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from ._examples import to_examples
from ._ids import GroupId
from ._measure import measure
from ._parts import Part, parts_of
from ._reader import Entry, MemoryRows, ParquetRows


class Size(NamedTuple):
    """How large a group is."""

    examples: int
    bytes: int
    words: int


@final
class Group:
    """One group: its id, its size, and its examples as a lazy stream that can be read again.

    Also a part of a group's examples, made by `split`. Its size is known only once it was read.
    """

    __slots__ = ("_entry", "_parts", "_rows", "_size", "id")

    def __init__(
        self,
        group_id: GroupId,
        rows: ParquetRows | MemoryRows,
        entry: Entry,
        parts: tuple[Part, ...] = (),
    ):
        """`parts`: which examples, one choice after the other; all by default."""
        self.id: GroupId = group_id
        self._rows = rows
        self._entry = entry
        self._parts = parts
        self._size: Size | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of the examples' values, before compression."""
        return self._measured().bytes

    @property
    def num_words(self) -> int:
        """The words of the examples' text, split at white space."""
        return self._measured().words

    def __len__(self) -> int:
        return self._measured().examples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.chain.from_iterable(map(to_examples, self.batches()))

    def batches(
        self, start: int = 0, stop: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The examples as Arrow record batches of about a row group each, read as they are asked
        for.

        **Arguments:**

        - `start`, `stop`: the first example, and the one after the last; all by default.
        - `columns`: the columns to read; all by default.
        """
        shard, first_row, examples, _, _ = self._entry
        stop = examples if stop is None else min(stop, examples)
        names = None if columns is None else tuple(columns)
        if not self._parts:
            return self._rows.read(shard, first_row + start, max(0, stop - start), names)
        return self._batches_of_part(start, stop, names)

    def _batches_of_part(
        self, start: int, stop: int, names: tuple[str, ...] | None
    ) -> Iterator[pa.RecordBatch]:
        shard, first_row, examples, _, _ = self._entry
        passed = 0
        for batch in self._rows.read(shard, first_row, examples):
            # All columns are read: they decide to which part an example belongs.
            for part in self._parts:
                batch = part.of(batch)
            kept = batch.slice(max(0, start - passed), max(0, stop - max(start, passed)))
            passed += batch.num_rows
            if kept.num_rows:
                yield kept if names is None else kept.select(names)
            if passed >= stop:
                return

    def split(self, fractions: Mapping[str, float | int], *, seed: int) -> "dict[str, Group]":
        """Split the examples at random, for example into a tuning and a held-out part.

        An example's part depends on its content, the seed and the fractions alone, so that it stays
        the same in any order; equal examples are never in two parts. A part can be split again.

        **Arguments:**

        - `fractions`: the parts' names and their expected shares, which add up to 1.
        - `seed`: any integer.

        **Returns:**

        The parts by name: iterate them as often as you like; nothing is held in memory.
        """
        return {
            name: Group(self.id, self._rows, self._entry, (*self._parts, part))
            for name, part in parts_of(fractions, seed, len(self._parts), "split").items()
        }

    def load(self) -> "Group":
        """The same group with its examples in memory."""
        batches = list(self.batches())
        loaded = MemoryRows([pa.Table.from_batches(batches)] if batches else [])
        return Group(self.id, loaded, Entry(0, 0, *self._measured()))

    def __repr__(self) -> str:
        if self._parts and self._size is None:
            return f"Group(id={self.id!r}, a part of {self._entry.examples} examples)"
        return f"Group(id={self.id!r}, examples={len(self)}, bytes={self.num_bytes})"

    def _measured(self) -> Size:
        """The size; of a part it is not written down, and the group is read for it once."""
        if self._size is None and not self._parts:
            self._size = Size(*self._entry[2:])
        if self._size is None:
            examples = size = words = 0
            for batch in self.batches():
                batch_bytes, batch_words = measure(batch)
                examples += batch.num_rows
                size += int(batch_bytes.sum())
                words += int(batch_words.sum())
            self._size = Size(examples, size, words)
        return self._size


def sizes_of(groups: Iterator[Group], count: int) -> dict[str, np.ndarray]:
    """The sizes of groups, by what they count; parts are read for it."""
    table: np.ndarray = np.fromiter(
        (group._measured() for group in groups), np.dtype((np.int64, 3)), count
    )
    return dict(zip(Size._fields, table.T, strict=True))
