"""Cohorts: the clients of each round with their batches, as a pure function of (seed, round)."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from ._dataset import Group, GroupedDataset
from ._ids import GroupId, is_text, to_key
from ._seeding import generator, permuted_range
from ._text import pack, token_chunks

if TYPE_CHECKING:
    import grain


class Cohort(NamedTuple):
    """The clients of one round. A client's absent steps and sequences are padding, and masked.

    - `round`: the round's number.
    - `ids`: the clients' group ids; all differ.
    - `batches`: `"tokens"`, int32 [clients, steps, batch, sequence_length + 1], and `"mask"`, bool
        [clients, steps, batch, sequence_length], which targets are real.
    - `step_mask`: bool [clients, steps]; which local steps a client does.
    - `num_examples`: int32 [clients]; the sequences that a client trains on.
    """

    round: int
    ids: tuple[GroupId, ...]
    batches: dict[str, np.ndarray]
    step_mask: np.ndarray
    num_examples: np.ndarray


class _Client(NamedTuple):
    round: int
    id: GroupId
    tokens: np.ndarray
    mask: np.ndarray


class _Shape(NamedTuple):
    steps: int
    batch_size: int
    sequence_length: int


@final
class Cohorts:
    """A sequence of cohorts. `cohorts[r]` is round `r`, whatever was read before."""

    def __init__(
        self,
        dataset: GroupedDataset,
        *,
        size: int,
        steps: int,
        batch_size: int,
        sequence_length: int,
        seed: int,
        text: str = "text",
        rounds: int | None = None,
    ):
        """See `cohorts`."""
        for name, value in (
            ("size", size),
            ("steps", steps),
            ("batch_size", batch_size),
            ("sequence_length", sequence_length),
        ):
            if value < 1:
                raise ValueError(f"cohorts({name}={value}): give at least 1.")
        if size > len(dataset):
            raise ValueError(
                f"A cohort of size={size} different clients needs as many groups; the data set has "
                f"{len(dataset)}. Lower size, or group the data more finely."
            )
        if text not in dataset.schema.names or not is_text(dataset.schema.field(text).type):
            raise ValueError(
                f"cohorts(text={text!r}): the data set has no text column of this name; its "
                "columns are "
                f"{dict(zip(dataset.schema.names, map(str, dataset.schema.types), strict=True))}."
            )
        self._dataset = dataset
        self._size = size
        self._shape = _Shape(steps, batch_size, sequence_length)
        self._seed = seed
        self._text = text
        self._rounds = rounds

    @property
    def rounds_per_epoch(self) -> int:
        """After so many rounds every group was a client once, up to a rest smaller than a "
        "cohort."""
        return len(self._dataset) // self._size

    def __len__(self) -> int:
        if self._rounds is None:
            raise TypeError("These cohorts have no end. Give cohorts(rounds=...) to bound them.")
        return self._rounds

    def __getitem__(self, number: int) -> Cohort:
        last = sys.maxsize if self._rounds is None else self._rounds
        if not 0 <= number < last:
            raise IndexError(f"Round {number} of {last} rounds; rounds count from 0.")
        places = self._places(number)
        return _stack([self._client(number, int(place)) for place in places], self._shape)

    def __iter__(self) -> Iterator[Cohort]:
        number = 0
        while self._rounds is None or number < self._rounds:
            yield self[number]
            number += 1

    def to_grain(
        self, *, start: int = 0, threads: int = 2, buffer: int = 4
    ) -> "grain.IterDataset[Cohort]":
        """The cohorts as a Grain data set: one pipeline whose element is a client, batched to
        cohorts.

        **Arguments:**

        - `start`: the first round to give.
        - `threads`: how many threads read ahead.
        - `buffer`: how many cohorts are read ahead.

        **Returns:**

        A `grain.IterDataset` of `Cohort`. Its iterators have `get_state` and `set_state`; resuming
        is exact, and costs the same at every round.
        """
        # Grain imports JAX's modules (it starts no backend); the rest of this package does without
        # both.
        import grain

        shape = self._shape
        pipeline = grain.MapDataset.source(_ClientSource(self, start)).batch(
            self._size, drop_remainder=True, batch_fn=lambda clients: _stack(clients, shape)
        )
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
        return pipeline.to_iter_dataset(options)

    def _places(self, number: int) -> np.ndarray:
        """Which groups, by number in the data set, are the clients of a round."""
        epoch, part = divmod(number, self.rounds_per_epoch)
        start, size = part * self._size, self._size
        return permuted_range(start, start + size, len(self._dataset), "cohorts", self._seed, epoch)

    def _client(self, number: int, place: int) -> _Client:
        group = self._dataset[place]
        context = ("batches", self._seed, number, to_key(group.id))
        return _Client(number, group.id, *_batches(group, self._text, self._shape, context))


