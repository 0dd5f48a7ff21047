"""The stages of grouping as Apache Beam's transforms. Imported when it is used.

    parts -> read -> [plan, assign] -> sketch -> ranges
                \\-> route -> by range -> write shards -> finish: index, manifest

Elements are Arrow record batches as bytes. Nothing holds a group: a range is sorted outside of
memory, and a group may be spread over many.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam  # pyright: ignore[reportMissingImports]
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import (  # pyright: ignore[reportMissingImports]
    AsSingleton,
    TaggedOutput,
)
from apache_beam.transforms.window import (  # pyright: ignore[reportMissingImports]
    GlobalWindows,
)
from apache_beam.typehints import (  # pyright: ignore[reportMissingImports]
    with_output_types,
)

from ._beam_index import join_indexes
from ._beam_order import ROW_BITS, Sketch, order_keys, split_at
from ._beam_plan import Unplaced, looked_at, planner_of_columns
from ._grouping import manifest_of, nothing_kept
from ._ids import kind_of, tags_of
from ._keyed import KeyedExamples, NoExamplesError
from ._layout import INDEX_NAME, MANIFEST_NAME, shard_name, write_manifest
from ._partition import AbstractDirectPartition, AbstractPartition
from ._progress import Reporter
from ._sorting import BYTES, FRONT, KEY, ExternalSort
from ._sources import AbstractSource, Skips
from ._stores import Store
from ._writer import GroupWriter, WriterOptions

# The columns of a batch of read examples: those of the sort, the place, the example's own.
_PLACE = len(FRONT)
# Of one that is sent to its range: order key, bytes, words, group key, the example's own.
_GROUP_KEY = len(FRONT)
# Rows are sent to their ranges in pieces of so many bytes.
_SENT_BYTES = 32 << 20
# A shard is closed at the end of its range only.
_NO_LIMIT = 1 << 62


class Job(NamedTuple):
    """What is to be grouped, and how."""

    parts: list[AbstractSource]
    source: dict[str, Any]
    partition: AbstractPartition
    skip: bool
    schema: pa.Schema
    store: Store
    options: WriterOptions
    memory_limit: int


class Read(NamedTuple):
    """What became of a part of the source."""

    part: int
    examples_in: int
    tags: set[str]
    unread: Skips
    ungrouped: Skips


def build(pipeline: beam.Pipeline, job: Job) -> None:
    """Add the whole grouping to a pipeline."""
    direct = isinstance(job.partition, AbstractDirectPartition)
    # Only the readers are sent the parts: some hold their examples.
    rest = job._replace(parts=[])
    read = (
        pipeline
        | "Parts" >> beam.Create(range(len(job.parts)), reshuffle=True)
        | "Read" >> beam.ParDo(_Read(job)).with_outputs("read", "labels", main="examples")
    )
    tags = read["read"] | "Kinds of ids" >> beam.FlatMap(lambda one: one.tags)
    keyed = read["examples"]
    if not direct:
        keys = (
            read["labels"] | "All labels" >> beam.GroupByKey() | "Plan" >> beam.ParDo(_Plan(rest))
        )
        batches = (keyed, keys) | "By place" >> beam.CoGroupByKey() | beam.Values()
        keyed = batches | "Assign" >> beam.Map(_assign)
        tags = keyed | "Kinds of assigned ids" >> beam.FlatMap(_tags)
    kind = tags | "Kind" >> beam.CombineGlobally(_Kind())
    bounds = keyed | "Ranges" >> beam.CombineGlobally(_Bounds(job.options.shard_bytes))
    shards = (
        keyed
        | "Route" >> beam.ParDo(_Route(), AsSingleton(bounds))
        | "By range" >> beam.GroupByKey()
        | "Write" >> beam.ParDo(_Write(rest), AsSingleton(kind))
    )
    every = shards | "Shards" >> beam.combiners.ToList()
    reads = read["read"] | "Reads" >> beam.combiners.ToList()
    _ = (
        pipeline
        | "Once" >> beam.Create([None])
        | "Finish"
        >> beam.ParDo(
            _Finish(rest),
            AsSingleton(every),
            AsSingleton(reads),
            AsSingleton(kind),
        )
    )


def _encode(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _decode(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


class _Read(beam.DoFn):
    """Reads a part: batches, and what became of it; for a planned partition, the labels too."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, element: int) -> Iterator[Any]:
        job, skip = self._job, self._job.skip
        source, direct = job.parts[element], isinstance(job.partition, AbstractDirectPartition)
        partition = job.partition if direct else Unplaced(job.partition)
        with tempfile.TemporaryDirectory(prefix="fedeqx-") as temp:
            try:
                keyed = KeyedExamples(
                    source, partition, skip=skip, temp=Path(temp), reporter=Reporter(None)
                )
            except NoExamplesError:
                yield self._told(element, source, None)
                return
            row = element << ROW_BITS
            for batch in keyed.batches():
                if not batch.num_rows:
                    continue
                places = np.arange(row, row + batch.num_rows)
                encoded = _encode(_with_places(batch, places))
                if direct:
                    yield encoded
                else:
                    yield row, encoded
                    examples = pa.record_batch(batch.columns[len(FRONT) :], schema=job.schema)
                    labels = _encode(looked_at(job.partition, examples))
                    yield TaggedOutput("labels", (0, (row, labels)))
                row += batch.num_rows
            yield self._told(element, source, keyed)

    def _told(self, part: int, source: AbstractSource, keyed: KeyedExamples | None) -> Any:
        if keyed is None:
            told = Read(part, 0, set(), source.skipped, Skips())
        else:
            told = Read(part, keyed.examples_in, keyed.tags, source.skipped, keyed.skipped)
        return TaggedOutput("read", told)


