"""Re-checks a grouped data set against its manifest and index."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ._ids import from_column, to_key
from ._layout import GROUP_COLUMN, INDEX_NAME, DatasetFormatError, read_manifest
from ._measure import measure
from ._reader import Index

_LISTED = 100


class Verification(NamedTuple):
    """What `verify` found: the counts that it made, and what does not agree with the files."""

    groups: int
    examples: int
    problems: list[str]

    @property
    def ok(self) -> bool:
        """Whether everything agrees."""
        return not self.problems


class _Run(NamedTuple):
    """Consecutive rows of one group, in the form of an index entry."""

    raw_id: object
    shard: int
    first_row: int
    examples: int
    bytes: int
    words: int


def verify(path: str | Path) -> Verification:
    """Read a whole data set again and check checksums, counts, order and index.

    **Arguments:**

    - `path`: the folder that `fx.data.group` wrote.

    **Returns:**

    A `Verification`; its `problems` (at most a hundred) name the damaged files and groups. Where
    a checksum is wrong nothing is counted. Raises
    `FileNotFoundError` or `DatasetFormatError` where there is no manifest to check against.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    problems: list[str] = []
    kind = manifest["id_kind"]
    files = [(INDEX_NAME, manifest["index"]["sha256"])]
    files += [(shard["file"], shard["sha256"]) for shard in manifest["shards"]]
    for name, expected in files:
        problems += _checksum(folder / name, expected)
    if problems:
        # What damaged bytes would be read as is nobody's concern.
        return Verification(0, 0, problems[:_LISTED])
    groups = examples = 0
    try:
        entries = _entries(Index(folder / INDEX_NAME))
        last = None
        for run in _merged(_runs(folder, manifest["shards"], problems)):
            groups, examples = groups + 1, examples + run.examples
            key = to_key(from_column(run.raw_id, kind))
            if last is not None and key <= last:
                problems.append(f"The group {run.raw_id!r} comes after a later id: wrong order.")
            last = key
            entry = next(entries, None)
            if entry != run and len(problems) < _LISTED:
                problems.append(f"The index says {entry}, and the shards hold {run}.")
        if next(entries, None) is not None:
            problems.append(f"The index has more groups than the shards, which have {groups}.")
    except (OSError, pa.ArrowException, DatasetFormatError, IndexError) as error:
        problems.append(str(error))
    for name, found in (("num_groups", groups), ("num_examples", examples)):
        if manifest[name] != found:
            problems.append(f"The manifest says {name}={manifest[name]}; the shards hold {found}.")
    if manifest["examples_in"] != manifest["num_examples"] + manifest["num_ungrouped"]:
        problems.append(
            f"Of {manifest['examples_in']} examples that went in, {manifest['num_examples']} came "
            f"out and {manifest['num_ungrouped']} were skipped."
        )
    return Verification(groups, examples, problems[:_LISTED])


def _checksum(file: Path, expected: str) -> list[str]:
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        return [f"{file.name} cannot be read: {error}."]
    if found == expected:
        return []
    return [f"{file.name} is damaged: its SHA-256 is {found}, and the manifest says {expected}."]


def _runs(folder: Path, shards: list[dict], problems: list[str]) -> Iterator[_Run]:
    """The runs of equal ids in each row group."""
    for number, shard in enumerate(shards):
        try:
            with pq.ParquetFile(folder / shard["file"]) as file:
                row = 0
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group).combine_chunks()
                    yield from _runs_of(table.to_batches()[0], number, row)
                    row += table.num_rows
        except (OSError, pa.ArrowException) as error:
            problems.append(f"{shard['file']} cannot be read: {error}.")
            continue
        if row != shard["examples"]:
            problems.append(f"{shard['file']} has {row} rows, not {shard['examples']}.")


def _runs_of(batch: pa.RecordBatch, shard: int, first_row: int) -> Iterator[_Run]:
    ids = batch.column(GROUP_COLUMN).to_pylist()
    sizes = measure(batch.drop_columns([GROUP_COLUMN]))
    starts = [0] + [row for row in range(1, len(ids)) if ids[row] != ids[row - 1]]
    ends = [*starts[1:], len(ids)]
    sums = [np.concatenate([[0], np.cumsum(size)]) for size in sizes]
    for start, end in zip(starts, ends, strict=True):
        totals = [int(total[end] - total[start]) for total in sums]
        yield _Run(ids[start], shard, first_row + start, end - start, totals[0], totals[1])


def _merged(runs: Iterator[_Run]) -> Iterator[_Run]:
    """Whole groups: runs of one id that follow each other across row groups and shards."""
    held: _Run | None = None
    for run in runs:
        if held is not None and held.raw_id == run.raw_id:
            held = held._replace(
                examples=held.examples + run.examples,
                bytes=held.bytes + run.bytes,
                words=held.words + run.words,
            )
            continue
        if held is not None:
            yield held
        held = run
    if held is not None:
        yield held


def _entries(index: Index) -> Iterator[_Run]:
    for position, raw_id in enumerate(index.raw_ids()):
        yield _Run(raw_id, *index.entry(position))
