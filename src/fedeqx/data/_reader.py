"""Reads rows of shards, one row group at a time."""

import bisect
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ._layout import GROUP_COLUMN, INDEX_CHUNK, DatasetFormatError

# Open shards: the footer of one takes some milliseconds to read, and half a megabyte.
_KEPT_SHARDS = 4
# Index entries that are Python objects at a time when all are gone through.
_INDEX_STEP = 256
_OPENING = threading.Lock()


class Entry(NamedTuple):
    """One row of the index: where a group is, and how large."""

    shard: int
    first_row: int
    examples: int
    bytes: int
    words: int


@final
class Index:
    """The index of groups, mapped into memory: opening it reads nothing but its footer."""

    def __init__(self, path: Path):
        try:
            file = pa.ipc.open_file(pa.memory_map(str(path)))
        except (OSError, pa.ArrowException) as error:
            raise DatasetFormatError(
                f"The index {path} is missing or damaged ({error}). Group the source again."
            ) from error
        self._chunks = [file.get_batch(number) for number in range(file.num_record_batches)]
        self._ids = [chunk.column(0) for chunk in self._chunks]
        # Views of the mapped file, not copies.
        self._numbers = [
            [column.to_numpy() for column in chunk.columns[1:]] for chunk in self._chunks
        ]

    def raw_id(self, position: int) -> str | int | bytes:
        """The value of the id column at a position."""
        chunk, row = divmod(position, INDEX_CHUNK)
        return self._ids[chunk][row].as_py()

    def entry(self, position: int) -> Entry:
        """The index entry at a position."""
        chunk, row = divmod(position, INDEX_CHUNK)
        return Entry(*[column.item(row) for column in self._numbers[chunk]])

    def __iter__(self) -> Iterator[tuple[str | int | bytes, Entry]]:
        """The ids, as `raw_id` gives them, and entries of all groups in order."""
        for ids, numbers in zip(self._ids, self._numbers, strict=True):
            for start in range(0, len(ids), _INDEX_STEP):
                some = slice(start, start + _INDEX_STEP)
                columns = [column[some].tolist() for column in numbers]
                entries = itertools.starmap(Entry, zip(*columns, strict=True))
                yield from zip(ids[some].to_pylist(), entries, strict=True)

    def id_column(self, positions: np.ndarray | None) -> pa.Array:
        """The values of the id column, all or those at some positions."""
        whole = pa.chunked_array(self._ids)
        some = whole if positions is None else whole.take(pa.array(positions))
        return some.combine_chunks()

    def column(self, name: str) -> np.ndarray:
        """One number per group, for all groups."""
        parts = [chunk.column(name).to_numpy() for chunk in self._chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def raw_ids(self) -> Iterator[str | int | bytes]:
        """All ids in order, a chunk at a time."""
        for ids in self._ids:
            yield from ids.to_pylist()


class _Stretch(NamedTuple):
    """A decoded row group: which rows of which shard, with which columns."""

    shard: int
    start: int
    end: int
    columns: tuple[str, ...] | None
    rows: pa.RecordBatch


class _Shard(NamedTuple):
    """An open shard, and where its row groups begin (one place more)."""

    file: pq.ParquetFile
    starts: list[int]


@final
class ParquetRows:
    """Rows of the shards of a folder. Safe to use from several threads; pickles as its path."""

    def __init__(self, folder: Path, shard_files: list[str], kept: int = 1):
        """`kept` decoded row groups are held, because neighbouring small groups lie in one."""
        self._kept_row_groups = kept
        self._folder = folder
        self._shard_files = shard_files
        self._lock = threading.Lock()
        self._shards: OrderedDict[int, _Shard] = OrderedDict()
        self._kept: OrderedDict[tuple[Any, ...], _Stretch] = OrderedDict()
        self._latest: _Stretch | None = None

    def __reduce__(self):
        return ParquetRows, (self._folder, self._shard_files, self._kept_row_groups)

    def read(
        self, shard: int, first_row: int, count: int, columns: tuple[str, ...] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`count` rows from a place on, across row groups and shards.

        All columns but the group's, or the given ones.
        """
        # Small groups mostly lie in the row group that was read last. It is looked up without the
        # lock: the attribute is read once, and what it holds does not change.
        latest = self._latest
        if (
            latest is not None
            and latest.shard == shard
            and latest.start <= first_row < first_row + count <= latest.end
            and latest.columns == columns
        ):
            return iter((latest.rows.slice(first_row - latest.start, count),))
        return self._read(shard, first_row, count, columns)

    def _read(
        self, shard: int, first_row: int, count: int, columns: tuple[str, ...] | None
    ) -> Iterator[pa.RecordBatch]:
        while count:
            with self._lock:
                starts = self._shard(shard).starts
                if first_row >= starts[-1]:
                    shard, first_row = shard + 1, first_row - starts[-1]
                    continue
                stretch = self._row_group(
                    shard, bisect.bisect_right(starts, first_row) - 1, columns
                )
                self._latest = stretch
            part = stretch.rows.slice(first_row - stretch.start, count)
            yield part
            count -= part.num_rows
            first_row += part.num_rows

    def _shard(self, shard: int) -> _Shard:
        if shard in self._shards:
            self._shards.move_to_end(shard)
            return self._shards[shard]
        if shard >= len(self._shard_files):
            raise DatasetFormatError(
                f"{self._folder} has {len(self._shard_files)} shards, and the index points past "
                "the last. Group the source again."
            )
        self._leave(shard - 1)
        path = self._folder / self._shard_files[shard]
        try:
            file = _open(path)
        except (OSError, pa.ArrowException) as error:
            raise DatasetFormatError(
                f"The shard {path} is missing or damaged ({error}). Restore it, or group the "
                "source again."
            ) from error
        if len(self._shards) == _KEPT_SHARDS:
            self._shards.popitem(last=False)[1].file.close()
        metadata = file.metadata
        rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._shards[shard] = _Shard(file, [0, *itertools.accumulate(rows)])
        return self._shards[shard]

    def _leave(self, shard: int) -> None:
        """Close a shard if its last row group is among those held: who goes on is done with it."""
        if shard in self._shards:
            last = len(self._shards[shard].starts) - 2
            held = [key for key in self._kept if key[:2] == (shard, last)]
            for key in held:
                del self._kept[key]
            if held:
                self._latest = None
                self._shards.pop(shard).file.close()

    def _row_group(self, shard: int, number: int, columns: tuple[str, ...] | None) -> _Stretch:
        key = shard, number, columns
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        file, starts = self._shard(shard)
        # Who goes on to a row group is done with the one before.
        self._latest = None
        self._kept.pop((shard, number - 1, columns), None)
        if len(self._kept) == self._kept_row_groups:
            self._kept.popitem(last=False)
        _memory_pool().release_unused()
        if columns is None:
            names = [name for name in file.schema_arrow.names if name != GROUP_COLUMN]
        else:
            names = list(columns)
        try:
            table = file.read_row_group(number, columns=names, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DatasetFormatError(
                f"Row group {number} of the shard {self._folder / self._shard_files[shard]} is "
                f"damaged ({error}). Restore the file, or group the source again."
            ) from error
        rows = table.combine_chunks().to_batches()[0]
        self._kept[key] = _Stretch(shard, starts[number], starts[number + 1], columns, rows)
        return self._kept[key]


def _open(path: Path) -> pq.ParquetFile:
    # A reader takes its memory from the pool that is Arrow's own when it is made.
    with _OPENING:
        before = pa.default_memory_pool()
        pa.set_memory_pool(_memory_pool())
        try:
            # The file is mapped: copying what will be read would only cost time.
            return pq.ParquetFile(path, memory_map=True, pre_buffer=False)
        finally:
            pa.set_memory_pool(before)


def _memory_pool() -> pa.MemoryPool:
    """Where row groups are decoded: jemalloc, if Arrow has it, gives back what is free when asked.

    Arrow's usual mimalloc keeps some ten times what is held here.
    """
    try:
        return pa.jemalloc_memory_pool()
    except NotImplementedError:
        return pa.default_memory_pool()


@final
class MemoryRows:
    """Rows of shards that are held in memory."""

    def __init__(self, shards: list[pa.Table]):
        self._shards = shards

    def read(
        self, shard: int, first_row: int, count: int, columns: tuple[str, ...] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`count` rows from a place on, across shards; all columns, or the given ones."""
        while count:
            part = self._shards[shard].slice(first_row, count)
            part = part if columns is None else part.select(columns)
            yield from part.to_batches()
            count -= part.num_rows
            first_row = max(0, first_row - self._shards[shard].num_rows)
            shard += 1
