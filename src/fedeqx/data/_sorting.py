"""A stable external sort of record batches by group key, in bounded memory.

DuckDB's sort (2.0.1) runs out of memory on rows of a few KB once the data exceeds the limit,
because its merge pins rows of all runs at once; documents are that large. This one holds at most a
few row groups of each run whatever the rows' size, and hands every Arrow type through as it is.
"""

import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The columns in front of the examples' own in what is sorted.
KEY, BYTES, WORDS = range(3)
FRONT = pa.schema([("key", pa.large_binary()), ("bytes", pa.int64()), ("words", pa.int64())])

MIN_MEMORY = 32 << 20
# Sorted rows are handed on, and kept in runs, in pieces of about this many bytes.
_PIECE_BYTES = 256 << 10


@final
class ExternalSort:
    """Takes batches in any order of keys and gives them back sorted by key, stably.

    What fits in half of the memory limit is sorted there. Of more, runs are sorted and written by
    threads in the background, and merged at the end.
    """

    def __init__(self, temp: Path, *, memory_limit: int, threads: int):
        """**Arguments:**

        - `temp`: an empty folder for the runs.
        - `memory_limit`: bytes to stay below, about; at least `MIN_MEMORY`.
        - `threads`: how many cores to use; one of them reads the source.
        """
        if memory_limit < MIN_MEMORY:
            raise ValueError(
                f"memory_limit is {memory_limit} bytes; sorting needs at least {MIN_MEMORY} "
                f"({MIN_MEMORY >> 20}MiB)."
            )
        workers = max(1, threads - 1)
        self._temp = temp
        # Sorting takes twice the size of what is sorted, and another run is being filled meanwhile.
        self._memory_bytes = memory_limit // 2
        self._run_bytes = min(memory_limit // (2 * (workers + 1)), 1 << 30)
        self._fan_in = max(2, memory_limit // (4 * _PIECE_BYTES))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="fedeqx-sort")
        self._waiting: deque[Future[None]] = deque()
        self._workers = workers
        self._runs: list[Path] = []
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._names = itertools.count()

    def __enter__(self) -> "ExternalSort":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows: the columns of `FRONT`, then the example's."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes < self._memory_bytes and not self._runs:
            return
        while self._bytes >= self._run_bytes:
            self._start_run()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """All rows, sorted by key; rows of one key in the order in which they were added."""
        if not self._runs:
            yield from _sorted_pieces(self._take_batches(self._bytes))
            return
        while self._batches:
            self._start_run()
        while self._waiting:
            self._waiting.popleft().result()
        # Neighbouring runs are merged, so that the order of the runs stays that of the rows.
        while len(self._runs) > self._fan_in:
            merged = [
                self._merge_to_run(self._runs[start : start + self._fan_in])
                for start in range(0, len(self._runs), self._fan_in)
            ]
            self._runs = merged
        yield from _merge([_read_run(run) for run in self._runs])

    def _start_run(self) -> None:
        if len(self._waiting) == self._workers:
            self._waiting.popleft().result()
        path, batches = self._new_path(), self._take_batches(self._run_bytes)
        self._runs.append(path)
        self._waiting.append(self._pool.submit(_write_run, path, batches))

    def _take_batches(self, size: int) -> list[pa.RecordBatch]:
        """The first batches, of `size` bytes at least if there are as many."""
        batches, rest = [], self._bytes - size
        while self._batches and self._bytes > rest:
            batches.append(self._batches.popleft())
            self._bytes -= batches[-1].nbytes
        return batches

    def _merge_to_run(self, runs: list[Path]) -> Path:
        path = self._new_path()
        _write_pieces(path, _merge([_read_run(run) for run in runs]))
        for run in runs:
            run.unlink()
        return path

    def _new_path(self) -> Path:
        return self._temp / f"run-{next(self._names):06d}.arrows"


def _order(keys: pa.Array) -> np.ndarray | None:
    """The stable order of the keys; none if they come in order. They repeat, so that few need to be
    compared as bytes."""
    encoded = keys.dictionary_encode()
    places = pc.call_function("array_sort_indices", [encoded.dictionary]).to_numpy()
    ranks = np.empty(len(places), np.int32)
    ranks[places] = np.arange(len(places), dtype=np.int32)
    ranks = ranks[encoded.indices.to_numpy()]
    return None if (ranks[1:] >= ranks[:-1]).all() else np.argsort(ranks, kind="stable")


def _sorted_pieces(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not batches:
        return
    order = _order(pa.concat_arrays([batch.column(KEY) for batch in batches]))
    if order is None:
        batches.reverse()
        while batches:
            batch = batches.pop()
            for start, end in _piece_edges(batch.column(BYTES).to_numpy()):
                yield batch.slice(start, end - start)
        return
    whole = pa.concat_batches(batches)
    batches.clear()
    for start, end in _piece_edges(whole.column(BYTES).to_numpy()[order]):
        yield whole.take(pa.array(order[start:end]))


def _piece_edges(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where to cut rows of these bytes into pieces."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _PIECE_BYTES, "right")))
        yield start, end
        start = end


def _write_run(path: Path, batches: list[pa.RecordBatch]) -> None:
    _write_pieces(path, _sorted_pieces(batches))


def _write_pieces(path: Path, pieces: Iterable[pa.RecordBatch]) -> None:
    writer = None
    with pa.OSFile(str(path), "wb") as file:
        for piece in pieces:
            # The stream format, unlike the file format, lets a dictionary change on the way.
            writer = writer or pa.ipc.new_stream(file, piece.schema)
            writer.write_batch(piece)
        if writer is not None:
            writer.close()


def _read_run(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
        yield from reader


class _Cursor:
    """The unread rest of one run: its current piece, and that piece's first and last key."""

    def __init__(self, pieces: Iterator[pa.RecordBatch]):
        self._pieces = pieces
        self._piece: pa.RecordBatch | None = next(pieces, None)
        self._look()

    @property
    def ended(self) -> bool:
        return self._piece is None

    def take(self, key: bytes, *, equal: bool) -> pa.RecordBatch | None:
        """Take the rows of the current piece with a key below `key`, or equal to it, if any."""
        if self._piece is None or self.first > key:
            return None
        side = bisect.bisect_right if equal else bisect.bisect_left
        rows = side(self._piece.column(KEY), key, key=lambda value: value.as_py())
        taken, rest = self._piece.slice(0, rows), self._piece.slice(rows)
        self._piece = rest if rest.num_rows else next(self._pieces, None)
        self._look()
        return taken

    def _look(self) -> None:
        if self._piece is not None:
            keys = self._piece.column(KEY)
            self.first, self.last = keys[0].as_py(), keys[-1].as_py()


def _merge(runs: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge sorted runs; equal keys come in the order of the runs.

    Each step takes, from every run, what is certain to come before anything unread: the rows up to
    the least last key of the current pieces. These few are sorted and handed on.
    """
    cursors = [_Cursor(run) for run in runs]
    while cursors := [cursor for cursor in cursors if not cursor.ended]:
        last, limiting = min((cursor.last, number) for number, cursor in enumerate(cursors))
        taken = [
            # More rows of this key may follow in the limiting run, before those of later runs.
            cursor.take(last, equal=number <= limiting)
            for number, cursor in enumerate(cursors)
        ]
        parts = [part for part in taken if part is not None and part.num_rows]
        yield from parts if len(parts) == 1 else _sorted_pieces(parts)
