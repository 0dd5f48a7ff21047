"""One client's batches in one round."""

import functools
from typing import NamedTuple

import numpy as np

from ._group import Group
from ._ids import GroupId, to_key
from ._seeding import generator
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
    tokens, mask = _packed(draw.in_order(options.epochs), batch_size, length)
    return Client(number, group.id, tokens, mask)


def _packed(
    pieces: list[np.ndarray], batch_size: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """`pack` for many batches at once: tokens [batches, batch, length + 1], mask [.., length]."""
    places = _places(batch_size, length)
    joined = np.zeros((len(pieces), batch_size * length + 1), np.int32)
    targets = np.zeros((len(pieces), 1, 1), np.int64)
    for number, piece in enumerate(pieces):
        joined[number, : len(piece)] = piece
        targets[number] = len(piece) - 1
    mask = places[:, :-1] < targets
    # A sequence without targets would begin with the last token of the one before.
    return joined.take(places, axis=1) * mask[..., :1], mask


@functools.lru_cache(maxsize=8)
def _places(batch_size: int, length: int) -> np.ndarray:
    """Where the tokens of a batch's sequences are: [batch, length + 1]."""
    return np.arange(batch_size)[:, None] * length + np.arange(length + 1)


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
