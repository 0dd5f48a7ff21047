"""What algorithms are by definition: FedSGD as a special case, averaging of models, weights."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array
from learning.helpers import (
    cohort_of,
    make_rounds,
    model_of,
    neuron_loss,
    np_loss_and_grad,
    one_round,
    params_of,
    start,
)

import fedeqx as fx
from fedeqx.learning import (
    AbstractAggregator,
    ClientData,
    FedAvg,
    FedSGD,
    LocalGradient,
    LocalSGD,
    Optimizer,
    Round,
    WeightedMean,
)

sgd = lambda rate: Optimizer(optax.sgd, learning_rate=rate)


@eqx.filter_jit
def after_one_round(algorithm, model, cohort):
    state = algorithm.init(model, key=jax.random.key(0))
    state, report = algorithm.step(state, cohort, key=jax.random.key(1))
    return algorithm.model(state), report


def uneven_cohort(steps: int):
    """Of the problem's cohorts the first, with every step of every client real."""
    rounds = one_round(make_rounds(), 0)
    rounds = rounds._replace(
        x=rounds.x[:, :steps], y=rounds.y[:, :steps], step_mask=np.ones((5, steps), bool)
    )
    return rounds


@pytest.mark.parametrize("by", ["examples", "clients"])
def test_fedavg_of_one_full_batch_step_is_fedsgd(by):
    cohort = cohort_of(uneven_cohort(steps=1))
    mean = WeightedMean(by=by)
    averaged, told = after_one_round(
        FedAvg(neuron_loss, client_optimizer=sgd(0.3), server_optimizer=sgd(1.0), aggregator=mean),
        model_of(start()),
        cohort,
    )
    stepped, also_told = after_one_round(
        FedSGD(neuron_loss, server_optimizer=sgd(0.3), aggregator=mean), model_of(start()), cohort
    )
    np.testing.assert_allclose(params_of(averaged), params_of(stepped), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(told.client.loss, also_told.client.loss, rtol=1e-6)
    np.testing.assert_allclose(told.server.update_norm, 0.3 * also_told.server.update_norm, 1e-6)


def test_fedsgd_is_gradient_descent_on_the_loss_of_all_examples():
    """Clients with as many batches as weight: the federated loss is the loss of the pooled data."""
    rounds = uneven_cohort(steps=3)
    step_mask = np.arange(3) < np.array([1, 2, 3, 0, 2])[:, None]
    rounds = rounds._replace(step_mask=step_mask, num_examples=2 * step_mask.sum(axis=1))
    model, report = after_one_round(
        FedSGD(neuron_loss, server_optimizer=sgd(0.3)), model_of(start()), cohort_of(rounds)
    )
    pooled = rounds.x[step_mask].reshape(-1, 3), rounds.y[step_mask].reshape(-1)
    loss, gradient = np_loss_and_grad(start(), *pooled)
    np.testing.assert_allclose(params_of(model), start() - 0.3 * gradient, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(report.client.loss, loss, rtol=1e-6)


def test_plain_fedavg_averages_the_clients_models():
    """At server rate 1, its default: the mean of where each client alone would end."""
    rounds = one_round(make_rounds(), 2)
    algorithm = FedAvg(neuron_loss, client_optimizer=sgd(0.3))
    found, _ = after_one_round(algorithm, model_of(start()), cohort_of(rounds))
    total = np.zeros(4)
    for i, n in enumerate(rounds.num_examples):
        alone = type(rounds)(*(leaf[i : i + 1] for leaf in rounds))
        own, _ = after_one_round(algorithm, model_of(start()), cohort_of(alone))
        total += n * params_of(own)
    expected = total / rounds.num_examples.sum()
    np.testing.assert_allclose(params_of(found), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float16])
def test_weights_by_examples_and_by_clients(dtype):
    """Of three clients whose losses are 1, 2 and 3, and a fourth that has no example."""
    num_examples = np.array([1, 5, 2, 0], dtype)
    data = ClientData(
        jnp.array([[1.0], [2.0], [3.0], [9.0]]),
        jnp.ones((4, 1), bool),
        jnp.asarray(num_examples),
        jnp.arange(4, dtype=jnp.uint32),
    )
    loss = lambda model, batch, key: batch * model
    for aggregator, total, mean in [
        (WeightedMean(by="examples"), 8.0, 17 / 8),
        (WeightedMean(by="clients"), 3.0, 2.0),
    ]:
        algorithm = FedSGD(loss, server_optimizer=sgd(1.0), aggregator=aggregator)
        model, report = after_one_round(algorithm, jnp.array(1.0), fx.Clients(data))
        np.testing.assert_allclose(model, 1.0 - mean, rtol=1e-6)
        np.testing.assert_allclose(report.client.loss, mean, rtol=1e-6)
        assert report.aggregator == (3, total)
        np.testing.assert_allclose(report.server.update_norm, mean, rtol=1e-6)


def test_client_work_runs_alone():
    """One client's work needs no cohort: this is how a client fine-tunes."""
    rounds = one_round(make_rounds(), 0)
    data: Any = next(iter(cohort_of(rounds)))
    zero = jnp.zeros((), jnp.int32)
    options = {"round": zero, "key": jax.random.key(0)}
    update, report = LocalSGD(neuron_loss, sgd(0.3)).run(model_of(start()), data, **options)
    local, losses = start(), []
    for s in np.flatnonzero(rounds.step_mask[0]):
        loss, gradient = np_loss_and_grad(local, rounds.x[0, s], rounds.y[0, s])
        local, losses = local - 0.3 * gradient, [*losses, loss]
    np.testing.assert_allclose(params_of(update), local - start(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(report, np.array([np.mean(losses), len(losses)]), rtol=1e-6)


def test_client_work_without_a_real_step_is_none():
    rounds = one_round(make_rounds(), 0)
    rounds = rounds._replace(step_mask=np.zeros_like(rounds.step_mask))
    data: Any = next(iter(cohort_of(rounds)))
    options = {"round": jnp.zeros((), jnp.int32), "key": jax.random.key(0)}
    for work in (LocalSGD(neuron_loss, sgd(0.3)), LocalGradient(neuron_loss)):
        update, report = work.run(model_of(start()), data, **options)
        np.testing.assert_array_equal(params_of(update), np.zeros(4))
        np.testing.assert_array_equal(report, [0.0, 0.0])


class Recency(AbstractAggregator):
    """The mean of this round's update and the last one's: an aggregator that has a state."""

    def init(self, model):
        return jax.tree.map(jnp.zeros_like, model)

    def weigh(self, data):
        return WeightedMean().weigh(data)

    def aggregate(self, state, values, weights):
        (update, told), _, report = WeightedMean().aggregate(None, values, weights)
        mixed = jax.tree.map(lambda new, old: (new + old) / 2, update, state)
        return (mixed, told), update, report


def test_an_aggregator_of_ones_own_keeps_its_state():
    rounds = make_rounds()
    num_examples = rounds.num_examples.copy()
    num_examples[1] = 0
    rounds = rounds._replace(num_examples=num_examples)
    algorithm = Round(LocalGradient(neuron_loss), Recency(), sgd(0.5))
    state = algorithm.init(model_of(start()))
    step = eqx.filter_jit(algorithm.step)
    params, last = start(), np.zeros(4)
    for r in range(3):
        state, _ = step(state, cohort_of(one_round(rounds, r)), key=jax.random.key(r))
        if num_examples[r].any():
            update = -_mean_gradient(params, one_round(rounds, r))
            params, last = params + 0.5 * (update + last) / 2, update
        np.testing.assert_allclose(params_of(state.model), params, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(params_of(state.aggregator), last, rtol=1e-6, atol=1e-6)


def _mean_gradient(params: np.ndarray, rounds: Any) -> np.ndarray:
    total = np.zeros(4)
    for x, y, mask, n, _ in zip(*rounds, strict=True):
        if n:
            each = [np_loss_and_grad(params, x[s], y[s])[1] for s in np.flatnonzero(mask)]
            total += n * np.mean(each, axis=0)
    return total / rounds.num_examples.sum()


def test_a_server_rate_of_zero_changes_nothing_but_counts_the_round():
    cohort = cohort_of(one_round(make_rounds(), 0))
    algorithm = FedAvg(neuron_loss, client_optimizer=sgd(0.3), server_optimizer=sgd(0.0))
    state = algorithm.init(model_of(start()), key=jax.random.key(0))
    after, _ = eqx.filter_jit(algorithm.step)(state, cohort, key=jax.random.key(1))
    assert eqx.tree_equal(after.model, state.model)
    found: Array = after.round
    assert found == 1
