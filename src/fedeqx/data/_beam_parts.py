"""A source taken apart, so that many machines can each read a part of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import pyarrow as pa

from ._array_records import ArrayRecordSource
from ._csv_files import CsvSource
from ._files import check_columns
from ._hugging_face import HuggingFaceSource
from ._inputs import FileSource, as_source, kind_of
from ._json_lines import JsonLinesSource
from ._parquet import ParquetSource
from ._records import RecordSource
from ._sources import AbstractSource, Skips, SourceError
from ._stores import fetched, find_files, local_path
from ._text_folder import TextFolderSource

# Parts of a text folder, and of a Hugging Face data set on disk.
_TEXT_FILES = 1000
_ROWS = 100_000


# What the manifest calls them.
_TOLD = {
    ParquetSource: "parquet",
    JsonLinesSource: "json lines",
    CsvSource: "csv",
    ArrayRecordSource: "array record",
}


class Columns(NamedTuple):
    """The examples' schema, and the file that has it."""

    file: str
    schema: pa.Schema


class Reader(NamedTuple):
    """How to read files of one kind."""

    kind: type[FileSource]
    schema: pa.Schema | None = None
    types: dict[str, pa.DataType] | None = None
    decode: Callable[[bytes], Mapping[str, Any]] | None = None

    @staticmethod
    def of(source: FileSource) -> "Reader":
        """How this source reads its files."""
        if isinstance(source, JsonLinesSource):
            return Reader(JsonLinesSource, schema=source._schema)
        if isinstance(source, CsvSource):
            return Reader(CsvSource, types=source._types)
        if isinstance(source, ArrayRecordSource):
            return Reader(ArrayRecordSource, decode=source._decode)
        return Reader(ParquetSource)

    def knowing(self, schema: pa.Schema) -> "Reader":
        """The same, with the types that another file has."""
        types = dict(zip(schema.names, schema.types, strict=True))
        return self._replace(schema=schema, types=types)

    def open(self, path: Path) -> AbstractSource:
        """The source of one file."""
        if self.kind is JsonLinesSource:
            return JsonLinesSource([path], schema=self.schema)
        if self.kind is CsvSource:
            return CsvSource([path], types=self.types)
        if self.kind is ArrayRecordSource:
            return ArrayRecordSource([path], decode=self.decode, schema=self.schema)
        return ParquetSource([path])


@final
class FilePart(AbstractSource):
    """One of several files, which is copied here first if it is on no path of this machine."""

    def __init__(self, file: str, reader: Reader, columns: Columns | None = None):
        """**Arguments:**

        - `file`: its path or URL.
        - `reader`: makes a source of it.
        - `columns`: the columns that it must have, and the order in which to give them.
        """
        self.skipped = Skips()
        self._file = file
        self._reader = reader
        self._columns = columns
        self._source: AbstractSource | None = None
        self._copy = file

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        self.skipped.clear()
        with fetched(self._file) as path:
            self._copy, self._source = str(path), self._reader.open(path)
            try:
                for batch in self._source.batches(skip=skip):
                    yield self._ordered(batch)
            except SourceError as error:
                raise SourceError(self._named(str(error))) from error
            finally:
                self.skipped.count = self._source.skipped.count
                self.skipped.listed = [
                    skipped._replace(where=self._named(skipped.where))
                    for skipped in self._source.skipped
                ]

    def describe(self) -> dict[str, Any]:
        return {"kind": "file", "name": self._file}

    def locate(self, row: int) -> str:
        return self._file if self._source is None else self._named(self._source.locate(row))

    def total(self) -> int | None:
        return None

    def _ordered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._columns is None:
            return batch
        first, schema = self._columns
        found = batch
        if set(batch.schema.names) == set(schema.names):
            found = batch.select(schema.names)
        check_columns(self._file, found.schema, first, schema)
        return pa.record_batch(found.columns, schema=schema)

    def _named(self, message: str) -> str:
        """A message that names the file by its own name instead of the copy's."""
        return message.replace(self._copy, self._file)


@final
class ShardPart(AbstractSource):
    """A shard of a Hugging Face data set."""

    def __init__(self, source: AbstractSource, name: str, first_row: int):
        self.skipped = source.skipped
        self._source = source
        self._name = name
        self._first_row = first_row

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        return self._source.batches(skip=skip)

    def describe(self) -> dict[str, Any]:
        return self._source.describe()

    def locate(self, row: int) -> str:
        return f"{self._name}row {self._first_row + row}"

    def total(self) -> int | None:
        return self._source.total()


