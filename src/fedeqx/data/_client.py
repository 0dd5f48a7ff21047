"""One client's batches in one round."""

from typing import NamedTuple

import numpy as np

from ._group import Group
from ._ids import GroupId, to_key
from ._seeding import generator
from ._text import pack
from ._tokens import TokenSource, token_chunks


class ClientOptions(NamedTuple):
    """What a client does in a round; see `cohorts`."""

    steps: int
    batch_size: int
    sequence_length: int
    epochs: int
    seed: int
    tokens: TokenSource


class Client(NamedTuple):
    """A client of a round: `tokens` int32 [taken, batch, length + 1], `mask` bool [.., length]."""

    round: int
    id: GroupId | None
    tokens: np.ndarray
    mask: np.ndarray


def empty_client(number: int, options: ClientOptions) -> Client:
    """A place of a cohort that no client takes."""
    shape = 0, options.batch_size, options.sequence_length
    tokens = np.zeros((*shape[:2], shape[2] + 1), np.int32)
    return Client(number, None, tokens, np.zeros(shape, bool))


def read_client(group: Group, number: int, options: ClientOptions) -> Client:
    """Read a group's batches for round `number`.

    The group is read once, in pieces. Where there are more batches than steps, each gets a random
    priority in turn and the lowest are kept, so that memory depends on the steps alone.
    """
    batch_size, length = options.batch_size, options.sequence_length
    stride = batch_size * length
    draw = _Draw(options.steps, ("batches", options.seed, number, to_key(group.id)))
    batches = group.batches(columns=(options.tokens.column,))
    left = np.zeros(0, np.uint16)
    for chunk in token_chunks((batch.column(0) for batch in batches), options.tokens):
        left = np.concatenate([left, chunk]) if len(left) else chunk
        complete = max(0, len(left) - 1) // stride
        if complete:
            draw.take(complete, left, stride)
            left = left[complete * stride :]
    if len(left) > 1:
        draw.take(1, left, stride)
    drawn = draw.in_order(options.epochs)
    tokens = np.zeros((len(drawn), batch_size, length + 1), np.int32)
    mask = np.zeros((len(drawn), batch_size, length), bool)
    for step, piece in enumerate(drawn):
        sequences = pack(piece, length)
        tokens[step, : len(sequences.tokens)] = sequences.tokens
        mask[step, : len(sequences.mask)] = sequences.mask
    return Client(number, group.id, tokens, mask)


class _Draw:
    """Keeps `steps` batches of a stream of them, uniformly at random; all of them while they
    fit."""

    def __init__(self, steps: int, context: tuple[int | str | bytes, ...]):
        """`context` is what the choice is a function of."""
        self._steps = steps
        self._context = context
        # Most clients have no more batches than steps, and nothing to choose.
        self._random: np.random.Generator | None = None
        # (priority, number, tokens), sorted.
        self._kept: list[tuple[float, int, np.ndarray]] = []
        self._seen = 0

    def take(self, count: int, tokens: np.ndarray, stride: int) -> None:
        """See `count` more batches, which follow each other in `tokens`."""
        if self._seen + count > self._steps and self._random is None:
            self._random = self._prioritize()
        if self._random is None:
            priorities = np.zeros(count)
            bar = 1.0
        else:
            priorities = self._random.random(count)
            bar = self._kept[-1][0] if len(self._kept) == self._steps else 1.0
        for offset in np.flatnonzero(priorities < bar).tolist():
            piece = tokens[offset * stride : (offset + 1) * stride + 1]
            self._kept.append((float(priorities[offset]), self._seen + offset, piece.copy()))
        self._kept.sort(key=lambda batch: batch[:2])
        del self._kept[self._steps :]
        self._seen += count

    def _prioritize(self) -> np.random.Generator:
        """Give all batches seen so far, which are all kept, their priorities."""
        random = generator(*self._context)
        priorities = random.random(self._seen).tolist()
        self._kept = sorted(
            (
                (priority, *batch[1:])
                for priority, batch in zip(priorities, self._kept, strict=True)
            ),
            key=lambda batch: batch[:2],
        )
        return random

    def in_order(self, epochs: int) -> list[np.ndarray]:
        """The batches of all local epochs, up to the number of steps, each epoch in text order."""
        total = min(epochs * len(self._kept), self._steps)
        passes, rest = divmod(total, max(1, len(self._kept)))
        if rest and self._random is None:
            self._prioritize()
        # The last epoch may be cut short: then by priority, not always by what comes last.
        parts = [self._kept] * passes + [self._kept[:rest]]
        return [piece for part in parts for _, _, piece in sorted(part, key=lambda b: b[1])]
