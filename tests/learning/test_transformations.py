"""Every registered algorithm under vmap, on a mesh, checkpointed, in 64 bits and without `jit`."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from learning.helpers import (
    ALGORITHMS,
    CLIENTS,
    ROUNDS,
    Outcome,
    assert_oracles,
    assert_oracles_gradients,
    assert_same_outcome,
    cohort_of,
    each_algorithm,
    make_rounds,
    model_of,
    one_round,
    outcome,
    params_of,
    run,
    start,
    traces,
)
from learning.helpers._problem import neuron_loss

from fedeqx.learning import FedAvg, FedSGD, Optimizer
from fedeqx.learning._algorithm import Round


@each_algorithm
def test_vmap_sweeps_each_hyperparameter(entry):
    """One call for all values gives what a run for each does."""
    rounds = make_rounds()
    algorithms, expected = [], []
    for factor, name in [(0.5, "rate"), (1.2, list(entry.hyper)[-1]), (0.9, "rate")]:
        other = {name: factor * entry.hyper[name]}
        algorithms.append(entry.algorithm(**other))
        expected.append(outcome(entry, rounds, **other))
    stacked = jtu.tree_map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *algorithms)
    sweep = eqx.filter_jit(eqx.filter_vmap(run, in_axes=(eqx.if_array(0), None, None)))
    states, reports = sweep(stacked, model_of(start()), cohort_of(rounds))
    for i, one in enumerate(expected):
        pairs = zip(jax.tree.leaves((states, reports)), jax.tree.leaves(one[:2]), strict=True)
        for found, want in pairs:
            np.testing.assert_allclose(found[i], want, rtol=1e-5, atol=1e-6)
    assert len(np.unique(params_of(states.model)[:, -1, 0])) == 3


@pytest.mark.parametrize("entry", ALGORITHMS[1::4], ids=lambda entry: entry.name)
def test_a_mesh_that_the_cohort_does_not_divide_changes_nothing(entry):
    """Values, reports and all gradients."""
    rounds, expected = make_rounds(), outcome(entry, make_rounds())
    with jax.set_mesh(four_devices()), traces() as count:
        found = outcome(entry, rounds)
    assert count == [1]  # anew, for the mesh
    assert_same_outcome(entry, found, expected, rtol=1e-4)


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("entry", ALGORITHMS[::3], ids=lambda entry: entry.name)
def test_clients_that_run_some_at_a_time_change_nothing(entry, at_once):
    """Values, reports and all gradients, through several rounds."""

    def streamed(**hyper):
        whole: Any = entry.make(**hyper)
        parts = whole.round
        round = Round(parts.work, parts.aggregator, parts.optimizer, at_once)
        return eqx.tree_at(lambda algorithm: algorithm.round, whole, round)

    expected = outcome(entry, make_rounds())
    found = outcome(dataclasses.replace(entry, make=streamed), make_rounds())
    assert_same_outcome(entry, found, expected, rtol=1e-4)


@pytest.mark.parametrize("at_once", [0, -1, True])
def test_at_once_is_checked_when_an_algorithm_is_made(at_once):
    rate = Optimizer(optax.sgd, learning_rate=0.1)
    with pytest.raises(ValueError, match="at_once="):
        FedAvg(neuron_loss, client_optimizer=rate, at_once=at_once)
    with pytest.raises(ValueError, match="at_once="):
        FedSGD(neuron_loss, server_optimizer=rate, at_once=at_once)


@each_algorithm
def test_values_on_a_mesh_are_the_oracles(entry):
    rounds = make_rounds()
    with jax.set_mesh(four_devices()):
        found = eqx.filter_jit(run)(entry.algorithm(), model_of(start()), cohort_of(rounds))
    assert_oracles(entry, Outcome(*found, None, None), rounds)


def four_devices():
    assert CLIENTS % 4
    return jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_kinds_of_meshes_and_models_that_stay_on_one(kind):
    """Two rounds: the second starts from the state that the first left on the mesh."""
    entry, rounds = ALGORITHMS[1], make_rounds()
    algorithm = entry.algorithm()
    history, _ = entry.expected(start(), rounds)
    with jax.set_mesh(jax.make_mesh((2, 2), ("clients", "model"), axis_types=(kind,) * 2)):
        step = eqx.filter_jit(algorithm.step)
        state = algorithm.init(model_of(start()), key=jax.random.key(0))
        for r in range(2):
            state, _ = step(state, cohort_of(one_round(rounds, r)), key=jax.random.key(r))
            np.testing.assert_allclose(params_of(state.model), history[r], rtol=1e-6, atol=1e-6)


@each_algorithm
def test_checkpointed_rounds_in_64_bits_are_the_oracles(entry):
    """To 1e-10, and the gradients to what central differences are good for."""
    rounds = make_rounds(seed=2)
    with jax.enable_x64(True):
        found = outcome(entry, rounds, checkpoint=True)
        assert found.states.model["w"].dtype == found.by_model["w"].dtype == jnp.float64
        # The norm is told in float32.
        exact = found._replace(reports=found.reports._replace(server=_norm64(entry, rounds)))
        assert_oracles(entry, exact, rounds, tol=1e-10)
        assert_oracles_gradients(entry, found, rounds, rtol=1e-6)


def _norm64(entry, rounds):
    return (entry.expected(start(), rounds)[1][:, -1],)


@pytest.mark.parametrize("entry", ALGORITHMS[-2:], ids=lambda entry: entry.name)
def test_without_jit_and_at_one_client(entry):
    """A cohort of one is its client; NumPy arrays are as good as JAX's."""
    rounds = make_rounds()
    alone = np.argmax(rounds.num_examples > 0, axis=1)
    rounds = type(rounds)(*(leaf[np.arange(ROUNDS), alone][:, None] for leaf in rounds))
    algorithm = entry.algorithm()
    state = algorithm.init(model_of(start()), key=jax.random.key(0))
    cohort = jtu.tree_map(np.asarray, cohort_of(one_round(rounds, 0)))
    state, report = algorithm.step(state, cohort, key=jax.random.key(1))
    first = type(rounds)(*(leaf[:1] for leaf in rounds))
    history, reports = entry.expected(start(), first)
    np.testing.assert_allclose(params_of(algorithm.model(state)), history[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(jax.tree.leaves(report), reports[0], rtol=1e-6, atol=1e-6)


@each_algorithm
def test_a_state_has_one_type_through_all_rounds(entry):
    """Structure, shapes, dtypes and weak types, so that states can be scanned, saved, compared."""
    algorithm = entry.algorithm()
    state = algorithm.init(model_of(start()), key=jax.random.key(0))
    cohort = cohort_of(one_round(make_rounds(), 0))
    step = lambda state: algorithm.step(state, cohort, key=jax.random.key(1))[0]
    kind = lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type)
    assert jtu.tree_map(kind, jax.eval_shape(step, state)) == jtu.tree_map(kind, state)


def test_forward_and_reverse_mode_agree():
    """Through Adam at the clients, whose derivative has a rule of its own."""
    entry, rounds = ALGORITHMS[2], make_rounds()

    def loss(rate):
        _, reports = run(entry.algorithm(rate=rate), model_of(start()), cohort_of(rounds))
        return reports.client.loss[-1]

    found = jax.jit(jax.jacfwd(loss))(jnp.asarray(entry.hyper["rate"]))
    expected = outcome(entry, rounds).by_algorithm.round.work.optimizer
    np.testing.assert_allclose(found, expected.hyperparameters["learning_rate"], rtol=1e-4)