def _with_places(batch: pa.RecordBatch, places: np.ndarray) -> pa.RecordBatch:
    fields = [*batch.schema]
    return pa.record_batch(
        [*batch.columns[:_PLACE], pa.array(places, pa.int64()), *batch.columns[_PLACE:]],
        schema=pa.schema([*fields[:_PLACE], pa.field("place", pa.int64()), *fields[_PLACE:]]),
    )


class _Plan(beam.DoFn):
    """Plans from all labels: the keys of each batch, by its first place."""

    def __init__(self, job: Job):
        self._partition = job.partition

    def process(self, element: tuple[int, Iterable[tuple[int, bytes]]]) -> Iterator[Any]:
        batches = sorted(element[1], key=lambda item: item[0])
        planner = planner_of_columns(self._partition)
        sizes = []
        for number, (place, data) in enumerate(batches):
            labels = _decode(data)
            planner.see(labels)
            sizes.append(labels.num_rows)
            batches[number] = (place, b"")
        keys, row = planner.plan(), 0
        for (place, _), size in zip(batches, sizes, strict=True):
            column = keys(row, row + size)
            yield place, _encode(pa.record_batch([column], names=["key"]))
            row += size


def _assign(joined: tuple[Iterable[bytes], Iterable[bytes]]) -> bytes:
    """A batch with the keys that the plan gives it."""
    batch, keys = (_decode(next(iter(some))) for some in joined)
    columns = [keys.column(0), *batch.columns[1:]]
    return _encode(pa.record_batch(columns, schema=batch.schema))


def _tags(data: bytes) -> set[str]:
    return tags_of(_decode(data).column(KEY))


class _Kind(beam.CombineFn):
    """The kind of the data set's ids."""

    def create_accumulator(self) -> set[str]:
        return set()

    def add_input(self, accumulator: set[str], element: str) -> set[str]:
        return accumulator | {element}

    def merge_accumulators(self, accumulators: Iterable[set[str]]) -> set[str]:
        return set().union(*accumulators)

    def extract_output(self, accumulator: set[str]) -> str:
        return kind_of(accumulator)


class _Bounds(beam.CombineFn):
    """Where the ranges begin."""

    def __init__(self, range_bytes: int):
        self._range_bytes = range_bytes

    def create_accumulator(self) -> Sketch:
        return Sketch.empty()

    def add_input(self, accumulator: Sketch, element: bytes) -> Sketch:
        batch = _decode(element)
        places = batch.column(_PLACE).to_numpy()
        keys = order_keys(batch.column(KEY), places)
        more = Sketch.of(keys, batch.column(BYTES).to_numpy(), places)
        return Sketch.join([accumulator, more])

    def merge_accumulators(self, accumulators: Iterable[Sketch]) -> Sketch:
        return Sketch.join([Sketch.empty(), *accumulators])

    def extract_output(self, accumulator: Sketch) -> list[bytes]:
        return accumulator.bounds(self._range_bytes)


