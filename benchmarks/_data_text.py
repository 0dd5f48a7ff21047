"""Text for the benchmarks of data: examples of seeded random words, in long-tailed groups."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("group", pa.string()), ("text", pa.string())])
_VOCABULARY = 20_000
_BATCH = 8192


def write_source(path: Path, *, examples: int, groups: int, mean_bytes: int, seed: int = 0) -> int:
    """Write the examples as one Parquet file, in a random order; returns the bytes of its text."""
    size = 0
    with pq.ParquetWriter(path, SCHEMA, compression="lz4", use_dictionary=False) as writer:
        for batch in batches(examples, groups, mean_bytes, seed):
            offsets = batch.column(1).buffers()[1]
            size += int(np.frombuffer(offsets, np.int32)[batch.num_rows])
            writer.write_batch(batch)
    return size


def batches(examples: int, groups: int, mean_bytes: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Record batches of `SCHEMA`: every group has an example, the others follow Zipf's law."""
    rng = np.random.default_rng(seed)
    members = np.concatenate([np.arange(groups), zipf(rng, groups, examples - groups)])
    rng.shuffle(members)
    # A group's size says nothing about where its id sorts.
    numbers = rng.permutation(groups)
    words = _Words(rng)
    for start in range(0, examples, _BATCH):
        ids = numbers[members[start : start + _BATCH]]
        digits = np.char.add("client-", np.char.zfill(ids.astype(str), 8))
        yield pa.record_batch([digits, words.texts(len(ids), mean_bytes)], schema=SCHEMA)


def zipf(rng: np.random.Generator, kinds: int, count: int) -> np.ndarray:
    """`count` numbers below `kinds`, number k in proportion to 1 / (k + 1)."""
    return np.searchsorted(np.cumsum(_zipf_shares(kinds))[:-1], rng.random(count), "right")


def _zipf_shares(kinds: int) -> np.ndarray:
    shares = 1 / np.arange(1, kinds + 1)
    return shares / shares.sum()


class _Words:
    """Words of two to twelve letters with a space after each, common ones often."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._sizes = rng.integers(3, 14, _VOCABULARY)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._letters = rng.integers(ord("a"), ord("z") + 1, self._sizes.sum()).astype(np.uint8)
        self._letters[self._starts + self._sizes - 1] = ord(" ")
        self._mean_size = float(_zipf_shares(_VOCABULARY) @ self._sizes)

    def texts(self, count: int, mean_bytes: int) -> pa.Array:
        """Texts whose lengths have a log-normal distribution."""
        lengths = self._rng.lognormal(-0.5, 1.0, count) * mean_bytes / self._mean_size
        word_ends = np.cumsum(np.maximum(1, lengths.round().astype(np.int64)))
        chosen = zipf(self._rng, _VOCABULARY, int(word_ends[-1]))
        sizes = self._sizes[chosen]
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1]) + np.repeat(self._starts[chosen] - (ends - sizes), sizes)
        offsets = np.concatenate([[0], ends[word_ends - 1]]).astype(np.int32)
        return pa.StringArray.from_buffers(
            count, pa.py_buffer(offsets), pa.py_buffer(self._letters[places])
        )
