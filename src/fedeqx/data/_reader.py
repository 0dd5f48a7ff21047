"""Reads rows of shards, one row group at a time."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ._layout import GROUP_COLUMN, INDEX_CHUNK, DatasetFormatError

# Decoded row groups that are kept, because neighbouring small groups lie in one.
_KEPT_ROW_GROUPS = 4
_KEPT_FILES = 64


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
        return Entry(*(int(column[row]) for column in self._numbers[chunk]))

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


@final
class ParquetRows:
    """Rows of the shards of a folder. Safe to use from several threads; pickles as its path."""

    def __init__(self, folder: Path, shard_files: list[str]):
        self._folder = folder
        self._shard_files = shard_files
        self._lock = threading.Lock()
        self._files: OrderedDict[int, tuple[pq.ParquetFile, np.ndarray]] = OrderedDict()
        self._kept: OrderedDict[tuple[Any, ...], pa.RecordBatch] = OrderedDict()

    def __reduce__(self):
        return ParquetRows, (self._folder, self._shard_files)

    def read(
        self, shard: int, first_row: int, count: int, columns: tuple[str, ...] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`count` rows from a place on, across row groups and shards.

        All columns but the group's, or the given ones.
        """
        while count:
            with self._lock:
                starts = self._file(shard)[1]
                if first_row >= starts[-1]:
                    shard, first_row = shard + 1, first_row - int(starts[-1])
                    continue
                number = int(np.searchsorted(starts, first_row, "right")) - 1
                rows = self._row_group(shard, number, columns)
            offset = first_row - int(starts[number])
            part = rows.slice(offset, count)
            yield part
            count -= part.num_rows
            first_row += part.num_rows

    def _file(self, shard: int) -> tuple[pq.ParquetFile, np.ndarray]:
        if shard in self._files:
            self._files.move_to_end(shard)
            return self._files[shard]
        if shard >= len(self._shard_files):
            raise DatasetFormatError(
                f"{self._folder} has {len(self._shard_files)} shards, and the index points past "
                "the last. Group the source again."
            )
        path = self._folder / self._shard_files[shard]
        try:
            # The file is mapped: copying what will be read would only cost time.
            file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
        except (OSError, pa.ArrowException) as error:
            raise DatasetFormatError(
                f"The shard {path} is missing or damaged ({error}). Restore it, or group the "
                "source again."
            ) from error
        metadata = file.metadata
        rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._files[shard] = file, np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        if len(self._files) > _KEPT_FILES:
            self._files.popitem(last=False)[1][0].close()
        return self._files[shard]

    def _row_group(
        self, shard: int, number: int, columns: tuple[str, ...] | None
    ) -> pa.RecordBatch:
        key = shard, number, columns
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        file = self._file(shard)[0]
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
        self._kept[key] = table.combine_chunks().to_batches()[0]
        if len(self._kept) > _KEPT_ROW_GROUPS:
            self._kept.popitem(last=False)
        return self._kept[key]


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
