"""Writes examples that come sorted by group as Parquet shards, and their index."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ._ahead import Behind
from ._ids import column_type, keys_to_column
from ._layout import GROUP_COLUMN, INDEX_CHUNK, INDEX_NAME, index_schema, shard_name
from ._sorting import BYTES, FRONT, KEY, WORDS


class WriterOptions(NamedTuple):
    """How large shards and row groups are, and how they are compressed."""

    shard_bytes: int = 64 << 20
    row_group_bytes: int = 256 << 10
    compression: str = "lz4"


@final
class GroupWriter:
    """Takes sorted batches of (key, example) and writes shards and the index of groups.

    A row group ends where a group ends if that leaves it at least half full, so that a small group
    lies in one row group; a group larger than a row group, or than a shard, goes on in the next.
    """

    def __init__(self, folder: Path, schema: pa.Schema, id_kind: str, options: WriterOptions):
        self._folder = folder
        self._kind = id_kind
        self._options = options
        self._examples_schema = schema
        id_field = pa.field(GROUP_COLUMN, column_type(id_kind), nullable=False)
        self._schema = pa.schema([id_field, *schema], metadata=schema.metadata)
        self._index = _IndexWriter(folder, id_kind)
        self._pending: list[_Rows] = []
        self._pending_bytes = 0
        self._shard: _Shard | None = None
        self._behind = Behind()
        self._last_key: bytes | None = None
        self.shards: list[dict[str, Any]] = []
        self.num_examples = 0

    def write(self, sorted_rows: pa.RecordBatch) -> None:
        """Add rows with the columns of `FRONT`, whose keys come after or equal those before."""
        columns = sorted_rows.columns
        examples = pa.record_batch(columns[len(FRONT) :], schema=self._examples_schema)
        rows = _Rows(columns[KEY], examples, columns[BYTES].to_numpy(), columns[WORDS].to_numpy())
        self._pending.append(rows)
        self._pending_bytes += int(rows.bytes.sum())
        if self._pending_bytes >= 4 * self._options.row_group_bytes:
            self._flush(last=False)

    def close(self) -> dict[str, Any]:
        """Write what is left; returns the manifest's counts, shards and index."""
        if self._pending:
            self._flush(last=True)
        self._end_shard()
        self._behind.close()
        index = self._index.close()
        return {**self._index.totals, "shards": self.shards, "index": index}

    def abort(self) -> None:
        """Close the files of an unfinished data set."""
        self._behind.close()
        self._end_shard()
        self._index.abort()

    def _flush(self, *, last: bool) -> None:
        rows = _Rows.join(self._pending)
        count = len(rows.bytes)
        starts = self._group_starts(rows.keys)
        ends = np.cumsum(rows.bytes)
        shard_of, row_in_shard = np.zeros(count, np.int32), np.zeros(count, np.int64)
        position = 0
        while position < count:
            end = self._row_group_end(position, starts, ends)
            if end == count and not last:
                break
            shard_of[position:end], first = self._write_row_group(rows, position, end)
            row_in_shard[position:end] = first + np.arange(end - position)
            position = end
        if position:
            head = rows.slice(0, position)
            where = np.flatnonzero(starts[:position])
            self._index.add(head, where, shard_of[:position], row_in_shard[:position])
            self._last_key = head.keys[-1].as_py()
            self.num_examples += position
        tail = rows.slice(position, count)
        self._pending = [tail] if len(tail.bytes) else []
        self._pending_bytes = int(tail.bytes.sum())

    def _group_starts(self, keys: pa.Array) -> np.ndarray:
        starts = np.ones(len(keys), bool)
        starts[1:] = pc.call_function("not_equal", [keys[1:], keys[:-1]]).to_numpy(
            zero_copy_only=False
        )
        starts[0] = keys[0].as_py() != self._last_key
        return starts

    def _row_group_end(self, position: int, starts: np.ndarray, ends: np.ndarray) -> int:
        before = int(ends[position - 1]) if position else 0
        target = self._options.row_group_bytes
        end = max(int(np.searchsorted(ends, before + target, "right")), position + 1)
        if end >= len(ends):
            return len(ends)
        boundaries = np.flatnonzero(starts[position + 1 : end + 1])
        if len(boundaries):
            boundary = position + 1 + int(boundaries[-1])
            if 2 * (int(ends[boundary - 1]) - before) >= target:
                return boundary
        return end

    def _write_row_group(self, rows: "_Rows", start: int, end: int) -> tuple[int, int]:
        if self._shard is not None and self._shard.bytes >= self._options.shard_bytes:
            self._end_shard()
        if self._shard is None:
            self._shard = _Shard(
                self._folder / shard_name(len(self.shards)), self._schema, self._options
            )
        ids = keys_to_column(rows.keys[start:end], self._kind)
        columns = [ids, *rows.examples.slice(start, end - start).columns]
        first = self._shard.rows
        # A row group is compressed and written while the next one is put together.
        self._behind.call(self._shard.write, pa.record_batch(columns, schema=self._schema))
        self._shard.rows += end - start
        self._shard.bytes += int(rows.bytes[start:end].sum())
        return len(self.shards), first

    def _end_shard(self) -> None:
        if self._shard is not None:
            self._behind.wait()
            self.shards.append(self._shard.close())
            self._shard = None


