"""Groups the examples of any source by a partition function, once, on disk."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ._amounts import parse_bytes
from ._dataset import GroupedDataset
from ._dataset import open as open_dataset
from ._ids import kind_of, tags_of
from ._layout import GROUP_COLUMN, describe_schema, write_manifest
from ._measure import measure
from ._partition import AbstractPartition, ByField, as_partition
from ._sorting import FRONT, ExternalSort
from ._sources import AbstractSource, SourceError, as_source
from ._types import storable
from ._writer import GroupWriter, WriterOptions


def group(
    source: Any,
    *,
    by: str | Callable[[dict[str, Any]], Any] | AbstractPartition,
    out: str | Path,
    overwrite: bool = False,
    memory_limit: str | int = "1GB",
    threads: int | None = None,
    shard_bytes: str | int = "256MiB",
    row_group_bytes: str | int = "256KiB",
    compression: str = "zstd",
) -> GroupedDataset:
    """Partition the examples of a source into groups and write them, sorted by group, to disk.

    The examples of a group keep the order in which the source gave them. Every example that goes in
    comes out, and the manifest counts both. The data set appears at `out` complete or not at all.
    This is the preprocessing of Dataset Grouper ([arXiv
    2307.09619](https://arxiv.org/abs/2307.09619)).

    **Arguments:**

    - `source`: a folder of text files (examples `{"path", "text"}`), an iterable of dictionaries,
        an Arrow table or reader, or any source of this package.
    - `by`: the partition function: a field's name, or a function of an example. Group ids are str,
        int or bytes.
    - `out`: the folder to write; its parent is made if need be.
    - `overwrite`: replace what is at `out`. Otherwise an existing `out` is a `FileExistsError`.
    - `memory_limit`: what the sort may hold in memory before it spills next to `out`: bytes, or
        text such as `"512MB"`. The process itself and the source come on top.
    - `threads`: how many cores to use; by default all that this process may use.
    - `shard_bytes`, `row_group_bytes`: about how large a Parquet file and a row group become,
        before compression. A reader of one group reads whole row groups.
    - `compression`: any codec of Parquet.

    **Returns:**

    The data set, opened. Raises `SourceError` for an example that cannot be read or stored and
    `PartitionError` for one without a group, both naming the example.

    !!! Example

        ```python
        records = [{"user": "a", "text": "one"}, {"user": "b", "text": "two"}]
        dataset = fx.data.group(records, by="user", out="by_user")
        ```
    """
    examples, partition, out = as_source(source), as_partition(by), Path(out)
    limit = parse_bytes(memory_limit, "memory_limit")
    options = WriterOptions(
        parse_bytes(shard_bytes, "shard_bytes"),
        parse_bytes(row_group_bytes, "row_group_bytes"),
        compression,
    )
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}; give at least 1, or None for one per core.")
    with _appearing(out, overwrite=overwrite) as folder:
        spill = folder / "spill"
        spill.mkdir()
        keyed = _Keyed(examples, partition)
        with ExternalSort(spill, memory_limit=limit, threads=threads or _cores()) as sort:
            for batch in keyed.batches():
                sort.add(batch)
            written = _write(sort.finish(), keyed, folder, options)
        shutil.rmtree(spill)
        if written["num_examples"] != keyed.examples_in:
            raise RuntimeError(
                f"{keyed.examples_in} examples went in and {written['num_examples']} came out. "
                "This is a bug of fedeqx: please report it."
            )
        write_manifest(
            folder,
            {
                "examples_in": keyed.examples_in,
                "num_skipped": len(examples.skipped),
                "skipped": [skipped._asdict() for skipped in examples.skipped],
                **written,
                "schema": describe_schema(keyed.schema),
                "partition": partition.describe(),
                "source": examples.describe(),
            },
        )
    return open_dataset(out)


class _Keyed:
    """A source's batches with the group key and the row number of each example in front."""

    def __init__(self, source: AbstractSource, partition: AbstractPartition):
        self.examples_in = 0
        self.tags: set[str] = set()
        self._source = source
        self._partition = partition
        self._rest = source.batches()
        first = next((batch for batch in self._rest if batch.num_rows), None)
        if first is None:
            raise SourceError(
                f"The source gave no examples ({source.describe()}, {len(source.skipped)} "
                "skipped). Check the path, the suffixes, or that the iterator was not used up "
                "before."
            )
        self._first = first
        self._source_schema = first.schema
        field = partition.field if isinstance(partition, ByField) else None
        _check_column_names(first.schema, group_field=field)
        # A field of this name was grouped by: it is the id itself.
        self.schema = storable(_without_group_column(first.schema))
        if not len(self.schema):
            raise SourceError(
                f"The examples have no field besides {GROUP_COLUMN!r}. Give them at least one more."
            )

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield self._keyed(self._first)
        for batch in self._rest:
            if batch.schema != self._source_schema:
                raise SourceError(
                    f"From {self._source.locate(self.examples_in)} on the examples have the "
                    f"columns {_columns(batch.schema)}; before, they had "
                    f"{_columns(self._source_schema)}. Give all parts of the source the same "
                    "columns and types."
                )
            yield self._keyed(batch)

    def _keyed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = self._partition.keys(batch, self.examples_in, self._source)
        self.tags |= tags_of(keys)
        self.examples_in += batch.num_rows
        columns = [
            column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name != GROUP_COLUMN
        ]
        # This casts what storable() changed.
        examples = pa.record_batch(columns, schema=self.schema)
        return pa.record_batch(
            [keys, *measure(examples), *examples.columns],
            schema=pa.schema([*FRONT, *self.schema]),
        )


def _write(
    ordered: Iterator[pa.RecordBatch], keyed: _Keyed, folder: Path, options: WriterOptions
) -> dict[str, Any]:
    kind = kind_of(keyed.tags)
    writer = GroupWriter(folder, keyed.schema, kind, options)
    try:
        for batch in ordered:
            writer.write(batch)
        return {"id_kind": kind, **writer.close()}
    except BaseException:
        writer.abort()
        raise


@contextmanager
def _appearing(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to build in, which takes the name `out` when all went well and else is removed."""
    if out.exists() and not overwrite:
        raise FileExistsError(
            f"{out} exists already. Choose another out=..., or replace it with overwrite=True."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    building = out.parent / f".{out.name}.building-{token}"
    building.mkdir()
    try:
        yield building
        old = out.parent / f".{out.name}.replaced-{token}"
        if out.exists():
            out.rename(old)
        building.rename(out)
        if old.exists():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _without_group_column(schema: pa.Schema) -> pa.Schema:
    fields = [field for field in schema if field.name != GROUP_COLUMN]
    return pa.schema(fields, metadata=schema.metadata)


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}
