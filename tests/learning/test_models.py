"""What a model may be: low precision, and modules with leaves of every kind."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Float, Int, Key
from learning.helpers import (
    NpAdam,
    NpSGD,
    cohort_of,
    make_rounds,
    model_of,
    neuron_loss,
    np_fedavg,
    one_round,
    params_of,
    start,
)

from fedeqx.learning import FedAvg, FedSGD, Optimizer

CLIENT_OPTIMIZERS: dict[str, tuple[Optimizer, Any]] = {
    "sgd": (Optimizer(optax.sgd, learning_rate=0.3), NpSGD(0.3)),
    "momentum": (Optimizer(optax.sgd, learning_rate=0.2, momentum=0.5), NpSGD(0.2, 0.5)),
    "adam": (Optimizer(optax.adam, learning_rate=0.01), NpAdam(0.01)),
}
SGD = CLIENT_OPTIMIZERS["sgd"][0]


def in_dtype(tree: Any, dtype: Any) -> Any:
    cast = lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf
    return jax.tree.map(cast, tree)


@pytest.mark.parametrize(
    ("dtype", "optimizer"),
    [(jnp.bfloat16, name) for name in CLIENT_OPTIMIZERS] + [(jnp.float16, "adam")],
)
def test_a_model_of_low_precision_keeps_its_dtype(dtype, optimizer):
    """And learns what it would in float64, as far as its digits go."""
    rounds = make_rounds()
    client, np_client = CLIENT_OPTIMIZERS[optimizer]
    algorithm = FedAvg(
        neuron_loss,
        client_optimizer=client,
        server_optimizer=Optimizer(optax.sgd, learning_rate=1.0, momentum=0.9),
    )
    cohort = in_dtype(cohort_of(one_round(rounds, 0)), dtype)
    state = algorithm.init(in_dtype(model_of(start()), dtype), key=jax.random.key(0))
    after, report = eqx.filter_jit(algorithm.step)(state, cohort, key=jax.random.key(1))
    kind = lambda leaf: (leaf.shape, leaf.dtype)
    assert jax.tree.map(kind, after) == jax.tree.map(kind, state)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.model)} == {jnp.dtype(dtype)}
    assert report.client.loss.dtype == report.server.update_norm.dtype == jnp.float32
    expected, reports = np_fedavg(start(), rounds, np_client, NpSGD(1.0))
    tol = 4 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(params_of(after.model), expected[0], rtol=tol, atol=tol)
    np.testing.assert_allclose(report.client.loss, reports[0, 0], rtol=2 * tol)


def test_a_model_of_mixed_precision_keeps_each_dtype():
    model = model_of(start()) | {"w": jnp.asarray(start()[:3], jnp.bfloat16)}

    def loss(model, batch, key):
        return neuron_loss(in_dtype(model, jnp.float32), batch, key)

    algorithm = FedSGD(loss, server_optimizer=Optimizer(optax.adam, learning_rate=0.1))
    state = algorithm.init(model, key=jax.random.key(0))
    after, _ = eqx.filter_jit(algorithm.step)(
        state, cohort_of(one_round(make_rounds(), 0)), key=jax.random.key(1)
    )
    assert (after.model["w"].dtype, after.model["b"].dtype) == (jnp.bfloat16, jnp.float32)
    # Adam's first step is the rate, along the sign of the gradient.
    moved = np.abs(params_of(after.model) - start())
    np.testing.assert_allclose(moved, 0.1, atol=2e-3)


class Odd(eqx.Module):
    """The neuron, with a leaf of every kind that a module may have."""

    w: Float[Array, "features"]
    inner: dict[str, Float[Array, ""]]
    activation: Callable[[Array], Array]
    scale: float
    calls: Int[Array, ""]
    keep: Bool[Array, "features"]
    noise: Key[Array, ""]
    absent: Array | None
    label: str
    width: int = eqx.field(static=True)
    empty: Float[Array, "0"]

    def __call__(self, x: Array) -> Array:
        assert self.width == 3
        jitter = 0.0 * jax.random.normal(self.noise) + 0.0 * jnp.sum(self.empty)
        kept = jnp.where(self.keep, self.w, 0.0)
        shift = self.inner["b"] * self.calls.astype(jnp.float32)
        return self.scale * self.activation(x @ kept + shift) + jitter


def odd() -> Odd:
    return Odd(
        w=jnp.asarray(start()[:3], jnp.float32),
        inner={"b": jnp.asarray(start()[3], jnp.float32)},
        activation=jnp.tanh,
        scale=1.0,
        calls=jnp.array(1),
        keep=jnp.array([True, True, True]),
        noise=jax.random.key(7),
        absent=None,
        label="odd",
        width=3,
        empty=jnp.zeros(0),
    )


def odd_loss(model: Odd, batch: Any, key: Any) -> Float[Array, ""]:
    x, y = batch
    return jnp.mean(jnp.square(model(x) - y))


def numpy_leaves(model: Odd) -> Odd:
    return jax.tree.map(lambda x: np.asarray(x) if eqx.is_inexact_array(x) else x, model)


def on_mesh(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.set_mesh(jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))):
            return eqx.filter_jit(fn)(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("how", "model"),
    [(eqx.filter_jit, numpy_leaves(odd())), (on_mesh, odd())],
    ids=["numpy", "mesh"],
)
def test_only_the_floats_of_a_module_are_trained(how, model):
    """All else, and the structure, is what it was; the floats are the neuron's."""
    rounds = make_rounds()
    algorithm = FedAvg(
        odd_loss,
        client_optimizer=Optimizer(optax.sgd, learning_rate=0.3, momentum=0.5),
        server_optimizer=Optimizer(optax.sgd, learning_rate=0.7, momentum=0.5),
    )
    expected, _ = np_fedavg(start(), rounds, NpSGD(0.3, 0.5), NpSGD(0.7, 0.5))
    step = how(algorithm.step)
    state = algorithm.init(model, key=jax.random.key(0))
    for r in range(2):
        state, _ = step(state, cohort_of(one_round(rounds, r)), key=jax.random.key(r))
    found = algorithm.model(state)
    trained = {"w": found.w, "b": found.inner["b"]}
    np.testing.assert_allclose(params_of(trained), expected[1], rtol=1e-6, atol=1e-6)
    assert jax.tree.structure(found) == jax.tree.structure(model)
    untrained = lambda model: eqx.filter(model, eqx.is_inexact_array, inverse=True)
    assert eqx.tree_equal(untrained(found), untrained(odd()))


