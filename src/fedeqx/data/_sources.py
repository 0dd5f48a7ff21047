"""Where examples come from: anything that can be read as Arrow record batches, in a fixed order."""

import abc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import pyarrow as pa

# A batch is closed at whichever comes first, so that a few large texts do not fill the memory.
BATCH_ROWS = 4096
BATCH_BYTES = 4 << 20


class SourceError(ValueError):
    """An example that cannot be read or stored; names the record and what to do."""


class Skipped(NamedTuple):
    """One thing that a source held and that is not in the data set, and why."""

    where: str
    why: str


class AbstractSource(abc.ABC):
    """Examples in a fixed order, as record batches of one schema.

    What a source could not read it adds to `skipped` while `batches` runs, so that nothing goes
    missing uncounted.
    """

    skipped: list[Skipped]

    @abc.abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the source from its start."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """What this source is, for the manifest: JSON values only."""

    @abc.abstractmethod
    def locate(self, row: int) -> str:
        """How a message names the example with this number (from 0) among those read."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()


@final
class RecordSource(AbstractSource):
    """An iterator of dictionaries, one per example, all with the same fields."""

    def __init__(self, records: Iterable[Mapping[str, Any]], *, schema: pa.Schema | None = None):
        """**Arguments:**

        - `records`: the examples. Values may be text, bytes, numbers, lists and dictionaries of
            these, one-dimensional NumPy arrays, or `None`.
        - `schema`: the examples' Arrow schema; by default it is inferred from the first few
            thousand.
        """
        self.skipped = []
        self._records = records
        self._schema = schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema = self._schema
        rows: list[Mapping[str, Any]] = []
        first = size = 0
        names: set[str] | None = None if schema is None else set(schema.names)
        for number, record in enumerate(self._records):
            names = _check_fields(record, names, number)
            rows.append(record)
            size += _rough_size(record)
            if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
                batch = _to_batch(rows, schema, first)
                schema = batch.schema
                yield batch
                first, size, rows = number + 1, 0, []
        if rows:
            yield _to_batch(rows, schema, first)

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "of": type(self._records).__name__}

    def locate(self, row: int) -> str:
        return f"record {row}"


@final
class ArrowSource(AbstractSource):
    """An Arrow table, record batch, or reader of record batches."""

    def __init__(self, data: pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        self.skipped = []
        self._data = data

    def batches(self) -> Iterator[pa.RecordBatch]:
        if isinstance(self._data, pa.RecordBatch):
            chunks: Iterable[pa.RecordBatch] = [self._data]
        elif isinstance(self._data, pa.Table):
            chunks = self._data.to_batches()
        else:
            chunks = self._data
        for chunk in chunks:
            for start in range(0, chunk.num_rows, BATCH_ROWS):
                yield chunk.slice(start, BATCH_ROWS)

    def describe(self) -> dict[str, Any]:
        return {"kind": "arrow", "of": type(self._data).__name__}

    def locate(self, row: int) -> str:
        return f"row {row}"


@final
class TextFolderSource(AbstractSource):
    """The text files under a folder, in the order of their relative paths.

    Each example is `{"path": path relative to the folder, with "/", "text": the file's text}`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        suffixes: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        decode: Callable[[bytes], str] | None = None,
        on_error: str = "raise",
    ):
        """**Arguments:**

        - `folder`: the folder to read, with all its subfolders.
        - `suffixes`: endings of the files to take, such as `(".txt", ".md")`; empty takes all.
        - `exclude`: names of subfolders to leave out, wherever they are.
        - `decode`: makes text of a file's bytes; raises `ValueError` or `SyntaxError` where it
            cannot. By default strict UTF-8.
        - `on_error`: `"raise"`, or `"skip"` to leave out a file that cannot be read or decoded and
            list it in `skipped`.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"The source folder {self.folder} does not exist or is not a folder. Give a folder "
                "of text files."
            )
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}; it must be 'raise' or 'skip'.")
        self.skipped = []
        self._suffixes = suffixes
        self._exclude = frozenset(exclude)
        self._decode = decode or bytes.decode
        self._on_error = on_error
        self._read: list[str] = []

    def paths(self) -> list[str]:
        """The files' paths relative to the folder, sorted."""
        found = []
        for folder, subfolders, files in os.walk(self.folder):
            subfolders[:] = [name for name in subfolders if name not in self._exclude]
            for name in files:
                if not self._suffixes or name.endswith(self._suffixes):
                    found.append(Path(folder, name).relative_to(self.folder).as_posix())
        return sorted(found)

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema = pa.schema({"path": pa.string(), "text": pa.large_string()})
        self.skipped.clear()
        self._read.clear()
        paths: list[str] = []
        texts: list[str] = []
        size = 0
        for path in self.paths():
            text = self._text(path)
            if text is None:
                continue
            self._read.append(path)
            paths.append(path)
            texts.append(text)
            size += len(text)
            if len(paths) == BATCH_ROWS or size >= BATCH_BYTES:
                yield pa.record_batch([paths, texts], schema=schema)
                paths, texts, size = [], [], 0
        if paths:
            yield pa.record_batch([paths, texts], schema=schema)

    def describe(self) -> dict[str, Any]:
        return {"kind": "text folder", "suffixes": list(self._suffixes)}

    def locate(self, row: int) -> str:
        return f"file {self._read[row]}"

    def _text(self, path: str) -> str | None:
        try:
            text = self._decode((self.folder / path).read_bytes())
            # Arrow would refuse it much later, without the file's name.
            text.encode()
        except (OSError, SyntaxError, ValueError) as error:
            if self._on_error == "raise":
                raise SourceError(
                    f"The file {self.folder / path} cannot be read as text: {error}. Remove or "
                    "re-encode it, give decode=..., or leave it out with on_error='skip'."
                ) from error
            self.skipped.append(Skipped(path, str(error)))
            return None
        return text


