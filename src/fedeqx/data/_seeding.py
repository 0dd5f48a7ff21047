"""Randomness as a pure function of what it is for: no state is kept, none is shared."""

import functools
import hashlib

import numpy as np

_BLOCK = 1024


def seed_words(*context: int | str | bytes) -> np.ndarray:
    """Four 64-bit words that depend on the whole context and on nothing else."""
    state = hashlib.blake2b(digest_size=32)
    for part in context:
        data = part if isinstance(part, bytes) else str(part).encode()
        # The type and the length keep ("a", "b") apart from ("ab",), and 1 from "1".
        state.update(f"{type(part).__name__}:{len(data)}:".encode())
        state.update(data)
    return np.frombuffer(state.digest(), "<u8").astype(np.uint64)


def generator(*context: int | str | bytes) -> np.random.Generator:
    """A NumPy generator of its own for this context."""
    return np.random.Generator(np.random.Philox(key=seed_words(*context)[:2]))


def permuted(positions: np.ndarray, size: int, *context: int | str | bytes) -> np.ndarray:
    """Where a random permutation of `range(size)` sends some positions, without building it.

    A Feistel network on the smallest even number of bits that holds `size`, walked along its cycle
    until it lands below `size` (Black and Rogaway, 2002): O(1) time and memory for one position,
    whatever `size`.

    **Arguments:**

    - `positions`: integers in `range(size)`.
    - `size`: how many elements are permuted.
    - `context`: what the permutation is a function of.

    **Returns:**

    An int64 array of the same shape, of distinct integers in `range(size)` for distinct positions.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    half_mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    keys = np.concatenate([seed_words(*context, "low"), seed_words(*context, "high")])
    values = np.asarray(positions).astype(np.uint64)
    outside = np.ones(values.shape, bool)
    while outside.any():
        left, right = values[outside] >> shift, values[outside] & half_mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & half_mask)
        values[outside] = (left << shift) | right
        outside = values >= np.uint64(size)
    return values.astype(np.int64)


def permuted_range(start: int, stop: int, size: int, *context: int | str | bytes) -> np.ndarray:
    """`permuted(np.arange(start, stop), size, *context)`, quick to ask for in small pieces."""
    if start == stop:
        return np.zeros(0, np.int64)
    numbers = range(start // _BLOCK, -(-stop // _BLOCK))
    whole = [_permuted_block(number, size, context) for number in numbers]
    first = start - numbers.start * _BLOCK
    return np.concatenate(whole)[first : first + stop - start]


# NumPy's calls are the price of a permuted place, not the arithmetic: a block costs little more.
@functools.lru_cache(maxsize=8)
def _permuted_block(number: int, size: int, context: tuple[int | str | bytes, ...]) -> np.ndarray:
    places = np.arange(number * _BLOCK, min((number + 1) * _BLOCK, size))
    block = permuted(places, size, *context)
    block.flags.writeable = False
    return block


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
