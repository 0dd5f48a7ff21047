"""`Optimizer`: Optax's own steps, hyperparameters as leaves, schedules that are told the step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learning.helpers import (
    ROUNDS,
    STEPS,
    NpAdam,
    NpSGD,
    cohort_of,
    make_rounds,
    model_of,
    neuron_loss,
    np_fedavg,
    np_fedsgd,
    params_of,
    run,
    start,
)

from fedeqx.learning import FedAvg, FedSGD, Optimizer

step_of = lambda n: jnp.asarray(n, jnp.int32)


def clipped_sgd(learning_rate, max_delta):
    return optax.chain(optax.clip(max_delta), optax.sgd(learning_rate))


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optax.sgd, {"learning_rate": 0.1}),
    "nesterov": (optax.sgd, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optax.adam, {"learning_rate": 0.1, "b1": 0.8, "b2": 0.95, "eps": 1e-3}),
    "adamw": (optax.adamw, {"learning_rate": 0.1, "weight_decay": 0.1}),
    "adagrad": (optax.adagrad, {"learning_rate": 0.1, "initial_accumulator_value": 0.2}),
    "rmsprop": (optax.rmsprop, {"learning_rate": 0.1, "decay": 0.8, "centered": True}),
    "yogi": (optax.yogi, {"learning_rate": 0.1, "eps": 1e-2}),
    "chain": (clipped_sgd, {"learning_rate": 0.1, "max_delta": 0.5}),
}
each_optimizer = pytest.mark.parametrize(
    ("make", "hyper"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys()
)


def params(dtype=jnp.float32):
    return {"w": jnp.arange(1.0, 4.0, dtype=dtype), "b": jnp.ones((), dtype), "none": None}


def gradients(n: int, dtype=jnp.float32):
    return {"w": jnp.array([0.3, -2.0, 1.0], dtype) * (n + 1), "b": jnp.ones((), dtype)}


@each_optimizer
def test_three_steps_are_those_of_optax(make, hyper):
    ours, found = Optimizer(make, **hyper), params()
    state = ours.init(found)
    for n in range(3):
        found, state = ours.update(gradients(n) | {"none": None}, state, found, step_of(n))
    with jax.numpy_dtype_promotion("standard"):
        theirs, expected = make(**hyper), params()
        their_state = theirs.init(expected)
        for n in range(3):
            updates, their_state = theirs.update(
                gradients(n) | {"none": None}, their_state, expected
            )
            expected = optax.apply_updates(expected, updates)
    # To rounding: Optax rounds `1 - b1` of a Python float once, and of an array twice.
    assert eqx.tree_equal(found, expected, rtol=1e-5, atol=1e-6)
    assert eqx.tree_equal(state, their_state, rtol=1e-5, atol=1e-6)


@each_optimizer
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_parameters_and_state_keep_their_dtypes(make, hyper, dtype):
    """So that local steps can be scanned."""
    ours = Optimizer(make, **hyper)
    before = params(dtype), ours.init(params(dtype))
    update = lambda p, s: ours.update(gradients(0, dtype) | {"none": None}, s, p, step_of(0))
    after = eqx.filter_eval_shape(update, *before)
    kind = lambda leaf: (leaf.shape, leaf.dtype)
    assert jax.tree.map(kind, after) == jax.tree.map(kind, before)
    assert bool(jnp.isfinite(jax.tree.leaves(update(*before)[0])[1]).all())


def test_floats_are_leaves_and_all_else_is_not():
    found = Optimizer(
        optax.sgd, learning_rate=1, momentum=0.5, nesterov=True, accumulator_dtype="float32"
    )
    leaves = jax.tree.leaves(eqx.filter(found, eqx.is_inexact_array))
    assert sorted(float(leaf) for leaf in leaves) == [0.5, 1.0]
    assert all(leaf.shape == () and not leaf.weak_type for leaf in leaves)


@pytest.mark.parametrize(
    "rate", [0.1, np.float32(0.1), np.float64(0.1), np.array(0.1), jnp.array(0.1)], ids=repr
)
def test_a_rate_may_be_any_kind_of_number(rate):
    """It is a leaf that can be differentiated, and its value does not count for compilation."""
    traced = []

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(optimizer):
        traced.append(1)
        new, _ = optimizer.update(
            jnp.ones(3), optimizer.init(jnp.zeros(3)), jnp.zeros(3), step_of(0)
        )
        return jnp.sum(new)

    first = jax.tree.leaves(slope(Optimizer(optax.sgd, learning_rate=rate)))
    slope(Optimizer(optax.sgd, learning_rate=2 * rate))
    np.testing.assert_allclose(first, [-3.0])
    assert len(traced) == 1


def test_a_wrong_hyperparameter_is_named():
    with pytest.raises(TypeError, match="learning_rat"):
        Optimizer(optax.sgd, learning_rat=0.1).init(jnp.zeros(3))


SCHEDULES = {
    "exponential": optax.exponential_decay(0.3, 4, 0.5),
    "cosine": optax.cosine_decay_schedule(0.3, 11),
    "warmup_cosine": optax.warmup_cosine_decay_schedule(0.05, 0.3, 4, 11),
    "linear": optax.linear_schedule(0.3, 0.05, 11),
    "piecewise": optax.piecewise_constant_schedule(0.3, {3: 0.5, 7: 0.1}),
    "by_hand": lambda step: 0.3 / (1 + step),
}


def np_schedule(name: str):
    with jax.numpy_dtype_promotion("standard"):
        values = [float(SCHEDULES[name](step_of(t))) for t in range(ROUNDS * STEPS)]
    return lambda t: values[t]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_evaluated_at_the_step_that_update_is_told(name):
    optimizer, zeros = Optimizer(optax.sgd, learning_rate=SCHEDULES[name]), jnp.zeros(3)
    state = optimizer.init(zeros)
    for t in (7, 0, 3, 11):
        found, state = optimizer.update(jnp.ones(3), state, zeros, step_of(t))
        np.testing.assert_allclose(found, -np_schedule(name)(t), rtol=1e-6)


@pytest.mark.parametrize("name", ["exponential", "by_hand"])
def test_a_client_schedule_counts_local_steps_over_all_rounds(name):
    """Padding counts too: step `i` of round `r` is `steps * r + i` for every client."""
    rounds = make_rounds()
    algorithm = FedAvg(
        neuron_loss,
        client_optimizer=Optimizer(optax.sgd, learning_rate=SCHEDULES[name], momentum=0.5),
    )
    states, _ = eqx.filter_jit(run)(algorithm, model_of(start()), cohort_of(rounds))
    expected, _ = np_fedavg(start(), rounds, NpSGD(np_schedule(name), 0.5), NpSGD(1.0))
    np.testing.assert_allclose(params_of(states.model), expected, rtol=1e-6, atol=1e-6)
    restarts = np_schedule(name)
    restarted, _ = np_fedavg(start(), rounds, NpSGD(lambda t: restarts(t % STEPS), 0.5), NpSGD(1.0))
    assert np.abs(restarted[-1] - expected[-1]).max() > 1e-4


@pytest.mark.parametrize("name", ["warmup_cosine", "by_hand"])
def test_a_server_schedule_counts_the_rounds_that_changed_the_model(name):
    rounds = make_rounds()
    num_examples = rounds.num_examples.copy()
    num_examples[1] = 0
    rounds = rounds._replace(num_examples=num_examples)
    algorithm = FedSGD(
        neuron_loss, server_optimizer=Optimizer(optax.sgd, learning_rate=SCHEDULES[name])
    )
    states, _ = eqx.filter_jit(run)(algorithm, model_of(start()), cohort_of(rounds))
    expected, _ = np_fedsgd(start(), rounds, NpSGD(np_schedule(name)))
    np.testing.assert_allclose(params_of(states.model), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(states.round, [1, 1, 2, 3])


class Decay(eqx.Module):
    """A schedule with numbers of its own."""

    rate: Any
    power: Any

    def __call__(self, step):
        return self.rate * (1.0 + step) ** -self.power


def slopes(loss, *at: float) -> list[float]:
    eps = 1e-6
    axes = np.eye(len(at)) * eps
    return [(loss(*(at + axis)) - loss(*(at - axis))) / (2 * eps) for axis in axes]


def np_decay_loss(rate: float, power: float, server_rate: float) -> float:
    client = NpSGD(lambda t: rate * (1.0 + t) ** -power)
    server = NpSGD(lambda t: server_rate / (1.0 + t))
    return np_fedavg(start(), make_rounds(), client, server)[1][-1, 0]


def test_the_numbers_of_a_schedule_have_hypergradients():
    """Of a module that holds them at the clients, of a function closed over them at the server."""

    def loss(rate, power, server_rate):
        server = lambda step: server_rate / (1.0 + step)
        algorithm = FedAvg(
            neuron_loss,
            client_optimizer=Optimizer(optax.sgd, learning_rate=Decay(rate, power)),
            server_optimizer=Optimizer(optax.sgd, learning_rate=server),
        )
        _, reports = run(algorithm, model_of(start()), cohort_of(make_rounds()))
        return reports.client.loss[ROUNDS - 1]

    at = 0.4, 0.5, 0.9
    with jax.numpy_dtype_promotion("standard"):  # these schedules add a count to a float
        found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*map(jnp.array, at))
    np.testing.assert_allclose(found, slopes(np_decay_loss, *at), rtol=1e-4)


@pytest.mark.parametrize(
    "promotion",
    [
        "standard",
        pytest.param(
            "strict",
            marks=pytest.mark.xfail(
                raises=jax.dtypes.TypePromotionError,
                reason="JAX's own second derivative of `b1 ** count` mixes an int and a float",
            ),
        ),
    ],
)
def test_second_derivatives_by_a_hyperparameter_of_adam(promotion):
    def moved(b1):
        optimizer = Optimizer(optax.adam, learning_rate=0.1, b1=b1, eps=0.1)

        def step(carry, n):
            scale = 1.0 + n.astype(jnp.float32)
            return optimizer.update(scale * gradients(0)["w"], carry[1], carry[0], n), None

        carry = (jnp.zeros(3), optimizer.init(jnp.zeros(3)))
        (found, _), _ = jax.lax.scan(step, carry, jnp.arange(3, dtype=jnp.int32))
        return found[0] + found[1] ** 2

    def np_moved(b1):
        optimizer, found = NpAdam(0.1, b1, eps=0.1), np.zeros(3)
        state = optimizer.init(found)
        for n in range(3):
            grads = (1.0 + n) * np.array([0.3, -2.0, 1.0])
            found, state = optimizer.step(found, grads, state, n)
        return found[0] + found[1] ** 2

    with jax.numpy_dtype_promotion(promotion):
        found = jax.jit(jax.hessian(moved))(jnp.array(0.8))
    eps = 1e-4
    expected = (np_moved(0.8 + eps) - 2 * np_moved(0.8) + np_moved(0.8 - eps)) / eps**2
    np.testing.assert_allclose(found, expected, rtol=1e-3)