def as_source(source: Any) -> AbstractSource:
    """Turn what a user gives into a source.

    **Arguments:**

    - `source`: a source; a folder of text files (a path); an Arrow table, record batch or reader;
        or an iterable of dictionaries.

    **Returns:**

    The source. Raises `TypeError` for anything else, and `FileNotFoundError` for a missing folder.
    """
    if isinstance(source, AbstractSource):
        return source
    if isinstance(source, str | Path):
        return TextFolderSource(source)
    if isinstance(source, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return ArrowSource(source)
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        return RecordSource(source)
    raise TypeError(
        f"A {type(source).__name__} cannot be a source of examples. Give a folder of text files, "
        "an Arrow table or reader, or an iterable of dictionaries."
    )


def _check_fields(record: Any, names: set[str] | None, number: int) -> set[str]:
    if not isinstance(record, Mapping):
        raise SourceError(
            f"Record {number} is a {type(record).__name__}, not a dictionary. Yield one dictionary "
            "of field names and values per example."
        )
    if names is None:
        if not record:
            raise SourceError(f"Record {number} has no fields. Yield at least one field.")
        return set(record)
    if record.keys() != names:
        missing, extra = sorted(names - record.keys()), sorted(map(str, record.keys() - names))
        told = [f"lacks {missing}"] * bool(missing) + [f"has {extra} besides"] * bool(extra)
        raise SourceError(
            f"Record {number} {' and '.join(told)}; the records before it have the fields "
            f"{sorted(names)}. Give every record the same fields, with None where there is no "
            "value."
        )
    return names


def _to_batch(
    rows: list[Mapping[str, Any]], schema: pa.Schema | None, first: int
) -> pa.RecordBatch:
    names = list(rows[0]) if schema is None else schema.names
    columns = []
    for name in names:
        values = [row[name] for row in rows]
        kind = None if schema is None else schema.field(name).type
        try:
            columns.append(pa.array(values, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            at = _first_bad(values, kind)
            raise SourceError(
                f"Record {first + at}: the field {name!r} is {_brief(values[at])}, which does not "
                f"fit the field's type{f' {kind}' if kind else ' in the records before it'} "
                f"({error}). Make the values one type, or give the types: RecordSource(records, "
                "schema=...)."
            ) from error
    return (
        pa.record_batch(columns, names=names)
        if schema is None
        else pa.record_batch(columns, schema)
    )


def _first_bad(values: list[Any], kind: pa.DataType | None) -> int:
    """The first value with which the values up to it are no column any more."""
    low, high = 0, len(values)
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            pa.array(values[:middle], kind)
            low = middle
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            high = middle
    return high - 1


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _rough_size(record: Mapping[str, Any]) -> int:
    return sum(
        len(value) if isinstance(value, str | bytes) else getattr(value, "nbytes", 8)
        for value in record.values()
    )
