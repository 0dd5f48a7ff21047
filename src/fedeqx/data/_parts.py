"""Splits the examples of one group, for example into a tuning and a held-out part."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa

from ._examples import to_examples

if TYPE_CHECKING:
    from ._dataset import Group


@final
class GroupPart:
    """Some examples of a group, as a lazy stream that can be read again."""

    def __init__(self, group: "Group", low: float, high: float, seed: int):
        self.id = group.id
        self._group = group
        self._low, self._high, self._seed = low, high, seed
        self._size: int | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The examples as Arrow record batches; none is empty."""
        for batch in self._group.batches():
            places = _places(batch, self._seed)
            kept = batch.filter(pa.array((places >= self._low) & (places < self._high)))
            if kept.num_rows:
                yield kept

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from to_examples(batch)

    def __len__(self) -> int:
        if self._size is None:
            self._size = sum(batch.num_rows for batch in self.batches())
        return self._size

    def __repr__(self) -> str:
        return f"GroupPart(id={self.id!r}, from={self._low:g}, to={self._high:g})"


def edges_of(fractions: Mapping[str, float | int], what: str) -> np.ndarray:
    """The ends of the parts of the unit interval, checked. The last one is above every place."""
    shares = np.asarray(list(fractions.values()), float)
    if not len(shares) or (shares < 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"{what}({dict(fractions)}): the fractions must be at least 0 and add up to 1; they "
            f"add up to {shares.sum():.6g}."
        )
    edges = np.cumsum(shares)
    # A part of share 0 at the end stays empty.
    edges[edges > 1 - 1e-9] = np.inf
    return edges


def split_group(
    group: "Group", fractions: Mapping[str, float | int], seed: int
) -> dict[str, GroupPart]:
    """See `Group.split`."""
    edges = edges_of(fractions, "split")
    starts = [-np.inf, *edges[:-1]]
    return {
        name: GroupPart(group, float(low), float(high), seed)
        for name, low, high in zip(fractions, starts, edges, strict=True)
    }


def _places(batch: pa.RecordBatch, seed: int) -> np.ndarray:
    """A place in [0, 1) for each example: a hash of its content and the seed."""
    prefix = hashlib.blake2b(f"{seed}".encode(), digest_size=8).digest()
    columns = [column.to_pylist() for column in batch.columns]
    words = [
        hashlib.blake2b(
            json.dumps(row, default=_plain, ensure_ascii=False).encode("utf-8", "surrogatepass"),
            digest_size=8,
            key=prefix,
        ).digest()
        for row in zip(*columns, strict=True)
    ]
    return np.frombuffer(b"".join(words), "<u8") / 2**64


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else repr(value)
