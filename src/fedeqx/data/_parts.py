"""Parts of all examples, for example to train on and to hold out, by the examples' content."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa


class Part(NamedTuple):
    """The examples with a place in an interval: half open, of the numbers from 0 to 1."""

    low: float
    high: float
    seed: int
    # How many choices come before this one. The same seed must not choose alike in a part of a
    # part, or its fractions would be those of a biased sample.
    depth: int

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that belong to this part. All columns count."""
        places = _places(batch, self.seed, self.depth)
        return batch.filter(pa.array((places >= self.low) & (places < self.high)))


def edges_of(fractions: Mapping[str, float | int], what: str) -> np.ndarray:
    """The ends of the parts of the unit interval, checked. The last one is above every place."""
    shares = np.asarray(list(fractions.values()), float)
    if not len(shares) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"{what}({dict(fractions)}): the fractions must be at least 0 and add up to 1; they "
            f"add up to {shares.sum():.6g}."
        )
    edges = np.cumsum(shares)
    # A part of share 0 at the end stays empty.
    edges[edges > 1 - 1e-9] = np.inf
    return edges


def parts_of(
    fractions: Mapping[str, float | int], seed: int, depth: int, what: str
) -> dict[str, Part]:
    """The parts by name; `what` is how an error names the caller."""
    edges = edges_of(fractions, what)
    starts = [-np.inf, *edges[:-1]]
    return {
        name: Part(float(low), float(high), seed, depth)
        for name, low, high in zip(fractions, starts, edges, strict=True)
    }


def _places(batch: pa.RecordBatch, seed: int, depth: int) -> np.ndarray:
    """A place in [0, 1) for each example: a hash of its content and the seed."""
    prefix = hashlib.blake2b(f"{seed}/{depth}".encode(), digest_size=8).digest()
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