def test_hypergradients_of_such_a_module():
    """Whose function leaf keeps its state out of a plain scan, but not out of a loop."""
    rounds = make_rounds()

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(algorithm):
        state, report = algorithm.init(odd(), key=jax.random.key(0)), None
        for r in range(2):
            state, report = algorithm.step(
                state, cohort_of(one_round(rounds, r)), key=jax.random.key(r)
            )
        return report.client.loss  # pyright: ignore[reportOptionalMemberAccess]

    def np_loss(rate):
        two = type(rounds)(*(leaf[:2] for leaf in rounds))
        return np_fedavg(start(), two, NpSGD(rate), NpSGD(1.0))[1][-1, 0]

    found = slope(FedAvg(odd_loss, client_optimizer=SGD)).round.work.optimizer.hyperparameters
    expected = (np_loss(0.3 + 1e-6) - np_loss(0.3 - 1e-6)) / 2e-6
    np.testing.assert_allclose(found["learning_rate"], expected, rtol=1e-4)


def test_a_model_is_not_changed_in_place():
    """The state's arrays may be donated; the caller's model stays good."""
    model = model_of(start())
    algorithm = FedAvg(neuron_loss, client_optimizer=SGD)
    state = algorithm.init(model, key=jax.random.key(0))
    eqx.filter_jit(algorithm.step)(
        state, cohort_of(one_round(make_rounds(), 0)), key=jax.random.key(1)
    )
    assert eqx.tree_equal(model, model_of(start()))
