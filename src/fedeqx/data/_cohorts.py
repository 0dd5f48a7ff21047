"""Cohorts: the clients of each round with their batches, as a pure function of (seed, round)."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from ._client import Client, ClientOptions, empty_client, read_client
from ._dataset import GroupedDataset
from ._ids import GroupId
from ._sampling import AbstractSampling, make_sampling
from ._tokens import AbstractTokenizer, token_source

if TYPE_CHECKING:
    import grain


class Cohort(NamedTuple):
    """The clients of one round. A client's absent steps and sequences are padding, and masked.

    - `round`: the round's number.
    - `ids`: the clients' group ids; `None` for a place that stays empty (Poisson sampling).
    - `batches`: `"tokens"`, int32 [clients, steps, batch, sequence_length + 1], and `"mask"`, bool
        [clients, steps, batch, sequence_length], which targets are real.
    - `step_mask`: bool [clients, steps]; which local steps a client does.
    - `num_examples`: int32 [clients]; the sequences that a client trains on, counted once for each
        local epoch.
    """

    round: int
    ids: tuple[GroupId | None, ...]
    batches: dict[str, np.ndarray]
    step_mask: np.ndarray
    num_examples: np.ndarray


@final
class Cohorts:
    """A sequence of cohorts. `cohorts[r]` is round `r`, whatever was read before."""

    def __init__(
        self,
        dataset: GroupedDataset,
        *,
        size: int,
        sampling: AbstractSampling,
        client: ClientOptions,
        step_buckets: tuple[int, ...],
        process: tuple[int, int],
        rounds: int | None,
    ):
        """See `cohorts`."""
        self._dataset = dataset
        self._size = size
        self._sampling = sampling
        self._options = client
        self._buckets = step_buckets
        self._process = process
        self._rounds = rounds
        self._last: tuple[int, list[int]] = (-1, [])

    @property
    def rounds_per_epoch(self) -> int:
        """How many rounds have as many clients as there are groups, up to a rest."""
        return max(1, len(self._dataset) // self._size)

    def __len__(self) -> int:
        if self._rounds is None:
            raise TypeError("These cohorts have no end. Give cohorts(rounds=...) to bound them.")
        return self._rounds

    def __getitem__(self, number: int) -> Cohort:
        self._check_round(number)
        return self._stack([self._client(number, place) for place in self._places(number)])

    def __iter__(self) -> Iterator[Cohort]:
        number = 0
        while self._rounds is None or number < self._rounds:
            yield self[number]
            number += 1

    def to_grain(
        self, *, start: int = 0, threads: int = 2, buffer: int = 4, workers: int = 0
    ) -> "grain.IterDataset[Cohort]":
        """The cohorts as a Grain data set: one pipeline whose element is a client, batched.

        **Arguments:**

        - `start`: the first round to give.
        - `threads`: how many threads read ahead, in each process.
        - `buffer`: how many cohorts are read ahead, in each process.
        - `workers`: how many processes read; 0 reads in this one. The cohorts and their order are
            the same for any number. Each starts Python anew, so a script needs the usual
            `if __name__ == "__main__":`.

        **Returns:**

        A `grain.IterDataset` of `Cohort`. Its iterators have `get_state` and `set_state`; resuming
        is exact, and costs the same at every round.
        """
        from ._pipeline import cohort_pipeline

        return cohort_pipeline(self, start=start, threads=threads, buffer=buffer, workers=workers)

    def chunks(
        self, number: int, clients: int, *, threads: int = 2, buffer: int = 2
    ) -> "grain.IterDataset[Cohort]":
        """The cohort of one round in smaller cohorts: for one that does not fit in memory.

        **Arguments:**

        - `number`: the round.
        - `clients`: how many clients a chunk has; the last may have fewer.
        - `threads`: how many threads read ahead; 0 reads a chunk when it is asked for.
        - `buffer`: how many chunks are read ahead, and so how many are in memory.

        **Returns:**

        A `grain.IterDataset` of `Cohort`, which can be iterated any number of times. Joined, the
        chunks are `self[number]`, but all have the most steps, whatever `step_buckets` is: no
        client is read to learn another's padding. Raises `IndexError` where there is no such round.

        !!! Example

            ```python
            for cohort in cohorts.chunks(0, clients=8):
                cohort.batches["tokens"].shape  # (8, steps, batch_size, sequence_length + 1)
            ```
        """
        from ._pipeline import round_pipeline

        self._check_round(number)
        for name, value, least in (("clients", clients, 1), ("threads", threads, 0)):
            if value < least:
                raise ValueError(f"chunks({name}={value}): give at least {least}.")
        if buffer < max(1, threads):
            raise ValueError(
                f"chunks(buffer={buffer}): give at least 1, and a chunk for each of the "
                f"threads={threads}."
            )
        return round_pipeline(self, number, clients, threads=threads, buffer=buffer)

    def _check_round(self, number: int) -> None:
        last = sys.maxsize if self._rounds is None else self._rounds
        if not 0 <= number < last:
            raise IndexError(f"Round {number} of {last} rounds; rounds count from 0.")

    def _places(self, number: int) -> list[int]:
        """Which groups, by number in the data set, this process has in a round."""
        last = self._last
        if last[0] == number:
            return last[1]
        index, count = self._process
        places = self._sampling.places(number)
        share = -(-len(places) // count)
        padded = np.concatenate([places, np.full(share * count - len(places), -1)])
        own = padded[index * share : (index + 1) * share].tolist()
        # A pipeline asks once per client; one assignment, so that threads see a whole pair.
        self._last = number, own
        return own

    def _client(self, number: int, place: int) -> Client:
        if place < 0:
            return empty_client(number, self._options)
        return read_client(self._dataset[place], number, self._options)

    def _stack(self, clients: Sequence[Client], steps: int | None = None) -> Cohort:
        """Clients of one round as one cohort, padded to `steps`, or to the least bucket."""
        _, batch_size, length = self._options[:3]
        if steps is None:
            most = max(len(client.tokens) for client in clients)
            steps = next(bucket for bucket in self._buckets if bucket >= most)
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


def cohorts(
    dataset: GroupedDataset,
    *,
    size: int,
    steps: int,
    batch_size: int,
    sequence_length: int,
    seed: int,
    text: str = "text",
    tokenizer: AbstractTokenizer | None = None,
    tokens: str | None = None,
    epochs: int = 1,
    rounds: int | None = None,
    sampling: str | Sequence[Any] = "epoch",
    step_buckets: Sequence[int] = (),
    process: tuple[int, int] = (0, 1),
) -> Cohorts:
    """The clients of each round with their batches of tokens.

    A client's text is joined, with a separator between documents, and cut into sequences; no token
    crosses from one group to another, and none is left out unless there are more batches than
    `steps`. In that case as many are drawn, anew in each round.

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
    - `tokenizer`: what makes tokens of the text; by default its bytes are the tokens.
    - `tokens`: a column of token lists to train on instead of text, such as `tokenize` writes. Its
        separator is then that of the tokenizer; other token lists are joined without one.
    - `epochs`: how often a client goes through its batches in a round, within `steps`.
    - `rounds`: how many rounds there are; without end by default.
    - `sampling`: how clients are drawn.

        - `"epoch"`: without replacement; every group once before any comes again, up to a rest
          smaller than a cohort, in a new order each time.
        - `"uniform"`: each round on its own draws different groups.
        - `"replacement"`: each place of a cohort on its own draws any group.
        - `"poisson"`: each group on its own, with probability `size / groups`. Cohorts have a fixed
          number of places above `size`; those that stay empty have the id `None` and do no steps.
        - `"weighted"`: each round draws different groups in proportion to their examples.
        - a list of lists of `size` ids: these cohorts, again and again.

    - `step_buckets`: numbers of steps, ascending up to `steps`, to one of which a cohort is padded:
        the least that holds its longest client. Each costs one compilation, and saves the time of
        padding. By default all cohorts have `steps`.
    - `process`: `(index, count)` of this JAX process, to get its share of every cohort alone.

    **Returns:**

    A `Cohorts`: index it by round, iterate it, or take `.to_grain()`. Raises `ValueError` for
    settings that cannot be met or a column that is not what it is given as.

    !!! Example

        ```python
        cohorts = fx.data.cohorts(
            dataset, size=16, steps=4, batch_size=8, sequence_length=64, seed=0
        )
        cohort = cohorts[0]
        cohort.batches["tokens"].shape  # (16, 4, 8, 65)
        ```
    """
    for name, value in (
        ("size", size),
        ("steps", steps),
        ("batch_size", batch_size),
        ("sequence_length", sequence_length),
        ("epochs", epochs),
    ):
        if value < 1:
            raise ValueError(f"cohorts({name}={value}): give at least 1.")
    source = token_source(
        "cohorts",
        schema=dataset.schema,
        manifest=dataset.manifest,
        text=text,
        tokenizer=tokenizer,
        tokens=tokens,
    )
    buckets = tuple(step_buckets) or (steps,)
    if list(buckets) != sorted(set(buckets)) or buckets[0] < 1 or buckets[-1] != steps:
        raise ValueError(
            f"cohorts(step_buckets={buckets}): give ascending numbers from 1 up to steps={steps}."
        )
    index, count = process
    if not 0 <= index < count or size % count:
        raise ValueError(
            f"cohorts(process={process}): the index must be below the count, and the count divide "
            f"size={size}."
        )
    return Cohorts(
        dataset,
        size=size,
        sampling=make_sampling(dataset, sampling, size, seed),
        client=ClientOptions(steps, batch_size, sequence_length, epochs, seed, source),
        step_buckets=buckets,
        process=process,
        rounds=rounds,
    )
