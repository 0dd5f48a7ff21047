"""Python records and Arrow tables as sources."""

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from ._sources import BATCH_BYTES, BATCH_ROWS, AbstractSource, Skips, SourceError, pieces

_BAD_VALUE = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Unreadable(NamedTuple):
    """Stands in an iterator for a record that could not be read; says why."""

    why: str


@final
class RecordSource(AbstractSource):
    """An iterator of dictionaries, one per example, all with the same fields."""

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        schema: pa.Schema | None = None,
        name: Callable[[int], str] = "record {}".format,
    ):
        """**Arguments:**

        - `records`: the examples, such as a generator, a list or a Grain data set. Values may be
            text, bytes, numbers, NumPy arrays of any shape, `None`, and lists and dictionaries of
            these. Arrays of two or more axes must agree in shape and become tensors.
        - `schema`: the examples' Arrow schema; by default it is inferred from the first few
            thousand.
        - `name`: how messages name the record with a number (from 0).
        """
        self.skipped = Skips()
        self._records = records
        self._schema = schema
        self._name = name
        self._gaps: list[int] = []

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        self.skipped.clear()
        self._gaps.clear()
        schema = self._schema
        rows: list[Mapping[str, Any]] = []
        numbers: list[int] = []
        size = given = 0
        names: set[str] | None = None if schema is None else set(schema.names)
        for number, record in enumerate(self._records):
            try:
                names = _check_fields(record, names, self._name(number))
            except SourceError as error:
                if not skip:
                    raise
                self.skipped.add(self._name(number), str(error))
                self._gaps.append(given + len(rows))
                continue
            rows.append(record)
            numbers.append(number)
            size += _rough_size(record)
            if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
                batch = self._batch(rows, numbers, schema, skip, given)
                schema = batch.schema
                given += batch.num_rows
                yield batch
                rows, numbers, size = [], [], 0
        if rows:
            yield self._batch(rows, numbers, schema, skip, given)

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "of": type(self._records).__name__}

    def locate(self, row: int) -> str:
        return self._name(row + bisect.bisect_right(self._gaps, row))

    def total(self) -> int | None:
        try:
            return len(self._records)  # pyright: ignore[reportArgumentType]
        except TypeError:
            return None

    def _batch(
        self,
        rows: list[Mapping[str, Any]],
        numbers: list[int],
        schema: pa.Schema | None,
        skip: bool,
        given: int,
    ) -> pa.RecordBatch:
        while True:
            try:
                return _to_batch(rows, schema)
            except _MisfitError as misfit:
                where = self._name(numbers[misfit.place])
                if not skip or len(rows) == 1:
                    raise SourceError(f"{_capital(where)}: {misfit}") from misfit
                self.skipped.add(where, str(misfit))
                bisect.insort(self._gaps, given + misfit.place)
                del rows[misfit.place], numbers[misfit.place]


@final
class ArrowSource(AbstractSource):
    """An Arrow table, record batch or reader, or anything that exports Arrow data.

    pandas and Polars data frames, DuckDB relations and Hugging Face tables do (they have
    `__arrow_c_stream__`).
    """

    def __init__(self, data: Any):
        """**Arguments:**

        - `data`: the table, record batch, reader or data frame.
        """
        self.skipped = Skips()
        self._data = data

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        if isinstance(self._data, pa.RecordBatch):
            chunks: Iterable[pa.RecordBatch] = [self._data]
        elif isinstance(self._data, pa.Table):
            chunks = self._data.to_batches()
        elif isinstance(self._data, pa.RecordBatchReader):
            chunks = self._data
        else:
            chunks = pa.RecordBatchReader.from_stream(self._data)
        for chunk in chunks:
            yield from pieces(chunk)

    def describe(self) -> dict[str, Any]:
        return {"kind": "arrow", "of": type(self._data).__name__}

    def locate(self, row: int) -> str:
        return f"row {row}"

    def total(self) -> int | None:
        if isinstance(self._data, pa.Table | pa.RecordBatch):
            return self._data.num_rows
        return None


class _MisfitError(ValueError):
    """A value that does not fit its column; `place` is its row in the batch."""

    def __init__(self, place: int, message: str):
        super().__init__(message)
        self.place = place


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("record ") else text


def _check_fields(record: Any, names: set[str] | None, where: str) -> set[str]:
    told = _capital(where)
    if isinstance(record, Unreadable):
        raise SourceError(f"{told}: {record.why}")
    if not isinstance(record, Mapping):
        raise SourceError(
            f"{told} is a {type(record).__name__}, not a dictionary. Yield one dictionary of field "
            "names and values per example."
        )
    if names is None:
        if not record:
            raise SourceError(f"{told} has no fields. Yield at least one field.")
        return set(record)
    if record.keys() != names:
        missing, extra = sorted(names - record.keys()), sorted(map(str, record.keys() - names))
        parts = [f"lacks {missing}"] * bool(missing) + [f"has {extra} besides"] * bool(extra)
        raise SourceError(
            f"{told} {' and '.join(parts)}; the records before it have the fields "
            f"{sorted(names)}. Give every record the same fields, with None where there is no "
            "value."
        )
    return names


def _to_batch(rows: list[Mapping[str, Any]], schema: pa.Schema | None) -> pa.RecordBatch:
    names = list(rows[0]) if schema is None else schema.names
    columns = []
    for name in names:
        values = [row[name] for row in rows]
        kind = None if schema is None else schema.field(name).type
        try:
            columns.append(_to_column(values, kind))
        except _BAD_VALUE as error:
            place = _first_bad(values, kind)
            raise _MisfitError(
                place,
                f"the field {name!r} is {_brief(values[place])}, which does not fit the field's "
                f"type{f' {kind}' if kind else ' in the records before it'} ({error}). Make the "
                "values one type, or give the types: RecordSource(records, schema=...).",
            ) from error
    if schema is None:
        return pa.record_batch(columns, names=names)
    return pa.record_batch(columns, schema=schema)


def _to_column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    tensor = isinstance(kind, pa.FixedShapeTensorType)
    if tensor or (kind is None and any(np.ndim(value) > 1 for value in values if _is_array(value))):
        stacked = np.stack([np.asarray(value) for value in values])
        if stacked.ndim < 3:
            raise ValueError("not an array of two or more axes")
        column = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(stacked))
        if kind is not None and column.type != kind:
            raise ValueError(f"a tensor of type {column.type}")
        return column
    return pa.array(values, kind)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _first_bad(values: list[Any], kind: pa.DataType | None) -> int:
    """The first value with which the values up to it are no column any more."""
    low, high = 0, len(values)
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            _to_column(values[:middle], kind)
            low = middle
        except _BAD_VALUE:
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
