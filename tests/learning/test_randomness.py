"""A client's randomness: of the round's key, its own seed and the step, and of nothing else."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import fedeqx as fx
from fedeqx.learning import ClientData, FedAvg, FedSGD, Optimizer

WIDTH = 4
SGD = Optimizer(optax.sgd, learning_rate=1.0)


def drawn_loss(model, batch, key):
    """Its gradient is what the step drew, at the place that the batch names."""
    return jnp.sum(model[batch] * jax.random.uniform(key, (WIDTH,)))


@eqx.filter_jit
def draws(algorithm, seeds, key, step_mask=None):
    """What each client drew in each of its steps: `[clients, steps, WIDTH]`.

    Each client and step writes to a row of its own. All clients weigh 1.
    """
    clients = seeds.shape[0]
    steps = 2 if step_mask is None else step_mask.shape[1]
    data = ClientData(
        jnp.arange(clients * steps, dtype=jnp.int32).reshape(clients, steps),
        jnp.ones((clients, steps), bool) if step_mask is None else step_mask,
        jnp.ones(clients, jnp.int32),
        seeds,
    )
    model = jnp.zeros((clients * steps, WIDTH))
    state = algorithm.init(model, key=jax.random.key(99))
    state, _ = algorithm.step(state, fx.Clients(data), key=key)
    return -clients * algorithm.model(state).reshape(clients, steps, WIDTH)


FEDAVG = FedAvg(drawn_loss, client_optimizer=SGD)
FEDSGD = FedSGD(drawn_loss, server_optimizer=SGD)
each = pytest.mark.parametrize(
    ("algorithm", "factor"), [(FEDAVG, 1), (FEDSGD, 2)], ids=["fedavg", "fedsgd"]
)
seeds = lambda *numbers: jnp.array(numbers, jnp.uint32)


@each
def test_clients_steps_and_rounds_draw_apart(algorithm, factor):
    """Two steps at FedSGD are averaged, so that each counts half."""
    found = [
        factor * np.asarray(draws(algorithm, seeds(5, 0, 2**32 - 1), jax.random.key(r)))
        for r in range(2)
    ]
    numbers = np.stack(found).ravel()
    assert len(np.unique(numbers.round(5))) == numbers.size
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.15


@each
def test_the_same_key_and_seed_draw_the_same_anywhere(algorithm, factor):
    """At another place, in a larger cohort, beside other clients, twice in one cohort."""
    del factor
    key = jax.random.key(3)
    few = np.asarray(draws(algorithm, seeds(11, 7), key))
    many = np.asarray(draws(algorithm, seeds(1, 7, 2, 11, 11), key))
    np.testing.assert_allclose(many[3], few[0], rtol=1e-5)
    np.testing.assert_allclose(many[4], few[0], rtol=1e-5)
    np.testing.assert_allclose(many[1], few[1], rtol=1e-5)
    np.testing.assert_array_equal(few, draws(algorithm, seeds(11, 7), key))


def test_a_mesh_draws_the_same():
    key = jax.random.key(3)
    expected = draws(FEDAVG, seeds(11, 7, 5), key)
    with jax.set_mesh(jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))):
        found = draws(FEDAVG, seeds(11, 7, 5), key)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fedavg_and_fedsgd_draw_the_same():
    """So that they can be compared at equal randomness."""
    key, mask = jax.random.key(3), jnp.array([[True], [True]])
    both = [draws(algorithm, seeds(1, 2), key, mask) for algorithm in (FEDAVG, FEDSGD)]
    np.testing.assert_allclose(*both, rtol=1e-5)


def test_padding_does_not_move_the_draws_of_real_steps():
    """A cohort padded to more steps is the same cohort."""
    key = jax.random.key(3)
    short = draws(FEDAVG, seeds(1, 2), key)
    longer = draws(FEDAVG, seeds(1, 2), key, jnp.array([[True, True, False]] * 2))
    np.testing.assert_allclose(longer[:, :2], short, rtol=1e-5)
    np.testing.assert_array_equal(longer[:, 2], np.zeros((2, WIDTH)))


class Dropped(eqx.Module):
    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __call__(self, x, key):
        return jnp.sum(self.dropout(self.linear(x), key=key))


def dropout_loss(model, batch, key):
    return jnp.mean(jax.vmap(model)(batch, jax.random.split(key, batch.shape[0])))


def test_dropout_masks_differ_between_clients_and_in_a_batch():
    """Which outputs were kept shows in the gradient of the bias: 0 or 2 for each example."""
    linear = eqx.nn.Linear(2, 32, key=jax.random.key(0))
    model = Dropped(linear, eqx.nn.Dropout(0.5))
    algorithm = FedSGD(dropout_loss, server_optimizer=SGD)

    @eqx.filter_jit
    def kept(seed, key):
        data = ClientData(
            jnp.ones((1, 1, 2, 2)), jnp.ones((1, 1), bool), jnp.ones(1, jnp.int32), seed
        )
        state = algorithm.init(model, key=jax.random.key(1))
        state, _ = algorithm.step(state, fx.Clients(data), key=key)
        found = algorithm.model(state)
        assert found.dropout.p == 0.5
        return linear.bias - found.linear.bias

    found = [np.asarray(kept(seeds(i), jax.random.key(2))) for i in (0, 1, 0)]
    for mask in found:
        # The mean of two examples, each 0 or 2; both kinds of mean if the two masks differ.
        assert set(mask.round(4)) == {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0] != found[1]).any()
    assert (found[0] != np.asarray(kept(seeds(0), jax.random.key(3)))).any()
