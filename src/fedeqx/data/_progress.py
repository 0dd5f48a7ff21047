"""How far grouping has come."""

import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, final

import pyarrow as pa


class Progress(NamedTuple):
    """How far `group` has come.

    - `stage`: `"read"`; then, for a partition of all examples together, `"assign"`; then `"write"`.
    - `examples`, `bytes`: done in this stage.
    - `total`: the examples of this stage, where known; for text files an estimate while reading.
    - `seconds`: since the stage began.
    """

    stage: Literal["read", "assign", "write"]
    examples: int
    bytes: int
    total: int | None
    seconds: float


@final
class Reporter:
    """Lets batches pass, and tells about them some ten times a second."""

    def __init__(self, tell: Callable[[Progress], None] | None):
        self._tell = tell

    def __call__(
        self,
        batches: Iterator[pa.RecordBatch],
        stage: Literal["read", "assign", "write"],
        total: int | None,
        *,
        hidden: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """The same batches. The first `hidden` columns are not the examples' own."""
        if self._tell is None:
            yield from batches
            return
        start = told = time.monotonic()
        rows = size = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            size += sum(column.nbytes for column in batch.columns[hidden:])
            now = time.monotonic()
            if now - told >= 0.1:
                told = now
                self._tell(Progress(stage, rows, size, total, now - start))
        self._tell(Progress(stage, rows, size, rows, time.monotonic() - start))
