"""Partition functions: which group an example belongs to. Here, those that look at one example."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import pyarrow as pa
import pyarrow.compute as pc

from ._ids import GroupIdError, column_to_keys, is_text, to_key


class PartitionError(ValueError):
    """A partition function that gave no group id, or that cannot be met; says what to do."""


class Problem(NamedTuple):
    """An example without a group: its row in the batch, and why."""

    row: int
    why: str


class AbstractPartition(abc.ABC):
    """Gives every example its group. What it does is a function of its fields alone."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """What this partition is, for the manifest: JSON values only."""


class AbstractDirectPartition(AbstractPartition):
    """A partition that knows an example's group from the example alone."""

    @abc.abstractmethod
    def keys(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        """The examples' group keys.

        **Arguments:**

        - `batch`: some consecutive examples.

        **Returns:**

        Keys (large_binary, see `_ids`), one per row, null where the example has no group, and a
        `Problem` for each of these. Raises `PartitionError` where no example has one.
        """


@final
@dataclass(frozen=True)
class ByField(AbstractDirectPartition):
    """See `by_field`."""

    field: str

    def keys(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        column = find_field(batch, self.field)
        problems = nulls(
            column,
            f"the field {self.field!r} is empty (null), so the example has no group. Fill it in, "
            "or give by=a function that names a group for such examples.",
        )
        try:
            return column_to_keys(column), problems
        except GroupIdError as error:
            raise PartitionError(f"by={self.field!r}: {error}") from error

    def describe(self) -> dict[str, Any]:
        return {"kind": "by_field", "field": self.field, "seed": None}


@final
@dataclass(frozen=True)
class ByUrlDomain(AbstractDirectPartition):
    """See `by_url_domain`."""

    field: str

    def keys(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        column = find_field(batch, self.field)
        if not is_text(column.type):
            raise PartitionError(
                f"by_url_domain({self.field!r}): the field has type {column.type}. Give a field of "
                "URLs as text."
            )
        column = column.cast(pa.large_string())
        problems = nulls(column, f"the field {self.field!r} is empty (null); it must be a URL.")
        found = pc.call_function("extract_regex", [column], pc.ExtractRegexOptions(_URL))
        # A text without "//" has no domain: an empty one, as in FedC4.
        domain = pc.call_function("struct_field", [found], pc.StructFieldOptions(["domain"]))
        domain = domain.fill_null("")
        if column.null_count:
            domain = pc.call_function("if_else", [column.is_valid(), domain, pa.scalar(None)])
        return column_to_keys(domain), problems

    def describe(self) -> dict[str, Any]:
        return {"kind": "by_url_domain", "field": self.field, "seed": None}


# What urllib.parse.urlparse(url).netloc is: between "//" and the next "/", "?" or "#".
_URL = r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?//(?P<domain>[^/?#]*)"


@final
@dataclass(frozen=True)
class ByExpression(AbstractDirectPartition):
    """See `by_expression`."""

    sql: str

    def keys(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        import duckdb

        with duckdb.connect(":memory:", config={"threads": 1}) as connection:
            connection.register("examples", pa.table(batch))
            try:
                relation = connection.sql(f"SELECT ({self.sql}\n) AS key FROM examples")
                column = relation.to_arrow_table().column(0).combine_chunks()
            except duckdb.Error as error:
                raise PartitionError(
                    f"by_expression({self.sql!r}) failed: {' '.join(str(error).split())}. The "
                    f"columns are {batch.schema.names}."
                ) from error
        if len(column) != batch.num_rows:
            raise PartitionError(
                f"by_expression({self.sql!r}) gave {len(column)} values for {batch.num_rows} "
                "examples. Give an expression of one row, without aggregates."
            )
        problems = nulls(column, f"by_expression({self.sql!r}) is NULL here; use coalesce(...).")
        try:
            return column_to_keys(column), problems
        except GroupIdError as error:
            raise PartitionError(
                f"by_expression({self.sql!r}): {error} In SQL: CAST(... AS VARCHAR)."
            ) from error

    def describe(self) -> dict[str, Any]:
        return {"kind": "by_expression", "sql": self.sql, "seed": None}


@final
@dataclass(frozen=True)
class ByFunction(AbstractDirectPartition):
    """See `by_function`."""

    function: Callable[[Any], Any]
    batched: bool

    def keys(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        return self._of_batch(batch) if self.batched else self._of_examples(batch)

    def describe(self) -> dict[str, Any]:
        return {"kind": "by_function", "function": self._name, "seed": None}

    def _of_examples(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        keys: list[bytes | None] = []
        problems = []
        for row, example in enumerate(batch.to_pylist()):
            try:
                group_id = self.function(example)
            except Exception as error:
                problems.append(
                    Problem(
                        row,
                        f"the partition function {self._name} raised {type(error).__name__}: "
                        f"{error}. The example has the fields {list(example)}.",
                    )
                )
                keys.append(None)
            else:
                keys.append(self._key(group_id, row, problems))
        return pa.array(keys, pa.large_binary()), problems

    def _of_batch(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[Problem]]:
        try:
            ids = self.function(batch)
        except Exception as error:
            raise PartitionError(
                f"the partition function {self._name} raised {type(error).__name__} for a batch: "
                f"{error}. It is given a pyarrow.RecordBatch with the columns "
                f"{batch.schema.names}."
            ) from error
        if isinstance(ids, pa.ChunkedArray):
            ids = ids.combine_chunks()
        if len(ids) != batch.num_rows:
            raise PartitionError(
                f"the partition function {self._name} returned {len(ids)} ids for a batch of "
                f"{batch.num_rows} examples. Return one for each row."
            )
        if isinstance(ids, pa.Array):
            try:
                return column_to_keys(ids), nulls(ids, self._none())
            except GroupIdError as error:
                raise PartitionError(
                    f"the partition function {self._name} returned {error}"
                ) from error
        problems: list[Problem] = []
        keys = [self._key(group_id, row, problems) for row, group_id in enumerate(ids)]
        return pa.array(keys, pa.large_binary()), problems

    def _key(self, group_id: Any, row: int, problems: list[Problem]) -> bytes | None:
        if group_id is None:
            problems.append(Problem(row, self._none()))
            return None
        try:
            return to_key(group_id)
        except GroupIdError as error:
            why = f"the partition function {self._name} returned {error}"
            problems.append(Problem(row, why))
            return None

    def _none(self) -> str:
        return (
            f"the partition function {self._name} returned None. Return a group id (str, int or "
            "bytes) for every example."
        )

    @property
    def _name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


def by_field(field: str) -> ByField:
    """Group examples by the value of one field.

    **Arguments:**

    - `field`: the field's name, or a path into nested fields such as `"meta.user"`. Its values are
        text, whole numbers or bytes.

    **Returns:**

    A partition. `by="user"` is short for `by=fx.data.by_field("user")`.
    """
    return ByField(field)


def by_url_domain(field: str = "url") -> ByUrlDomain:
    """Group web pages by the domain of their URL, as FedC4 is.

    From [Towards Federated Foundation Models](https://arxiv.org/abs/2307.09619).

    **Arguments:**

    - `field`: the field that holds the URL.

    **Returns:**

    A partition whose ids are what `urllib.parse.urlparse(url).netloc` gives: the host, with a user
    name and a port if the URL has them, in the case that it is written in.

    !!! Example

        ```python
        fx.data.group("c4/*.json.gz", by=fx.data.by_url_domain("url"), out="fedc4")
        ```
    """
    return ByUrlDomain(field)


def by_expression(sql: str) -> ByExpression:
    """Group examples by an SQL expression of their columns.

    **Arguments:**

    - `sql`: an expression in DuckDB's SQL, such as `"lower(author)"` or `"year // 10"`.

    **Returns:**

    A partition.
    """
    return ByExpression(sql)


def by_function(function: Callable[[Any], Any], *, batched: bool = False) -> ByFunction:
    """Group examples by any Python function.

    **Arguments:**

    - `function`: takes an example as a dictionary and returns its group's id (str, int or bytes).
    - `batched`: the function takes a `pyarrow.RecordBatch` instead and returns one id per row, as a
        list, a NumPy array or an Arrow array: many times faster.

    **Returns:**

    A partition. `by=function` is short for `by=fx.data.by_function(function)`.
    """
    return ByFunction(function, batched)


def as_partition(by: Any) -> AbstractPartition:
    """Turn what a user gives as `by` into a partition: a field name or a function of an example."""
    if isinstance(by, AbstractPartition):
        return by
    if isinstance(by, str):
        return ByField(by)
    if callable(by):
        return ByFunction(by, batched=False)
    raise TypeError(
        f"by={by!r} is not a partition function. Give a field's name, or a function that takes an "
        "example and returns its group's id."
    )


def find_field(batch: pa.RecordBatch, field: str) -> pa.Array:
    """The column of a field, or of a field inside it. Raises `PartitionError` if there is none."""
    # A field whose own name has dots comes before a path.
    if field in batch.schema.names:
        return batch.column(field)
    parts = field.split(".")
    if parts[0] in batch.schema.names:
        column = batch.column(parts[0])
        for part in parts[1:]:
            if not pa.types.is_struct(column.type) or column.type.get_field_index(part) < 0:
                break
            column = pc.call_function("struct_field", [column], pc.StructFieldOptions([part]))
        else:
            return column
    raise PartitionError(
        f"The examples have no field {field!r}; they have {batch.schema.names}. Give one of these, "
        "or a function of an example."
    )


def nulls(column: pa.Array, why: str) -> list[Problem]:
    """A problem for each null of a column."""
    if not column.null_count:
        return []
    rows = column.is_null().to_numpy(zero_copy_only=False).nonzero()[0]
    return [Problem(int(row), why) for row in rows]
