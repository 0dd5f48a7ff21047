"""What a differentiated run gives, held against the oracle or against another run."""

import jax
import numpy as np

from ._problem import NpRounds, cohort_of, model_of, params_of, start
from ._registry import Entry, expected_gradients, hypergradients
from ._run import Outcome, value_and_gradients


def outcome(entry: Entry, rounds: NpRounds, *, checkpoint: bool = False, **other: float) -> Outcome:
    """A run of all rounds in JAX, with `other` in place of some hyperparameters."""
    algorithm = entry.algorithm(**other)
    return value_and_gradients(algorithm, model_of(start()), cohort_of(rounds), checkpoint)


def reports_of(found: Outcome) -> np.ndarray:
    """As the oracles list them: loss, steps, clients used, total weight, norm; by round."""
    client, aggregator, server = found.reports
    parts = (*client, *aggregator, *server)
    return np.stack([np.asarray(part, np.float64) for part in parts], axis=-1)


def assert_oracles(
    entry: Entry, found: Outcome, rounds: NpRounds, tol: float = 1e-6, **other: float
) -> None:
    history, reports = entry.expected(start(), rounds, **other)
    np.testing.assert_allclose(params_of(found.states.model), history, rtol=tol, atol=tol)
    np.testing.assert_allclose(reports_of(found), reports, rtol=tol, atol=tol)


def assert_oracles_gradients(
    entry: Entry, found: Outcome, rounds: NpRounds, rtol: float = 1e-4
) -> None:
    by_hyper, by_params = expected_gradients(entry, start(), rounds)
    assert_gradients(entry, found, by_hyper, by_params, rtol)


def assert_gradients(entry: Entry, found: Outcome, by_hyper, by_params, rtol: float) -> None:
    scale = max(abs(value) for value in by_hyper.values())
    for name, value in hypergradients(entry, found.by_algorithm).items():
        np.testing.assert_allclose(
            value, by_hyper[name], rtol=rtol, atol=1e-2 * rtol * scale, err_msg=name
        )
    np.testing.assert_allclose(
        params_of(found.by_model), by_params, rtol=rtol, atol=rtol * np.abs(by_params).max()
    )


def assert_same_outcome(entry: Entry, found: Outcome, expected: Outcome, rtol: float) -> None:
    for a, b in zip(jax.tree.leaves(found[:2]), jax.tree.leaves(expected[:2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    by_hyper = hypergradients(entry, expected.by_algorithm)
    assert_gradients(entry, found, by_hyper, params_of(expected.by_model), rtol)