@with_output_types(tuple[int, bytes])
class _Route(beam.DoFn):
    """Sends rows to their ranges, many batches at a time."""

    def start_bundle(self) -> None:
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._bounds: list[bytes] = []

    def process(self, element: bytes, bounds: list[bytes]) -> Iterator[tuple[int, bytes]]:
        self._bounds = bounds
        self._held.append(_decode(element))
        self._bytes += len(element)
        if self._bytes >= _SENT_BYTES:
            yield from self._send()

    def finish_bundle(self) -> Any:
        for item in self._send():
            yield GlobalWindows.windowed_value(item)

    def _send(self) -> Iterator[tuple[int, bytes]]:
        if not self._held:
            return
        whole = pa.concat_batches(self._held)
        self._held, self._bytes = [], 0
        key = whole.column(KEY)
        order = order_keys(key, whole.column(_PLACE).to_numpy())
        columns = [order, *whole.columns[1:_PLACE], key, *whole.columns[_PLACE + 1 :]]
        fields = [*FRONT, pa.field("group key", pa.large_binary())]
        schema = pa.schema([*fields, *[*whole.schema][_PLACE + 1 :]])
        for number, rows in split_at(pa.record_batch(columns, schema=schema), self._bounds):
            yield number, _encode(rows)


class _Write(beam.DoFn):
    """Sorts a range outside of memory and writes it as a shard with an index of its own."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, element: tuple[int, Iterable[bytes]], kind: str) -> Iterator[Any]:
        number, slices = element
        job = self._job
        with tempfile.TemporaryDirectory(prefix="fedeqx-") as temp:
            folder, spill = Path(temp, "out"), Path(temp, "spill")
            folder.mkdir()
            spill.mkdir()
            options = job.options._replace(shard_bytes=_NO_LIMIT)
            writer = GroupWriter(folder, job.schema, kind, options)
            with ExternalSort(spill, memory_limit=job.memory_limit, threads=1) as sort:
                for data in slices:
                    sort.add(_decode(data))
                for batch in sort.finish():
                    writer.write(_without_order(batch, job.schema))
            told = writer.close()
            job.store.put(folder / shard_name(0), shard_name(number))
            job.store.put(folder / INDEX_NAME, index_name(number))
        yield number, {**told["shards"][0], "file": shard_name(number)}


def _without_order(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = batch.columns
    front = [columns[_GROUP_KEY], *columns[1:_GROUP_KEY]]
    return pa.record_batch(
        [*front, *columns[_GROUP_KEY + 1 :]], schema=pa.schema([*FRONT, *schema])
    )


def index_name(number: int) -> str:
    """The file name of the index of one shard, which is removed at the end."""
    return f"index-{number:05d}.arrow"


class _Finish(beam.DoFn):
    """Writes the index and, last, the manifest: before it the folder is no data set."""

    def __init__(self, job: Job):
        self._job = job

    def process(
        self,
        element: None,
        shards: list[tuple[int, dict[str, Any]]],
        reads: list[Read],
        kind: str,
    ) -> None:
        job = self._job
        ordered = sorted(reads, key=lambda read: read.part)
        unread = Skips.joined(read.unread for read in ordered)
        ungrouped = Skips.joined(read.ungrouped for read in ordered)
        if not shards:
            raise nothing_kept(ungrouped)
        numbers = sorted(number for number, _ in shards)
        with tempfile.TemporaryDirectory(prefix="fedeqx-") as temp:
            folder = Path(temp)
            written = join_indexes(self._indexes(numbers, folder), kind, folder)
            written = {
                "id_kind": kind,
                **{name: written[name] for name in written if name != "index"},
                "shards": [shard for _, shard in sorted(shards, key=lambda item: item[0])],
                "index": written["index"],
            }
            manifest = manifest_of(
                written,
                examples_in=sum(read.examples_in for read in ordered),
                unread=unread,
                ungrouped=ungrouped,
                schema=job.schema,
                partition=job.partition,
                source=job.source,
            )
            write_manifest(folder, manifest)
            job.store.put(folder / INDEX_NAME, INDEX_NAME)
            job.store.put(folder / MANIFEST_NAME, MANIFEST_NAME)

    def _indexes(self, numbers: list[int], folder: Path) -> Iterator[Path]:
        path = folder / "part.arrow"
        for number in numbers:
            self._job.store.get(index_name(number), path)
            yield path
