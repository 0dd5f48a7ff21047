"""Groups the examples of any source on many machines, as an Apache Beam pipeline."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ._amounts import parse_bytes
from ._appearing import appearing
from ._beam_parts import Chained, split_source
from ._extras import missing_extra
from ._grouping import checked_options
from ._keyed import KeyedExamples, planner_of
from ._layout import MANIFEST_NAME
from ._partition import AbstractDirectPartition, AbstractPartition, PartitionError, as_partition
from ._progress import Reporter
from ._sorting import MIN_MEMORY
from ._sources import SourceError
from ._stores import Store, emptied, local_path

# A runner tells of a worker's error as text, its own additions at the end.
_TOLD = re.compile(r"\b(SourceError|PartitionError): (.*?)(?: \[while running |\Z)", re.DOTALL)
_ERRORS = {"SourceError": SourceError, "PartitionError": PartitionError}


def group_with_beam(
    source: Any,
    *,
    by: str | Callable[[dict[str, Any]], Any] | AbstractPartition,
    out: str | Path,
    pipeline_options: Any = None,
    overwrite: bool = False,
    on_error: str = "raise",
    memory_limit: str | int = "1GB",
    shard_bytes: str | int = "64MiB",
    row_group_bytes: str | int = "256KiB",
    compression: str = "lz4",
) -> dict[str, Any]:
    """Do what `fx.data.group` does on many machines, as an Apache Beam pipeline on any runner.

    The groups, the order of a group's examples and the manifest's counts are those of
    `fx.data.group`; only where one shard ends and the next begins differs. No machine holds a
    group: examples are sorted by ranges of about a shard, outside of memory, and a large group is
    spread over many. Needs `pip install 'fedeqx[beam]'`, on the workers too.

    **Arguments:**

    - `source`: what `fx.data.group` takes, and URLs of fsspec such as `"gs://bucket/*.parquet"`.
        One worker reads one file, copied to its disk first if it has a URL. What is not files is
        sent to the workers, and a Hugging Face data set is read in shards.
    - `by`: as for `fx.data.group`. Partitions of all examples together, such as `fx.data.dirichlet`
        or `fx.data.nested`, hold all labels on one worker.
    - `out`: the folder to write: a path that all workers have, or a URL of fsspec. At a URL, what
        is to be replaced is removed before the pipeline runs.
    - `pipeline_options`: an `apache_beam.options.pipeline_options.PipelineOptions`, a list such as
        `["--runner=FlinkRunner", "--parallelism=64"]`, or `None` for Beam's runner on this machine,
        which holds all data in memory: it is for tests.
    - `memory_limit`: what the sort of one range may hold in memory.
    - `shard_bytes`: as for `fx.data.group`; past 16,384 shards they become larger instead of more.
    - `overwrite`, `on_error`, `row_group_bytes`, `compression`: as for `fx.data.group`.

    **Returns:**

    The manifest, once the pipeline has run. `fx.data.open(out)` opens the data set where `out` is a
    path; copy it from a URL first. Raises `ImportError` without Apache Beam, `SourceError` and
    `PartitionError` as `fx.data.group`, and what the runner raises.

    !!! Example

        ```python
        fx.data.group_with_beam(
            "gs://corpus/*.parquet",
            by=fx.data.by_url_domain("url"),
            out="gs://grouped/by_domain",
            pipeline_options=["--runner=DataflowRunner", "--project=...", "--region=..."],
        )
        ```
    """
    beam = _library()
    # Its classes are Beam's.
    from ._beam_stages import Job, build, index_name

    skip, options = checked_options(on_error, shard_bytes, row_group_bytes, compression)
    limit = parse_bytes(memory_limit, "memory_limit")
    if limit < MIN_MEMORY:
        raise ValueError(f"memory_limit={memory_limit!r}: sorting needs {MIN_MEMORY >> 20}MiB.")
    partition = as_partition(by)
    if not isinstance(partition, AbstractDirectPartition):
        planner_of(partition)
    with ExitStack() as stack:
        folder = local_path(out)
        if folder is None:
            stack.enter_context(emptied(str(out), MANIFEST_NAME, overwrite=overwrite))
            store = Store(str(out))
        else:
            built = stack.enter_context(appearing(folder.absolute(), overwrite=overwrite))
            store = Store(str(built))
        parts = split_source(source, skip=skip)
        # What cannot be grouped at all is told before any machine starts.
        head = KeyedExamples(
            Chained(parts), partition, skip=skip, temp=Path(), reporter=Reporter(None)
        )
        job = Job(parts.sources, parts.source, partition, skip, head.schema, store, options, limit)
        pipeline = beam.Pipeline(options=_options(beam, pipeline_options))
        build(pipeline, job)
        try:
            state = pipeline.run().wait_until_finish()
        except Exception as error:
            raise _translated(error) from error
        # Not every runner raises what its workers raised.
        if str(state) != beam.runners.runner.PipelineState.DONE:
            raise RuntimeError(
                f"The pipeline ended in the state {state}, and wrote no data set. The runner's "
                "logs say why."
            )
        manifest = json.loads(store.read(MANIFEST_NAME))
        for shard in manifest["shards"]:
            number = int(re.findall(r"\d+", shard["file"])[0])
            store.remove(index_name(number))
    return manifest


def _library() -> Any:
    try:
        import apache_beam  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing_extra("beam", "apache-beam", "group_with_beam") from error
    return apache_beam


def _options(beam: Any, given: Any) -> Any:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return beam.options.pipeline_options.PipelineOptions(list(given))
    if given is None:
        return beam.options.pipeline_options.PipelineOptions([])
    return given


def _translated(error: Exception) -> Exception:
    """The worker's own error, without what the runner says around it."""
    name = type(error).__name__
    found = _TOLD.findall(f"{name}: {error}")
    if found:
        kind, message = found[-1]
        return _ERRORS[kind](message)
    return error
