"""Joins the indexes of ranges into the index of the whole data set."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ._ids import column_type
from ._layout import INDEX_CHUNK, INDEX_NAME, index_schema
from ._writer import HashingFile

# The columns of the index that add up over the parts of a group.
_SUMS = ("examples", "bytes", "words")


def join_indexes(indexes: Iterable[Path], kind: str, folder: Path) -> dict[str, Any]:
    """Write the index of consecutive shards, of which each has an index of its own.

    **Arguments:**

    - `indexes`: their files in the order of the shards; each is read before the next is asked for.
    - `kind`: the kind of the ids, see `_ids`.
    - `folder`: where to write the index.

    **Returns:**

    The manifest's totals and its entry for the index. A group that ends one shard and begins the
    next is one entry.
    """
    schema = index_schema(column_type(kind))
    totals = {"num_groups": 0, **{f"num_{name}": 0 for name in _SUMS}}
    file = HashingFile(folder / INDEX_NAME)
    sink = pa.PythonFile(file, "w")
    with pa.ipc.new_file(sink, schema) as writer:
        for chunk in _chunks(_joined(indexes, schema), schema):
            writer.write_batch(chunk)
            totals["num_groups"] += chunk.num_rows
            for name in _SUMS:
                totals[f"num_{name}"] += int(chunk.column(name).to_numpy().sum())
    sink.close()
    return {**totals, "index": {"file": INDEX_NAME, "sha256": file.sha256}}


def _joined(indexes: Iterable[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of all indexes; the last one is held back until it is known to have ended."""
    held: pa.RecordBatch | None = None
    for number, path in enumerate(indexes):
        with pa.OSFile(str(path), "rb") as opened:
            file = pa.ipc.open_file(opened)
            for chunk in range(file.num_record_batches):
                batch = file.get_batch(chunk)
                shards = pa.array([number] * batch.num_rows, pa.int32())
                columns = [batch.column(0), shards, *batch.columns[2:]]
                batch = pa.record_batch(columns, schema=schema)
                if held is not None and held.column(0)[0].as_py() == batch.column(0)[0].as_py():
                    held, batch = _added(held, batch.slice(0, 1)), batch.slice(1)
                if not batch.num_rows:
                    continue
                if held is not None:
                    yield held
                yield batch.slice(0, batch.num_rows - 1)
                held = batch.slice(batch.num_rows - 1)
    if held is not None:
        yield held


def _added(entry: pa.RecordBatch, more: pa.RecordBatch) -> pa.RecordBatch:
    sums = [
        pa.array([one[0].as_py() + other[0].as_py()], pa.int64())
        for one, other in zip(entry.columns[3:], more.columns[3:], strict=True)
    ]
    return pa.record_batch([*entry.columns[:3], *sums], schema=entry.schema)


def _chunks(entries: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same entries, `INDEX_CHUNK` to a batch, as readers expect them."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in entries:
        held.append(batch)
        count += batch.num_rows
        while count >= INDEX_CHUNK:
            whole = pa.concat_batches(held)
            yield whole.slice(0, INDEX_CHUNK)
            held, count = [whole.slice(INDEX_CHUNK)], count - INDEX_CHUNK
    if count:
        yield pa.concat_batches(held)
