"""Groups the examples of any source by a partition function, once, on disk."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ._amounts import parse_bytes
from ._appearing import appearing
from ._dataset import GroupedDataset
from ._dataset import open as open_dataset
from ._ids import kind_of
from ._inputs import as_source
from ._keyed import KeyedExamples
from ._layout import describe_schema, write_manifest
from ._partition import AbstractPartition, as_partition
from ._planned import AbstractPlannedPartition
from ._progress import Progress, Reporter
from ._sorting import FRONT, ExternalSort
from ._sources import Skips, SourceError
from ._writer import GroupWriter, WriterOptions

# Parquet's codecs that Arrow writes.
_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")


def group(
    source: Any,
    *,
    by: str | Callable[[dict[str, Any]], Any] | AbstractPartition,
    out: str | Path,
    overwrite: bool = False,
    on_error: str = "raise",
    progress: Callable[[Progress], None] | None = None,
    memory_limit: str | int = "1GB",
    threads: int | None = None,
    shard_bytes: str | int = "64MiB",
    row_group_bytes: str | int = "256KiB",
    compression: str = "lz4",
) -> GroupedDataset:
    """Partition the examples of a source into groups and write them, sorted by group, to disk.

    The examples of a group keep the order in which the source gave them. Every example that goes in
    comes out, and the manifest counts both. The data set appears at `out` complete or not at all;
    what a killed run left beside it is removed by the next one.
    This is the preprocessing of Dataset Grouper ([arXiv
    2307.09619](https://arxiv.org/abs/2307.09619)).

    **Arguments:**

    - `source`: a path, glob pattern or list of Parquet, JSON-lines, CSV or ArrayRecord files; a
        folder of these, or of text files (examples `{"path", "text"}`); an Arrow table or reader,
        or a pandas or Polars data frame; a Hugging Face data set; an iterable of dictionaries, such
        as a generator or a Grain data set; or any source of this package, which has more options.
    - `by`: the partition function: a field's name, a function of an example, or a partition such as
        `fx.data.by_url_domain("url")` or `fx.data.iid(100, seed=0)`. Group ids are str, int or
        bytes.
    - `out`: the folder to write; its parent is made if need be.
    - `overwrite`: replace what is at `out`. Otherwise an existing `out` is a `FileExistsError`.
    - `on_error`: `"raise"` stops at the first example that cannot be read or grouped; `"skip"`
        leaves such examples out, and counts and lists them in the manifest.
    - `progress`: called about ten times a second.
    - `memory_limit`: what the sort may hold in memory before it spills next to `out`: bytes, or
        text such as `"512MB"`. The process itself and the source come on top.
    - `threads`: how many cores to use; by default all that this process may use.
    - `shard_bytes`, `row_group_bytes`: about how large a Parquet file and a row group become,
        before compression. A reader of one group reads whole row groups.
    - `compression`: any codec of Parquet. `"zstd"` makes text a third smaller than `"lz4"`, and
        takes twice as long to read.

    **Returns:**

    The data set, opened. Raises `SourceError` for an example that cannot be read or stored and
    `PartitionError` for one without a group, both naming the example.

    !!! Example

        ```python
        records = [{"user": "a", "text": "one"}, {"user": "b", "text": "two"}]
        dataset = fx.data.group(records, by="user", out="by_user")
        ```
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}; give at least 1, or None for one per core.")
    skip, options = checked_options(on_error, shard_bytes, row_group_bytes, compression)
    examples, partition, out = as_source(source), as_partition(by), Path(out)
    limit = parse_bytes(memory_limit, "memory_limit")
    with appearing(out, overwrite=overwrite) as folder:
        spill = folder / "spill"
        spill.mkdir()
        reporter = Reporter(progress)
        keyed = KeyedExamples(examples, partition, skip=skip, temp=spill, reporter=reporter)
        with ExternalSort(spill, memory_limit=limit, threads=threads or _cores()) as sort:
            for batch in keyed.batches():
                sort.add(batch)
            if not keyed.kept:
                raise nothing_kept(keyed.skipped)
            ordered = reporter(sort.finish(), "write", keyed.kept, hidden=len(FRONT))
            written = _write(ordered, keyed, folder, options)
        shutil.rmtree(spill)
        write_manifest(
            folder,
            manifest_of(
                written,
                examples_in=keyed.examples_in,
                unread=examples.skipped,
                ungrouped=keyed.skipped,
                schema=keyed.schema,
                partition=partition,
                source=examples.describe(),
            ),
        )
    return open_dataset(out)


def _write(
    ordered: Iterator[pa.RecordBatch], keyed: KeyedExamples, folder: Path, options: WriterOptions
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


def checked_options(
    on_error: str, shard_bytes: str | int, row_group_bytes: str | int, compression: str
) -> tuple[bool, WriterOptions]:
    """Whether to skip bad examples, and how to write the others, from what `group` is given."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error={on_error!r}: give 'raise' or 'skip'.")
    if compression.lower() not in _CODECS:
        raise ValueError(f"compression={compression!r}: give one of {', '.join(_CODECS)}.")
    options = WriterOptions(
        parse_bytes(shard_bytes, "shard_bytes"),
        parse_bytes(row_group_bytes, "row_group_bytes"),
        compression,
    )
    return on_error == "skip", options


def nothing_kept(skipped: Skips) -> SourceError:
    """The error for examples that were all skipped."""
    return SourceError(
        f"All {skipped.count} examples were skipped; the first one: {next(iter(skipped), None)}. "
        "Correct the partition function."
    )


def manifest_of(
    written: dict[str, Any],
    *,
    examples_in: int,
    unread: Skips,
    ungrouped: Skips,
    schema: pa.Schema,
    partition: AbstractPartition,
    source: dict[str, Any],
) -> dict[str, Any]:
    """The manifest of what was written; every example that went in must be accounted for."""
    if written["num_examples"] + ungrouped.count != examples_in:
        raise RuntimeError(
            f"{examples_in} examples went in, {ungrouped.count} were skipped and "
            f"{written['num_examples']} came out. This is a bug of fedeqx: please report it."
        )
    told = partition.describe()
    if isinstance(partition, AbstractPlannedPartition):
        told["empty_groups"] = partition.num_groups - written["num_groups"]
    return {
        "examples_in": examples_in,
        "num_ungrouped": ungrouped.count,
        "num_skipped": unread.count + ungrouped.count,
        "skipped": [skipped._asdict() for some in (unread, ungrouped) for skipped in some],
        **written,
        "schema": describe_schema(schema),
        "partition": told,
        "source": source,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
