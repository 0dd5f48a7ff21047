"""Partitions that need all labels, or the number of examples, before they can place any."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import pyarrow as pa

from ._ids import column_to_keys, from_key, pair_id, to_key, values_to_keys
from ._partition import (
    AbstractDirectPartition,
    AbstractPartition,
    PartitionError,
    Problem,
    find_field,
    nulls,
)

# The group numbers of the rows from a start to a stop.
Assignment: TypeAlias = Callable[[int, int], np.ndarray]
# What a random choice is a function of, besides the seed.
Context: TypeAlias = tuple[int | str | bytes, ...]


class Labels(NamedTuple):
    """The label of every example: `values[codes[row]]`. Values are sorted."""

    codes: np.ndarray
    values: list[Any]


class AbstractPlannedPartition(AbstractPartition):
    """A partition into `num_groups` groups, numbered from 0, of all examples together."""

    num_groups: int

    @property
    @abc.abstractmethod
    def fields(self) -> tuple[str, ...]:
        """The fields whose labels it needs."""

    @abc.abstractmethod
    def assign(self, size: int, labels: Sequence[Labels], context: Context) -> Assignment:
        """Place all examples.

        **Arguments:**

        - `size`: how many examples there are.
        - `labels`: their labels, for each of `fields`.
        - `context`: makes the random choices independent of those for another context.

        **Returns:**

        A function of a range of rows. Raises `PartitionError` where the settings cannot be met.
        """


class AbstractPlanner(abc.ABC):
    """Sees all examples once, and then knows the group of each."""

    @abc.abstractmethod
    def problems(self, batch: pa.RecordBatch) -> list[Problem]:
        """The examples that cannot be placed."""

    @abc.abstractmethod
    def see(self, batch: pa.RecordBatch) -> None:
        """Take note of examples without problems."""

    @abc.abstractmethod
    def plan(self) -> Callable[[int, int], pa.Array]:
        """A function that gives the group keys of the rows, as seen, from a start to a stop."""


@final
class LabelCollector:
    """Collects a field's values as four bytes per example."""

    def __init__(self, field: str):
        self._field = field
        self._code_of: dict[Any, int] = {}
        self._parts: list[np.ndarray] = []

    def problems(self, batch: pa.RecordBatch) -> list[Problem]:
        why = f"the label {self._field!r} is empty (null). Fill it in."
        return nulls(find_field(batch, self._field), why)

    def see(self, batch: pa.RecordBatch) -> None:
        encoded = find_field(batch, self._field)
        try:
            if not pa.types.is_dictionary(encoded.type):
                encoded = encoded.dictionary_encode()
            values = encoded.dictionary.to_pylist()
            codes = [self._code_of.setdefault(value, len(self._code_of)) for value in values]
        except (TypeError, pa.ArrowNotImplementedError) as error:
            raise PartitionError(
                f"The label {self._field!r} has type {find_field(batch, self._field).type}; labels "
                "are single values such as numbers or text."
            ) from error
        self._parts.append(np.asarray(codes, np.int32)[encoded.indices.to_numpy()])

    def labels(self) -> Labels:
        """The labels in sorted order, so that they do not depend on which came first."""
        values = sorted(self._code_of, key=lambda value: (type(value).__name__, value))
        rank = np.empty(len(values), np.int32)
        rank[[self._code_of[value] for value in values]] = np.arange(len(values))
        return Labels(rank[np.concatenate(self._parts)], values)


@final
class SimplePlanner(AbstractPlanner):
    """Plans one partition over all examples."""

    def __init__(self, partition: AbstractPlannedPartition):
        self._partition = partition
        self._size = 0
        self._collectors = [LabelCollector(field) for field in partition.fields]

    def problems(self, batch: pa.RecordBatch) -> list[Problem]:
        return [p for collector in self._collectors for p in collector.problems(batch)]

    def see(self, batch: pa.RecordBatch) -> None:
        self._size += batch.num_rows
        for collector in self._collectors:
            collector.see(batch)

    def plan(self) -> Callable[[int, int], pa.Array]:
        assigned = self.assign()
        return lambda start, stop: column_to_keys(pa.array(assigned(start, stop)))

    def assign(self) -> Assignment:
        """The group numbers instead of their keys."""
        labels = [collector.labels() for collector in self._collectors]
        return self._partition.assign(self._size, labels, ())


