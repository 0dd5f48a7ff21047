"""Joins a source and a partition: every example with its group's key."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ._ids import tags_of
from ._layout import GROUP_COLUMN
from ._measure import measure
from ._nested import Nested
from ._partition import (
    AbstractDirectPartition,
    AbstractPartition,
    ByField,
    PartitionError,
    Problem,
)
from ._planned import AbstractPlannedPartition, AbstractPlanner, NestedPlanner, SimplePlanner
from ._progress import Reporter
from ._sorting import FRONT
from ._sources import AbstractSource, Skips, SourceError
from ._types import column_that_cannot_be_read_back, storable


class NoExamplesError(SourceError):
    """A source without any example."""


class KeyedExamples:
    """A source's batches as the sort takes them: key, bytes and words, then the example.

    A partition that must see all examples first makes it keep them in a file of `temp` meanwhile.
    """

    def __init__(
        self,
        source: AbstractSource,
        partition: AbstractPartition,
        *,
        skip: bool,
        temp: Path,
        reporter: Reporter,
    ):
        self.examples_in = 0
        self.kept = 0
        self.tags: set[str] = set()
        self.skipped = Skips()
        self._source = source
        self._partition = partition
        self._skip = skip
        self._temp = temp
        self._reporter = reporter
        self._rest = source.batches(skip=skip)
        first = next((batch for batch in self._rest if batch.num_rows), None)
        if first is None:
            raise NoExamplesError(
                f"The source gave no examples ({source.describe()}, {len(source.skipped)} "
                "skipped). Check the path, the suffixes, or that the iterator was not used up "
                "before."
            )
        self._first = first
        field = partition.field if isinstance(partition, ByField) else None
        _check_column_names(first.schema, group_field=field)
        # A field of this name was grouped by: it is the id itself.
        self.schema = storable(_without_group_column(first.schema))
        if not len(self.schema):
            raise SourceError(
                f"The examples have no field besides {GROUP_COLUMN!r}. Give them at least one more."
            )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read everything once. Raises, or counts in `skipped`, what cannot be grouped."""
        if isinstance(self._partition, AbstractDirectPartition):
            for batch in self._read():
                keys, problems = self._direct(self._partition, batch)
                if problems:
                    keep = self._without(batch, problems)
                    batch, keys = batch.filter(keep), keys.filter(keep)
                self.examples_in += len(problems) + batch.num_rows
                yield self._ready(keys, batch)
        else:
            yield from self._planned(planner_of(self._partition))

    def _read(self) -> Iterator[pa.RecordBatch]:
        return self._reporter(self._checked(), "read", self._source.total())

    def _checked(self) -> Iterator[pa.RecordBatch]:
        yield self._first
        for batch in self._rest:
            if batch.schema != self._first.schema:
                raise SourceError(
                    f"From {self._source.locate(self.examples_in)} on the examples have the "
                    f"columns {_columns(batch.schema)}; before, they had "
                    f"{_columns(self._first.schema)}. Give all parts of the source the same "
                    "columns and types."
                )
            if batch.num_rows:
                yield batch

    def _direct(
        self, partition: AbstractDirectPartition, batch: pa.RecordBatch
    ) -> tuple[pa.Array, list[Problem]]:
        try:
            return partition.keys(batch)
        except PartitionError as error:
            at = self._source.locate(self.examples_in)
            raise PartitionError(f"{at} and after it: {error}") from error

    def _planned(self, planner: AbstractPlanner) -> Iterator[pa.RecordBatch]:
        path = self._temp / "examples.arrows"
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_stream(file, self._first.schema) as writer,
        ):
            for batch in self._read():
                problems = planner.problems(batch)
                if problems:
                    batch = batch.filter(self._without(batch, problems))
                self.examples_in += len(problems) + batch.num_rows
                planner.see(batch)
                writer.write_batch(batch)
        if self.examples_in == self.skipped.count:
            return
        keys, kept = planner.plan(), self.examples_in - self.skipped.count
        row = 0
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            for batch in self._reporter(iter(reader), "assign", kept):
                yield self._ready(keys(row, row + batch.num_rows), batch)
                row += batch.num_rows
        path.unlink()

    def _without(self, batch: pa.RecordBatch, problems: list[Problem]) -> pa.Array:
        """Which rows to keep; raises for the first problem unless problems are skipped."""
        keep = np.ones(batch.num_rows, bool)
        for row, why in problems:
            where = self._source.locate(self.examples_in + row)
            if not self._skip:
                raise PartitionError(f"{where}: {why}")
            self.skipped.add(where, why)
            keep[row] = False
        return pa.array(keep)

    def _ready(self, keys: pa.Array, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.tags |= tags_of(keys)
        self.kept += batch.num_rows
        columns = [
            column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name != GROUP_COLUMN
        ]
        # This casts what storable() changed.
        examples = pa.record_batch(columns, schema=self.schema)
        unreadable = column_that_cannot_be_read_back(examples)
        if unreadable is not None:
            raise SourceError(
                f"The column {unreadable!r} has nulls among lists of a fixed size, which pyarrow "
                f"{pa.__version__} writes and cannot read. Install pyarrow 26 or newer, or make "
                "them lists of any size."
            )
        return pa.record_batch(
            [keys, *measure(examples), *examples.columns],
            schema=pa.schema([*FRONT, *self.schema]),
        )


def planner_of(partition: AbstractPartition) -> AbstractPlanner:
    """What plans a partition that needs to see all examples. Raises `TypeError` for others."""
    if isinstance(partition, AbstractPlannedPartition):
        return SimplePlanner(partition)
    if isinstance(partition, Nested):
        return NestedPlanner(partition.outer, partition.inner)
    raise TypeError(
        f"{partition!r} is neither an AbstractDirectPartition nor one of the partitions of "
        "fedeqx.data. Implement AbstractDirectPartition.keys, or give a function."
    )


def _check_column_names(schema: pa.Schema, *, group_field: str | None) -> None:
    """Raise where two columns would have one name."""
    names = schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceError(
            f"The source has several columns of the name {twice[0]!r}. Rename them, so that each "
            f"name occurs once; the columns are {names}."
        )
    if GROUP_COLUMN in names and group_field != GROUP_COLUMN:
        raise SourceError(
            f"The source has a column {GROUP_COLUMN!r}, the name of the column that the grouped "
            f"data set adds. Rename it, or group by it: by={GROUP_COLUMN!r}."
        )


def _without_group_column(schema: pa.Schema) -> pa.Schema:
    fields = [field for field in schema if field.name != GROUP_COLUMN]
    return pa.schema(fields, metadata=schema.metadata)


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}