class Parts(NamedTuple):
    """A source's parts in the order of its examples, and what it is, for the manifest."""

    sources: list[AbstractSource]
    source: dict[str, Any]


def split_source(source: Any, *, skip: bool) -> Parts:
    """Take a source apart: files one by one, a text folder and a Hugging Face data set in shards.

    **Arguments:**

    - `source`: whatever `as_source` takes, and URLs of files.
    - `skip`: leave out what cannot be read; see `AbstractSource.batches`.

    **Returns:**

    The parts. The start of the first file is read: it says which columns there are, and of which
    types. Raises `TypeError` for a source that cannot be sent to other machines.
    """
    if remote := _remote_files(source):
        return _split_files(remote, Reader(kind_of([Path(file) for file in remote])), skip)
    if _is_places(source):
        source = [str(local_path(place) or place) for place in source]
    elif isinstance(source, str):
        source = local_path(source) or source
    examples = as_source(source)
    told = examples.describe()
    if isinstance(examples, FileSource):
        files = [str(file) for file in examples._files]
        return _split_files(files, Reader.of(examples), skip)
    if isinstance(examples, TextFolderSource):
        paths = examples.paths()
        starts = range(0, len(paths), _TEXT_FILES)
        some = [examples.some(paths[start : start + _TEXT_FILES]) for start in starts]
        return Parts([*some] or [examples], told)
    if isinstance(examples, HuggingFaceSource):
        return Parts(_shards(examples._dataset), told)
    if isinstance(examples, RecordSource) and iter(examples._records) is examples._records:
        raise TypeError(
            f"A {type(examples._records).__name__} can be read once only, by one machine. Give "
            "group_with_beam files, or something that can be read again, such as a list or a Grain "
            "data set."
        )
    return Parts([examples], told)


@final
class Chained(AbstractSource):
    """The parts one after the other."""

    def __init__(self, parts: Parts):
        self.skipped = Skips()
        self._parts = parts

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        for part in self._parts.sources:
            yield from part.batches(skip=skip)
            self.skipped.count += part.skipped.count

    def describe(self) -> dict[str, Any]:
        return self._parts.source

    def locate(self, row: int) -> str:
        return f"row {row}"

    def total(self) -> int | None:
        return None


def _is_places(source: Any) -> bool:
    return (
        isinstance(source, list | tuple)
        and len(source) > 0
        and all(isinstance(place, str | Path) for place in source)
    )


def _remote_files(source: Any) -> list[str]:
    """The files of URLs; none for a source of another kind."""
    places = [source] if isinstance(source, str) else source
    if not _is_places(places) or all(local_path(place) is not None for place in places):
        return []
    files = [find_files(str(place)) for place in places]
    return [file for some in files for file in some]


def _split_files(files: Sequence[str], reader: Reader, skip: bool) -> Parts:
    """One part per file, with the columns and types of the first that has examples."""
    parts = [FilePart(file, reader) for file in files]
    told = {"kind": _TOLD[reader.kind], "files": [Path(file).name for file in files]}
    for part in parts:
        first = next((batch for batch in part.batches(skip=skip) if batch.num_rows), None)
        if first is not None:
            known, columns = reader.knowing(first.schema), Columns(part._file, first.schema)
            return Parts([FilePart(file, known, columns) for file in files], told)
    return Parts([*parts], told)


def _shards(dataset: Any) -> list[AbstractSource]:
    rows = getattr(dataset, "num_rows", None)
    if rows is None:
        # A streaming one.
        count = max(1, dataset.n_shards)
        some = [dataset.shard(num_shards=count, index=number) for number in range(count)]
        names = [f"shard {number}, " if count > 1 else "" for number in range(count)]
        return [
            ShardPart(HuggingFaceSource(one), name, 0)
            for one, name in zip(some, names, strict=True)
        ]
    count = max(1, -(-rows // _ROWS))
    some = [dataset.shard(num_shards=count, index=n, contiguous=True) for n in range(count)]
    parts, first_row = [], 0
    for one in some:
        parts.append(ShardPart(HuggingFaceSource(one), "", first_row))
        first_row += one.num_rows
    return parts
