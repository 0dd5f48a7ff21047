"""Byte-level tokens of text, and sequences of them that never cross a group."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

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
