"""The training loop: the one place where rounds follow each other."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..data import Cohort
from ..federated import Clients
from ..learning import AbstractAlgorithm, ClientData, Report, State


class RoundResult(NamedTuple):
    """What a callback is told after a round.

    - `round`: the round's number, from 0.
    - `state`: the algorithm's state after it.
    - `report`: the algorithm's report, as NumPy values.
    - `ids`: the group ids of its clients.
    - `seconds`: from the end of the round before to the end of this one.
    """

    round: int
    state: State
    report: Report
    ids: Sequence[Any]
    seconds: float


Callback = Callable[[RoundResult], None]


def train(
    algorithm: AbstractAlgorithm,
    state: State,
    cohorts: Iterable[Cohort],
    *,
    start: int = 0,
    stop: int,
    key: Key[Array, ""],
    callbacks: Sequence[Callback] = (),
) -> State:
    """Runs rounds `start` to `stop - 1` of an algorithm.

    Round `r` uses the cohort of round `r` and a key made from `key` and `r`, and nothing else: a
    run that is stopped and goes on from a saved state gives the numbers of one that was not. The
    next cohort is asked for while the devices compute.

    **Arguments:**

    - `algorithm`: takes the steps.
    - `state`: from `algorithm.init`, or saved after round `start - 1`.
    - `cohorts`: the cohorts of rounds `start`, `start + 1` and so on, such as
        `fx.data.cohorts(...).to_grain(start=start)`, which reads ahead.
    - `start`, `stop`: the rounds to run.
    - `key`: the key of the whole run.
    - `callbacks`: called in order after each round.

    **Returns:** the state after round `stop - 1`. Raises a `ValueError` if a cohort is of another
    round, or if there are no more.
    """
    step = eqx.filter_jit(algorithm.step)
    upcoming = iter(cohorts)
    cohort = _of_round(upcoming, start) if start < stop else None
    began = time.perf_counter()
    for number in range(start, stop):
        assert cohort is not None
        state, report = step(state, to_clients(cohort), key=jax.random.fold_in(key, number))
        ids = cohort.ids
        cohort = _of_round(upcoming, number + 1) if number + 1 < stop else None
        report = jax.tree.map(np.asarray, jax.block_until_ready(report))
        ended = time.perf_counter()
        for callback in callbacks:
            callback(RoundResult(number, state, report, ids, ended - began))
        began = ended
    return state


def _of_round(cohorts: Iterator[Cohort], number: int) -> Cohort:
    cohort = next(cohorts, None)
    if cohort is None:
        raise ValueError(f"The cohorts end before round {number}; give as many as rounds.")
    if cohort.round != number:
        raise ValueError(
            f"Round {number} got the cohort of round {cohort.round}; start the cohorts where the "
            f"training starts, such as `cohorts.to_grain(start=...)`."
        )
    return cohort


def to_clients(cohort: Cohort) -> Clients[ClientData]:
    """A cohort as the algorithms take it; a client's seed is a hash of its group id."""
    seeds = np.array([client_seed(group_id) for group_id in cohort.ids], np.uint32)
    arrays = (cohort.batches, cohort.step_mask, cohort.num_examples, seeds)
    return Clients(ClientData(*jax.tree.map(jnp.asarray, arrays)))


def client_seed(group_id: Any) -> int:
    """A 32-bit number that depends on the group id alone (7 and "7" differ)."""
    return int.from_bytes(hashlib.blake2b(repr(group_id).encode(), digest_size=4).digest(), "big")
