"""ArrayRecord files as a source."""

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from ._extras import missing_extra
from ._records import RecordSource, Unreadable
from ._sources import AbstractSource

# What array_record raises for a damaged file, late: at the first read, or when it is closed.
_LIBRARY_ERRORS = (RuntimeError, ValueError, IndexError, OSError)
# So many records are read at once.
_STEP = 256


@final
class ArrayRecordSource(AbstractSource):
    """The records of ArrayRecord files, file after file."""

    def __init__(
        self,
        files: Sequence[str | Path],
        *,
        decode: Callable[[bytes], Mapping[str, Any]] | None = None,
        schema: pa.Schema | None = None,
    ):
        """**Arguments:**

        - `files`: the files, in the order in which to read them.
        - `decode`: makes an example of a record; by default `{"record": its bytes}`. Records of
            TFDS are decoded by `TfdsSource`.
        - `schema`: the examples' Arrow schema; by default it is inferred, see `RecordSource`.
        """
        self._files = [Path(file) for file in files]
        self._decode = decode or _as_it_is
        # What cannot be opened counts as one record, which cannot be read.
        self._counts = [_count(file) for file in self._files]
        self._starts = [0, *itertools.accumulate(self._counts)]
        self._records = RecordSource(_Records(self), schema=schema, name=self._place)
        self.skipped = self._records.skipped

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        return self._records.batches(skip=skip)

    def describe(self) -> dict[str, Any]:
        return {"kind": "array record", "files": [file.name for file in self._files]}

    def locate(self, row: int) -> str:
        return self._records.locate(row)

    def total(self) -> int | None:
        return self._starts[-1]

    def _place(self, number: int) -> str:
        at = bisect.bisect_right(self._starts, number) - 1
        return f"{self._files[at]}, record {number - self._starts[at]}"


@final
class _Records:
    """The decoded records, as often as they are asked for."""

    def __init__(self, source: ArrayRecordSource):
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        source = self._source
        for file, count in zip(source._files, source._counts, strict=True):
            try:
                for record in _read(file, count):
                    yield _decoded(record, source._decode)
            except _LIBRARY_ERRORS as error:
                yield Unreadable(
                    f"the file, or the rest of it, cannot be read as ArrayRecord ({error}). "
                    "Restore the file, remove it, or leave it out with on_error='skip'."
                )


def _decoded(record: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(record)
    except Exception as error:  # It is the user's.
        name = getattr(decode, "__qualname__", repr(decode))
        return Unreadable(f"decode={name} raised {type(error).__name__}: {error}.")


def _read(file: Path, count: int) -> Iterator[bytes]:
    reader = _open(file)
    if reader.num_records() != count:
        # It was counted as a file that cannot be opened: closing it says why.
        reader.close()
    for start in range(0, count, _STEP):
        yield from reader.read(start, min(start + _STEP, count))
    reader.close()


def _count(file: Path) -> int:
    reader = _open(file)
    count = reader.num_records()
    try:
        reader.close()
    except _LIBRARY_ERRORS:
        return 1
    return count


def _as_it_is(record: bytes) -> dict[str, Any]:
    return {"record": record}


def _open(file: Path) -> Any:
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise missing_extra("tfds", "array-record", f"Reading {file}") from error
    if not file.is_file():
        raise FileNotFoundError(f"The source file {file} does not exist. Check the path.")
    return ArrayRecordReader(str(file), "readahead_buffer_size:1048576")