class _Rows(NamedTuple):
    """Consecutive examples with their keys and measures."""

    keys: pa.Array
    examples: pa.RecordBatch
    bytes: np.ndarray
    words: np.ndarray

    @staticmethod
    def join(parts: "list[_Rows]") -> "_Rows":
        if len(parts) == 1:
            return parts[0]
        return _Rows(
            pa.concat_arrays([part.keys for part in parts]),
            pa.concat_batches([part.examples for part in parts]),
            np.concatenate([part.bytes for part in parts]),
            np.concatenate([part.words for part in parts]),
        )

    def slice(self, start: int, end: int) -> "_Rows":
        return _Rows(
            self.keys[start:end],
            self.examples.slice(start, end - start),
            self.bytes[start:end],
            self.words[start:end],
        )


class HashingFile:
    """A file to write to that knows the SHA-256 of what was written."""

    def __init__(self, path: Path):
        self._file = path.open("wb")
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


@final
class _Shard:
    """One Parquet file being written."""

    def __init__(self, path: Path, schema: pa.Schema, options: WriterOptions):
        self.path = path
        self.rows = 0
        self.bytes = 0
        self.file = HashingFile(path)
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self.file, "w"),
            schema,
            compression=options.compression,
            # The ids repeat, and readers find groups by their statistics; examples do neither.
            use_dictionary=[GROUP_COLUMN],  # pyright: ignore[reportArgumentType]
            write_statistics=[GROUP_COLUMN],  # pyright: ignore[reportArgumentType]
            sorting_columns=[pq.SortingColumn(0)],
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._parquet.write_batch(batch, row_group_size=batch.num_rows)

    def close(self) -> dict[str, Any]:
        self._parquet.close()
        self.file.close()
        return {"file": self.path.name, "examples": self.rows, "sha256": self.file.sha256}


@final
class _IndexWriter:
    """Writes the index while the groups pass by; the last group is held back until it has ended."""

    def __init__(self, folder: Path, id_kind: str):
        self.totals = {"num_groups": 0, "num_examples": 0, "num_bytes": 0, "num_words": 0}
        self._kind = id_kind
        self._schema = index_schema(column_type(id_kind))
        self._file = HashingFile(folder / INDEX_NAME)
        self._sink = pa.PythonFile(self._file, "w")
        # Not compressed: readers map it into memory instead of loading it.
        self._ipc = pa.ipc.new_file(self._sink, self._schema)
        self._held: list[pa.RecordBatch] = []
        self._open: pa.RecordBatch | None = None

    def add(
        self, rows: _Rows, starts: np.ndarray, shard_of: np.ndarray, row_in_shard: np.ndarray
    ) -> None:
        """Add rows; `starts` are the positions where a group begins."""
        sums = [
            np.concatenate([[0], np.cumsum(values)])
            for values in (np.ones(len(rows.bytes), np.int64), rows.bytes, rows.words)
        ]
        begun = int(starts[0]) if len(starts) else len(rows.bytes)
        if begun:
            self._grow([int(total[begun]) for total in sums])
        if not len(starts):
            return
        ends = np.append(starts[1:], len(rows.bytes))
        entries = pa.record_batch(
            [
                rows.keys.take(pa.array(starts)),
                shard_of[starts],
                row_in_shard[starts],
                *(total[ends] - total[starts] for total in sums),
            ],
            names=self._schema.names,
        )
        self._push(self._open)
        self._push(entries.slice(0, entries.num_rows - 1))
        self._open = entries.slice(entries.num_rows - 1)

    def close(self) -> dict[str, Any]:
        self._push(self._open)
        self._emit(last=True)
        self._ipc.close()
        self._sink.close()
        return {"file": INDEX_NAME, "sha256": self._file.sha256}

    def abort(self) -> None:
        self._ipc.close()
        self._sink.close()

    def _grow(self, amounts: list[int]) -> None:
        """The group that is open goes on: add examples, bytes and words to it."""
        assert self._open is not None
        columns = self._open.columns
        grown = [
            pa.array([column[0].as_py() + amount])
            for column, amount in zip(columns[3:], amounts, strict=True)
        ]
        self._open = pa.record_batch([*columns[:3], *grown], names=self._schema.names)

    def _push(self, entries: pa.RecordBatch | None) -> None:
        if entries is None or not entries.num_rows:
            return
        self.totals["num_groups"] += entries.num_rows
        for name, column in zip(
            ("num_examples", "num_bytes", "num_words"), entries.columns[3:], strict=True
        ):
            self.totals[name] += int(column.sum().as_py())
        self._held.append(entries)
        if sum(batch.num_rows for batch in self._held) >= INDEX_CHUNK:
            self._emit(last=False)

    def _emit(self, *, last: bool) -> None:
        if not self._held:
            return
        held = pa.concat_batches(self._held)
        position = 0
        while held.num_rows - position >= INDEX_CHUNK or (last and position < held.num_rows):
            chunk = held.slice(position, INDEX_CHUNK)
            columns = [keys_to_column(chunk.column(0), self._kind), *chunk.columns[1:]]
            self._ipc.write_batch(pa.record_batch(columns, schema=self._schema))
            position += chunk.num_rows
        self._held = [held.slice(position)] if position < held.num_rows else []
