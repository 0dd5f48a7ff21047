"""Where examples come from: anything that can be read as Arrow record batches, in a fixed order."""

import abc
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, final

import pyarrow as pa

# A batch is closed at whichever comes first, so that a few large examples do not fill the memory.
BATCH_ROWS = 4096
BATCH_BYTES = 4 << 20
# So many of the things that were left out are listed; all are counted.
_LISTED = 1000


class SourceError(ValueError):
    """An example that cannot be read or stored; names the record and what to do."""


class Skipped(NamedTuple):
    """One thing that a source held and that is not in the data set, and why."""

    where: str
    why: str


@final
class Skips:
    """What was left out: how much, and the first thousand one by one."""

    def __init__(self):
        self.count = 0
        self.listed: list[Skipped] = []

    def add(self, where: str, why: str) -> None:
        """Count one more, and list it if there is room."""
        self.count += 1
        if len(self.listed) < _LISTED:
            self.listed.append(Skipped(where, why))

    @staticmethod
    def joined(several: "Iterable[Skips]") -> "Skips":
        """Those of several sources, one after the other."""
        whole = Skips()
        for skips in several:
            whole.count += skips.count
            whole.listed += skips.listed[: _LISTED - len(whole.listed)]
        return whole

    def clear(self) -> None:
        """Forget all."""
        self.count = 0
        self.listed.clear()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Skipped]:
        return iter(self.listed)


class AbstractSource(abc.ABC):
    """Examples in a fixed order, as record batches of one schema.

    What a source leaves out it adds to `skipped` while `batches` runs, so that nothing goes missing
    uncounted.
    """

    skipped: Skips

    @abc.abstractmethod
    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        """Read the source from its start.

        **Arguments:**

        - `skip`: leave out what cannot be read, and say so in `skipped`, instead of raising.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """What this source is, for the manifest: JSON values only."""

    @abc.abstractmethod
    def locate(self, row: int) -> str:
        """How a message names the example with this number (from 0) among those read."""

    @abc.abstractmethod
    def total(self) -> int | None:
        """How many examples there are, where that is known or estimated before reading."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of at most about `BATCH_ROWS` rows and `BATCH_BYTES` bytes."""
    rows = batch.num_rows
    by_size = max(1, rows * BATCH_BYTES // max(1, batch.nbytes))
    step = min(BATCH_ROWS, by_size)
    for start in range(0, rows, step):
        yield batch.slice(start, step)
