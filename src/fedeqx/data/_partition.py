"""Partition functions: which group an example belongs to."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import pyarrow as pa
import pyarrow.compute as pc

from ._ids import GroupIdError, column_to_keys, to_key
from ._sources import AbstractSource


class PartitionError(ValueError):
    """A partition function that gave no group id; names the example and what to do."""


class AbstractPartition(abc.ABC):
    """Gives every example of a batch its group."""

    @abc.abstractmethod
    def keys(self, batch: pa.RecordBatch, first_row: int, source: AbstractSource) -> pa.Array:
        """The examples' group keys.

        **Arguments:**

        - `batch`: some consecutive examples.
        - `first_row`: the number of the first of them among all that the source gave.
        - `source`: where they came from, to name an example in an error.

        **Returns:**

        Keys (large_binary, see `_ids`), one per row, none null. Raises `PartitionError`.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """What this partition is, for the manifest: JSON values only."""


@final
@dataclass(frozen=True)
class ByField(AbstractPartition):
    """Groups examples by the value of one field, or by a field inside it: `"meta.user"`."""

    field: str

    def keys(self, batch: pa.RecordBatch, first_row: int, source: AbstractSource) -> pa.Array:
        column = self._column(batch)
        if column.null_count:
            row = first_row + int(column.is_null().index(True).as_py())
            raise PartitionError(
                f"{source.locate(row)}: the field {self.field!r} is empty (null), so the example "
                "has no group. Fill it in, or give by=a function that names a group for such "
                "examples."
            )
        try:
            return column_to_keys(column)
        except GroupIdError as error:
            raise PartitionError(f"by={self.field!r}: {error}") from error

    def describe(self) -> dict[str, Any]:
        return {"kind": "by_field", "field": self.field, "seed": None}

    def _column(self, batch: pa.RecordBatch) -> pa.Array:
        # A field whose own name has dots comes before a path.
        if self.field in batch.schema.names:
            return batch.column(self.field)
        parts = self.field.split(".")
        if parts[0] in batch.schema.names:
            column = batch.column(parts[0])
            for part in parts[1:]:
                if not pa.types.is_struct(column.type) or column.type.get_field_index(part) < 0:
                    break
                column = pc.call_function("struct_field", [column], pc.StructFieldOptions([part]))
            else:
                return column
        raise PartitionError(
            f"The examples have no field {self.field!r}; they have {batch.schema.names}. Give one "
            "of these as by=..., or a function of an example."
        )


@final
@dataclass(frozen=True)
class ByFunction(AbstractPartition):
    """Groups examples by any Python function of an example."""

    function: Callable[[dict[str, Any]], Any]

    def keys(self, batch: pa.RecordBatch, first_row: int, source: AbstractSource) -> pa.Array:
        keys = []
        for row, example in enumerate(batch.to_pylist(), first_row):
            try:
                group_id = self.function(example)
            except Exception as error:
                raise PartitionError(
                    f"{source.locate(row)}: the partition function {self._name} raised "
                    f"{type(error).__name__}: {error}. The example has the fields {list(example)}."
                ) from error
            if group_id is None:
                raise PartitionError(
                    f"{source.locate(row)}: the partition function {self._name} returned None. "
                    "Return a group id (str, int or bytes) for every example."
                )
            try:
                keys.append(to_key(group_id))
            except GroupIdError as error:
                raise PartitionError(
                    f"{source.locate(row)}: the partition function {self._name} returned {error}"
                ) from error
        return pa.array(keys, pa.large_binary())

    def describe(self) -> dict[str, Any]:
        return {"kind": "by_function", "function": self._name, "seed": None}

    @property
    def _name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


def as_partition(by: Any) -> AbstractPartition:
    """Turn what a user gives as `by` into a partition: a field name or a function of an example."""
    if isinstance(by, AbstractPartition):
        return by
    if isinstance(by, str):
        return ByField(by)
    if callable(by):
        return ByFunction(by)
    raise TypeError(
        f"by={by!r} is not a partition function. Give a field's name, or a function that takes an "
        "example and returns its group's id."
    )