def cohorts(
    dataset: GroupedDataset,
    *,
    size: int,
    steps: int,
    batch_size: int,
    sequence_length: int,
    seed: int,
    text: str = "text",
    rounds: int | None = None,
) -> Cohorts:
    """The clients of each round with their batches of byte-level tokens.

    Clients are drawn without replacement: within an epoch no group is drawn twice, and every epoch
    has an order of its own. A client's text is joined, with a separator between documents, and cut
    into sequences; no token crosses from one group to another, and none is left out unless there
    are more batches than `steps`. In that case as many are drawn, anew in each round.

    **Arguments:**

    - `dataset`: the groups to draw from.
    - `size`: clients per round.
    - `steps`: the most local steps that a client does in a round. A client with less data does
        fewer: its last step may hold fewer than `batch_size` sequences, and a client without data
        does none.
    - `batch_size`: sequences per local step.
    - `sequence_length`: targets per sequence; a sequence has one token more.
    - `seed`: any integer; everything is a pure function of (seed, round, group id).
    - `text`: the column to train on.
    - `rounds`: how many rounds there are; without end by default.

    **Returns:**

    A `Cohorts`: index it by round, iterate it, or take `.to_grain()`. Raises `ValueError` for a
    cohort larger than the data set or a column that is not text.

    !!! Example

        ```python
        cohorts = fx.data.cohorts(
            dataset, size=16, steps=4, batch_size=8, sequence_length=64, seed=0
        )
        cohort = cohorts[0]
        cohort.batches["tokens"].shape  # (16, 4, 8, 65)
        ```
    """
    return Cohorts(
        dataset,
        size=size,
        steps=steps,
        batch_size=batch_size,
        sequence_length=sequence_length,
        seed=seed,
        text=text,
        rounds=rounds,
    )


@final
class _ClientSource:
    """Every client of every round, one after the other."""

    def __init__(self, cohorts: Cohorts, start: int):
        self._cohorts = cohorts
        self._start = start

    def __len__(self) -> int:
        size, rounds = self._cohorts._size, self._cohorts._rounds
        last = sys.maxsize // size if rounds is None else rounds
        return max(0, last - self._start) * size

    def __getitem__(self, index: int) -> _Client:
        number, slot = divmod(index, self._cohorts._size)
        number += self._start
        return self._cohorts._client(number, int(self._cohorts._places(number)[slot]))

    def __repr__(self) -> str:
        return f"_ClientSource({self._cohorts._dataset!r}, seed={self._cohorts._seed})"


def _batches(
    group: Group, text: str, shape: _Shape, context: tuple[str | int | bytes, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """A client's batches: tokens [taken, batch, length + 1] and mask [taken, batch, length].

    The group is read once, in pieces. Every batch of it gets a random priority in turn, and the
    `steps` lowest are kept, so that memory depends on `steps` and not on the group.
    """
    steps, batch_size, length = shape
    stride = batch_size * length
    random = generator(*context)
    kept: list[tuple[float, int, np.ndarray]] = []
    seen, left = 0, np.zeros(0, np.uint16)

    def take(count: int, tokens: np.ndarray) -> None:
        nonlocal kept, seen
        bar = kept[-1][0] if len(kept) == steps else 1.0
        for offset in np.flatnonzero((priorities := random.random(count)) < bar).tolist():
            piece = tokens[offset * stride : (offset + 1) * stride + 1]
            kept.append((float(priorities[offset]), seen + offset, piece.copy()))
        kept = sorted(kept, key=lambda batch: batch[:2])[:steps]
        seen += count

    for chunk in token_chunks(batch.column(text) for batch in group.batches()):
        left = np.concatenate([left, chunk])
        complete = max(0, len(left) - 1) // stride
        take(complete, left)
        left = left[complete * stride :]
    if len(left) > 1:
        take(1, left)
    packed = [pack(piece, length) for _, _, piece in sorted(kept, key=lambda batch: batch[1])]
    tokens = np.zeros((len(packed), batch_size, length + 1), np.int32)
    mask = np.zeros((len(packed), batch_size, length), bool)
    for step, sequences in enumerate(packed):
        tokens[step, : len(sequences.tokens)] = sequences.tokens
        mask[step, : len(sequences.mask)] = sequences.mask
    return tokens, mask


def _stack(clients: "Sequence[_Client]", shape: _Shape) -> Cohort:
    """Clients of one round as one cohort, padded to the same number of steps."""
    steps, batch_size, length = shape
    tokens = np.zeros((len(clients), steps, batch_size, length + 1), np.int32)
    mask = np.zeros((len(clients), steps, batch_size, length), bool)
    step_mask = np.zeros((len(clients), steps), bool)
    for number, client in enumerate(clients):
        taken = len(client.tokens)
        tokens[number, :taken] = client.tokens
        mask[number, :taken] = client.mask
        step_mask[number, :taken] = True
    return Cohort(
        clients[0].round,
        tuple(client.id for client in clients),
        {"tokens": tokens, "mask": mask},
        step_mask,
        mask.any(-1).sum((1, 2)).astype(np.int32),
    )
