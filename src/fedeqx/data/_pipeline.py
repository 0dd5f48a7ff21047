"""Cohorts as a Grain pipeline. Imported when it is used: Grain imports JAX's modules.

Importing Grain starts no JAX backend; but it costs a second, which grouping and reading need not
pay.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import grain

from ._client import Client

if TYPE_CHECKING:
    from ._cohorts import Cohort, Cohorts


def cohort_pipeline(
    cohorts: "Cohorts", *, start: int, threads: int, buffer: int, workers: int
) -> "grain.IterDataset[Cohort]":
    """See `Cohorts.to_grain`."""
    source = _ClientSource(cohorts, start)
    pipeline = grain.MapDataset.source(source).batch(
        source.places_per_round, drop_remainder=True, batch_fn=_Stack(cohorts)
    )
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    stream = pipeline.to_iter_dataset(options)
    if not workers:
        return stream
    _parse_flags()
    return stream.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=buffer)
    )


def round_pipeline(
    cohorts: "Cohorts", number: int, clients: int, *, threads: int, buffer: int
) -> "grain.IterDataset[Cohort]":
    """See `Cohorts.chunks`."""
    pipeline = grain.MapDataset.source(_RoundSource(cohorts, number)).batch(
        clients, drop_remainder=False, batch_fn=_Stack(cohorts, cohorts._options.steps)
    )
    return pipeline.to_iter_dataset(grain.ReadOptions(threads, buffer if threads else 0))


@final
class _ClientSource:
    """Every client of every round, one after the other."""

    def __init__(self, cohorts: "Cohorts", start: int):
        self._cohorts = cohorts
        self._start = start
        self.places_per_round = len(cohorts._places(start))

    def __len__(self) -> int:
        rounds = self._cohorts._rounds
        last = sys.maxsize // self.places_per_round if rounds is None else rounds
        return max(0, last - self._start) * self.places_per_round

    def __getitem__(self, index: int) -> Client:
        number, slot = divmod(index, self.places_per_round)
        number += self._start
        return self._cohorts._client(number, self._cohorts._places(number)[slot])

    def __repr__(self) -> str:
        return f"_ClientSource({self._cohorts._dataset!r})"


@final
class _RoundSource:
    """The clients of one round."""

    def __init__(self, cohorts: "Cohorts", number: int):
        self._cohorts = cohorts
        self._number = number
        self._places = cohorts._places(number)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Client:
        return self._cohorts._client(self._number, self._places[index])

    def __repr__(self) -> str:
        return f"_RoundSource({self._cohorts._dataset!r}, round={self._number})"


@final
class _Stack:
    """Makes a cohort of its clients. A class, so that worker processes can be sent it."""

    def __init__(self, cohorts: "Cohorts", steps: int | None = None):
        self._cohorts = cohorts
        self._steps = steps

    def __call__(self, clients: Sequence[Client]) -> "Cohort":
        return self._cohorts._stack(clients, self._steps)


def _parse_flags() -> None:
    """Grain's processes read command-line flags of absl, which only absl programs parse."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