@final
class NestedPlanner(AbstractPlanner):
    """Plans an inner partition within each group of an outer one.

    The ids are JSON lists `[outer id, inner id]`, so that different pairs never look alike.
    """

    def __init__(self, outer: AbstractPartition, inner: AbstractPartition):
        self._sides = (_Side(outer), _Side(inner))
        self._size = 0

    def problems(self, batch: pa.RecordBatch) -> list[Problem]:
        found = {p.row: p for side in self._sides for p in side.problems(batch)}
        return list(found.values())

    def see(self, batch: pa.RecordBatch) -> None:
        self._size += batch.num_rows
        for side in self._sides:
            side.see(batch)

    def plan(self) -> Callable[[int, int], pa.Array]:
        outer, inner = self._sides
        outer_codes, outer_ids = outer.codes_over(np.arange(self._size), ())
        codes = np.empty(self._size, np.int64)
        pairs: list[str] = []
        order = np.argsort(outer_codes, kind="stable")
        bounds = np.searchsorted(outer_codes[order], np.arange(len(outer_ids) + 1))
        for number, outer_id in enumerate(outer_ids):
            rows = order[bounds[number] : bounds[number + 1]]
            if not len(rows):
                continue
            inner_codes, inner_ids = inner.codes_over(rows, ("within", to_key(outer_id)))
            codes[rows] = len(pairs) + inner_codes
            pairs += [pair_id(outer_id, inner_id) for inner_id in inner_ids]
        keys = values_to_keys(pairs)
        return lambda start, stop: keys.take(pa.array(codes[start:stop]))


class _Side:
    """One of the two partitions of a nested one: the groups it gives to any subset of rows."""

    def __init__(self, partition: AbstractPartition):
        self._partition = partition
        self._collectors: list[LabelCollector] = []
        self._keys: list[np.ndarray] = []
        self._code_of: dict[bytes, int] = {}
        if isinstance(partition, AbstractPlannedPartition):
            self._collectors = [LabelCollector(field) for field in partition.fields]
        elif not isinstance(partition, AbstractDirectPartition):
            raise TypeError(
                f"nested(...) takes partitions that are not nested themselves; found {partition!r}."
            )

    def problems(self, batch: pa.RecordBatch) -> list[Problem]:
        if isinstance(self._partition, AbstractDirectPartition):
            return self._partition.keys(batch)[1]
        return [p for collector in self._collectors for p in collector.problems(batch)]

    def see(self, batch: pa.RecordBatch) -> None:
        for collector in self._collectors:
            collector.see(batch)
        if isinstance(self._partition, AbstractDirectPartition):
            encoded = self._partition.keys(batch)[0].dictionary_encode()
            keys = encoded.dictionary.to_pylist()
            codes = [self._code_of.setdefault(key, len(self._code_of)) for key in keys]
            self._keys.append(np.asarray(codes, np.int32)[encoded.indices.to_numpy()])

    def codes_over(self, rows: np.ndarray, context: Context) -> tuple[np.ndarray, list[Any]]:
        """For some rows, the number of each one's group, and the ids by number."""
        partition = self._partition
        if isinstance(partition, AbstractPlannedPartition):
            whole = [collector.labels() for collector in self._collectors]
            labels = [Labels(label.codes[rows], label.values) for label in whole]
            groups = partition.assign(len(rows), labels, context)(0, len(rows))
            return groups, list(range(partition.num_groups))
        codes = np.concatenate(self._keys)[rows]
        present, inverse = np.unique(codes, return_inverse=True)
        keys = list(self._code_of)
        return inverse, [from_key(keys[code]) for code in present]
