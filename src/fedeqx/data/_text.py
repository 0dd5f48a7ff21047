"""Byte-level tokens of text, and sequences of them that never cross a group."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ._measure import text_bytes

SEPARATOR = 256
BYTE_VOCAB_SIZE = 257


def encode_bytes(text: str) -> np.ndarray:
    """The byte-level tokens of a text: its UTF-8 bytes, as int32 of shape [tokens]."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def decode_bytes(tokens: np.ndarray | Iterable[int]) -> str:
    """The text of byte-level tokens; a separator is shown as a line feed, broken UTF-8 as
    U+FFFD."""
    values = [10 if token == SEPARATOR else int(token) for token in tokens]
    return bytes(values).decode("utf-8", "replace")


class Sequences(NamedTuple):
    """Packed tokens of one group.

    - `tokens`: int32 [sequences, sequence_length + 1]; inputs are `[:, :-1]`, targets `[:, 1:]`.
    - `mask`: bool [sequences, sequence_length]; which targets are real tokens, not padding.
    """

    tokens: np.ndarray
    mask: np.ndarray


def token_chunks(texts: Iterable[pa.Array]) -> Iterator[np.ndarray]:
    """The byte-level tokens of a group's texts, in pieces, with a separator between documents.

    **Arguments:**

    - `texts`: the group's text columns, batch after batch.

    **Returns:**

    uint16 arrays that make up the group's tokens when joined.
    """
    first = True
    for column in texts:
        data, offsets = text_bytes(column)
        if len(offsets) == 1:
            continue
        tokens = np.full(len(data) + len(offsets) - 1, SEPARATOR, np.uint16)
        is_byte = np.ones(len(tokens), bool)
        is_byte[offsets[:-1] + np.arange(len(offsets) - 1)] = False
        tokens[is_byte] = data
        yield tokens[1:] if first else tokens
        first = False


def pack(tokens: np.ndarray, sequence_length: int) -> Sequences:
    """Cut one group's tokens into sequences.

    A sequence begins with the last token of the one before, so that every token except the group's
    first is a target exactly once. The last sequence is padded with zeros.

    **Arguments:**

    - `tokens`: integers of shape [tokens].
    - `sequence_length`: how many targets a sequence has.

    **Returns:**

    `ceil((tokens - 1) / sequence_length)` sequences; none of fewer than two tokens.
    """
    targets = max(0, len(tokens) - 1)
    count = -(-targets // sequence_length)
    padded = np.zeros(count * sequence_length + 1, np.int32)
    if count:
        padded[: len(tokens)] = tokens
    places = np.arange(count)[:, None] * sequence_length
    steps = np.arange(sequence_length + 1)
    return Sequences(padded[places + steps], places + steps[:-1] < targets)
