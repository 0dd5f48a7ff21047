"""The training loop: the one place where rounds follow each other."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..data import Cohort
from ..federated import Clients
from ..learning import AbstractAlgorithm, ClientData, Report, State


@runtime_checkable
class CohortSource(Protocol):
    """Anything indexed by round, such as `fx.data.cohorts(...)`."""

    def __getitem__(self, number: int, /) -> Cohort: ...


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
    cohorts: CohortSource,
    *,
    start: int = 0,
    stop: int,
    key: Key[Array, ""],
    callbacks: Sequence[Callback] = (),
) -> State:
    """Runs rounds `start` to `stop - 1` of an algorithm.

    Round `r` uses `cohorts[r]` and a key made from `key` and `r`, and nothing else: a run that is
    stopped and goes on from a saved state gives the numbers of one that was not. The next cohort is
    prepared while the devices compute.

    **Arguments:**

    - `algorithm`: takes the steps.
    - `state`: from `algorithm.init`, or saved after round `start - 1`.
    - `cohorts`: the data of each round.
    - `start`, `stop`: the rounds to run.
    - `key`: the key of the whole run.
    - `callbacks`: called in order after each round.

    **Returns:** the state after round `stop - 1`.
    """
    step = eqx.filter_jit(algorithm.step)
    cohort = cohorts[start] if start < stop else None
    began = time.perf_counter()
    for number in range(start, stop):
        assert cohort is not None
        state, report = step(state, to_clients(cohort), key=jax.random.fold_in(key, number))
        ids = cohort.ids
        cohort = cohorts[number + 1] if number + 1 < stop else None
        report = jax.tree.map(np.asarray, jax.block_until_ready(report))
        ended = time.perf_counter()
        for callback in callbacks:
            callback(RoundResult(number, state, report, ids, ended - began))
        began = ended
    return state


def to_clients(cohort: Cohort) -> Clients[ClientData]:
    """A cohort as the algorithms take it; a client's seed is a hash of its group id."""
    seeds = np.array([client_seed(group_id) for group_id in cohort.ids], np.uint32)
    arrays = (cohort.batches, cohort.step_mask, cohort.num_examples, seeds)
    return Clients(ClientData(*jax.tree.map(jnp.asarray, arrays)))


def client_seed(group_id: Any) -> int:
    """A 32-bit number that depends on the group id alone (7 and "7" differ)."""
    return int.from_bytes(hashlib.blake2b(repr(group_id).encode(), digest_size=4).digest(), "big")
