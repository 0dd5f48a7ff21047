"""Plans a partition of all examples together from no more than the columns that it looks at."""

from typing import Any, final

import pyarrow as pa

from ._ids import to_key
from ._keyed import planner_of
from ._nested import Nested
from ._partition import AbstractDirectPartition, AbstractPartition, Problem, find_field
from ._planned import AbstractPlannedPartition, AbstractPlanner, NestedPlanner, SimplePlanner

# Names that no field of a user's has by accident.
_SIDES = ("\x00outer", "\x00inner")
_ROWS = "\x00rows"


@final
class Unplaced(AbstractDirectPartition):
    """Stands for a planned partition while the examples are read: finds those without a group."""

    def __init__(self, partition: AbstractPartition):
        self._partition = partition
        self._planner: AbstractPlanner | None = planner_of(partition)

    def __getstate__(self) -> AbstractPartition:
        return self._partition

    def __setstate__(self, partition: AbstractPartition) -> None:
        self._partition, self._planner = partition, planner_of(partition)

    def keys(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        assert self._planner is not None
        keys = pa.array([to_key(0)] * batch.num_rows, pa.large_binary())
        return keys, self._planner.problems(batch)

    def describe(self) -> dict[str, Any]:
        return self._partition.describe()


def looked_at(partition: AbstractPartition, examples: pa.RecordBatch) -> pa.RecordBatch:
    """What a planned partition needs of some examples: labels, and keys by its direct parts."""
    columns: dict[str, pa.Array] = {_ROWS: pa.nulls(examples.num_rows)}
    sides = partition if isinstance(partition, Nested) else None
    parts = [(_SIDES[0], partition)]
    if sides is not None:
        parts = list(zip(_SIDES, (sides.outer, sides.inner), strict=True))
    for name, part in parts:
        if isinstance(part, AbstractDirectPartition):
            columns[name] = part.keys(examples)[0]
        elif isinstance(part, AbstractPlannedPartition):
            columns |= {field: find_field(examples, field) for field in part.fields}
    return pa.record_batch(list(columns.values()), names=list(columns))


def planner_of_columns(partition: AbstractPartition) -> AbstractPlanner:
    """A planner for batches that `looked_at` made."""
    if not isinstance(partition, Nested):
        assert isinstance(partition, AbstractPlannedPartition)
        return SimplePlanner(partition)
    outer, inner = (
        _GivenKeys(name) if isinstance(part, AbstractDirectPartition) else part
        for name, part in zip(_SIDES, (partition.outer, partition.inner), strict=True)
    )
    return NestedPlanner(outer, inner)


@final
class _GivenKeys(AbstractDirectPartition):
    """Takes the keys that are there already."""

    def __init__(self, column: str):
        self._column = column

    def keys(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        return batch.column(self._column), []

    def describe(self) -> dict[str, Any]:
        return {"kind": "given"}
