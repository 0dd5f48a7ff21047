"""Rounds in a scan, the last one's loss, and its derivatives with respect to all that there is."""

import contextlib
from typing import Any, NamedTuple

import equinox as eqx
import jax

import fedeqx as fx
from fedeqx.learning import AbstractAlgorithm, ClientData, Report, State

_traced = [0]


@contextlib.contextmanager
def traces():
    """Yields a list that, when the block ends, holds how often a run was traced within it."""
    count, before = [0], _traced[0]
    yield count
    count[0] = _traced[0] - before


def run(
    algorithm: AbstractAlgorithm,
    model: Any,
    rounds: fx.Clients[ClientData],
    checkpoint: bool = False,
) -> tuple[State, Report]:
    """The states after, and the reports of, as many rounds as the leading axis of `rounds` has."""
    _traced[0] += 1

    def one_round(algorithm: Any, state: State, cohort: Any, key: Any) -> tuple[State, Report]:
        return algorithm.step(state, cohort, key=key)

    step: Any = eqx.filter_checkpoint(one_round) if checkpoint else one_round

    def body(state, inputs):
        state, report = step(algorithm, state, *inputs)
        return state, (state, report)

    keys = jax.random.split(jax.random.key(0), rounds.value.step_mask.shape[0])
    state = algorithm.init(model, key=jax.random.key(1))
    return jax.lax.scan(body, state, (rounds, keys))[1]


class Outcome(NamedTuple):
    """States and reports of all rounds, and the derivatives of the loss that the last one reports.

    That loss is what the rounds before it were for.
    """

    states: State
    reports: Report
    by_algorithm: Any
    by_model: Any


@eqx.filter_jit
def value_and_gradients(algorithm, model, rounds, checkpoint: bool = False) -> Outcome:
    def loss(both):
        algorithm, model = both
        states, reports = run(algorithm, model, rounds, checkpoint)
        return reports.client.loss[-1], (states, reports)

    gradient: Any = eqx.filter_grad(loss, has_aux=True)
    (by_algorithm, by_model), (states, reports) = gradient((algorithm, model))
    return Outcome(states, reports, by_algorithm, by_model)
