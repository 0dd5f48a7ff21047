"""Derivatives against hand-derived values and finite differences, in every mode and composition."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from federated.helpers import assert_same
from jaxtyping import Array, Float

import fedeqx as fx

N = 7
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=3), jnp.float32)
DATA = np.asarray(RNG.normal(size=(N, 3)), np.float32)
X = fx.Clients(jnp.asarray(DATA))


def loss(w, x):
    """exp(x . w): every derivative is known by hand."""
    return jnp.exp(jnp.dot(x, w) / 4)


@fx.program
def mean_loss(
    w: fx.Server[Float[Array, "n"]], x: fx.Clients[Float[Array, "n"]]
) -> fx.Server[Float[Array, ""]]:
    return fx.reduce_mean(fx.client_map(loss, w, x))


def by_hand(order: int, data: np.ndarray = DATA) -> np.ndarray:
    """The derivative of that order with respect to w: mean of e (x/4) outer ... outer (x/4)."""
    total = np.zeros((3,) * order)
    for x in np.asarray(data, np.float64):
        term = np.asarray(np.exp(x @ np.asarray(W, np.float64) / 4))
        for _ in range(order):
            term = np.multiply.outer(term, x / 4)
        total += term
    return total / len(data)


close = lambda found, expected: np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
V = jnp.array([1.0, -2.0, 0.5])

MODES = {
    "grad": (lambda: jax.grad(mean_loss)(W, X), by_hand(1)),
    "value_and_grad": (lambda: jax.value_and_grad(mean_loss)(W, X)[1], by_hand(1)),
    "value": (lambda: jax.value_and_grad(mean_loss)(W, X)[0], by_hand(0)),
    "jacfwd": (lambda: jax.jacfwd(mean_loss)(W, X), by_hand(1)),
    "jacrev": (lambda: jax.jacrev(mean_loss)(W, X), by_hand(1)),
    "jvp": (lambda: jax.jvp(lambda w: mean_loss(w, X), (W,), (V,))[1], by_hand(1) @ V),
    "linearize": (lambda: jax.linearize(lambda w: mean_loss(w, X), W)[1](V), by_hand(1) @ V),
    "vjp": (lambda: jax.vjp(lambda w: mean_loss(w, X), W)[1](jnp.float32(3))[0], 3 * by_hand(1)),
    "hessian": (lambda: jax.hessian(mean_loss)(W, X), by_hand(2)),
    "jacrev of jacrev": (lambda: jax.jacrev(jax.jacrev(mean_loss))(W, X), by_hand(2)),
    "jacfwd of jacfwd": (lambda: jax.jacfwd(jax.jacfwd(mean_loss))(W, X), by_hand(2)),
    "jacrev of jacfwd": (lambda: jax.jacrev(jax.jacfwd(mean_loss))(W, X), by_hand(2)),
    "third": (lambda: jax.jacfwd(jax.hessian(mean_loss))(W, X), by_hand(3)),
    "checkpoint": (lambda: jax.grad(jax.checkpoint(mean_loss))(W, X), by_hand(1)),
    "filter_grad": (lambda: eqx.filter_grad(mean_loss)(W, X), by_hand(1)),
}


@pytest.mark.parametrize("mode", MODES)
def test_of_a_mean_of_losses(mode):
    fn, expected = MODES[mode]
    close(fn(), expected)


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd, jax.jacrev, jax.hessian])
def test_vmap_of_each(transform):
    """Over models, and over data, whose mapped axis stands behind the clients axis."""
    models = jnp.stack([W, 2 * W, -W])
    one = jax.jit(transform(mean_loss))
    found = jax.vmap(transform(mean_loss), (0, None))(models, X)
    close(found, np.stack([one(w, X) for w in models]))
    other = fx.Clients(jnp.stack([X.value, 2 * X.value], axis=1))
    found = jax.jit(jax.vmap(transform(mean_loss), (None, 1)))(W, other)
    close(found, np.stack([one(W, fx.Clients(d * X.value)) for d in (1, 2)]))


def test_each_of_a_vmap():
    """The derivative of a sum over a batch of models."""
    total = lambda models: jnp.sum(jax.vmap(mean_loss, (0, None))(models, X))
    found = jax.grad(total)(jnp.stack([W, W]))
    close(found, np.stack([by_hand(1)] * 2))


def test_with_respect_to_clients_data():
    found = jax.grad(mean_loss, argnums=1)(W, X)
    assert isinstance(found, fx.Clients)
    close(found.value, [np.exp(x @ W / 4) * W / 4 / N for x in DATA])


def test_jacobian_of_a_result_at_the_clients():
    """Each client's result depends on the server and on itself alone."""
    fn = lambda w, x: fx.client_map(loss, w, x)
    jacobian = jax.jacrev(fn)(W, X)
    assert isinstance(jacobian, fx.Clients)
    close(jacobian.value, [np.exp(x @ W / 4) * x / 4 for x in DATA])
    own = jax.jacfwd(fn, argnums=1)(W, X).value.value
    expected = np.zeros((N, N, 3))
    for i, x in enumerate(DATA):
        expected[i, i] = np.exp(x @ W / 4) * np.asarray(W) / 4
    close(own, expected)


OPERATIONS = {
    "broadcast": (lambda w: fx.broadcast(w, clients=N).value, np.stack([np.eye(3)] * N)),
    "reduce_sum": (lambda w: fx.reduce_sum(fx.broadcast(w, clients=N)), N * np.eye(3)),
    "reduce_mean": (lambda w: fx.reduce_mean(fx.broadcast(w, clients=N)), np.eye(3)),
    "reduce_max": (lambda w: fx.reduce_max(fx.broadcast(w, clients=N)), np.eye(3)),
    "reduce_min": (lambda w: fx.reduce_min(fx.broadcast(w, clients=N)), np.eye(3)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev])
def test_of_each_operation(name, jacobian):
    fn, expected = OPERATIONS[name]
    close(jacobian(fn)(W), expected)


@pytest.mark.parametrize("verb", [fx.reduce_max, fx.reduce_min])
def test_clients_that_tie_share_the_derivative(verb):
    x = fx.Clients(jnp.array([1.0, 3.0, 3.0, 2.0, 1.0]))
    who = np.array([0, 1, 1, 0, 0] if verb is fx.reduce_max else [1, 0, 0, 0, 1])
    close(jax.grad(verb)(x).value, who / 2)
    tangents = np.arange(5.0)
    _, found = jax.jvp(verb, (x,), (fx.Clients(jnp.asarray(tangents)),))
    close(found, who @ tangents / 2)


def test_second_derivatives_through_a_maximum():
    """max_i (w x_i)^2 has the curvature of the client that attains it."""
    x = fx.Clients(jnp.array([1.0, -3.0, 2.0]))
    fn = lambda w: fx.reduce_max(fx.client_map(lambda w, x: (w * x) ** 2, w, x))
    for twice in (jax.grad(jax.grad(fn)), jax.hessian(fn), jax.jacfwd(jax.jacfwd(fn))):
        close(twice(jnp.float32(2)), 18.0)


def _custom() -> Any:
    @jax.custom_vjp
    def clipped(x):
        return x**2

    clipped.defvjp(lambda x: (x**2, x), lambda x, ct: (jnp.clip(2 * x * ct, -1.0, 1.0),))
    return clipped


def test_custom_vjp_in_the_client_function():
    """Its rule is used, once per client, before the sum: not that of x**2, nor after the mean."""
    clipped = _custom()
    w, x = jnp.float32(2), fx.Clients(jnp.array([0.1, 3.0, -5.0]))
    fn = lambda w: fx.reduce_sum(fx.client_map(lambda w, x: clipped(w) * x, w, x))
    close(jax.grad(fn)(w), 0.4 + 1 - 1)
    close(jax.jit(jax.vmap(jax.grad(fn)))(jnp.stack([w, w])), [0.4, 0.4])


def test_custom_jvp_in_the_client_function():
    @jax.custom_jvp
    def double(x):
        return x

    double.defjvp(lambda primals, tangents: (primals[0], 2 * tangents[0]))
    fn = lambda w: fx.reduce_sum(fx.client_map(lambda w, x: double(w) * x, w, X))
    close(jax.grad(lambda w: jnp.sum(fn(w)))(jnp.float32(1)), 2 * DATA.sum())
    close(jax.jvp(fn, (jnp.float32(1),), (jnp.float32(1),))[1], 2 * DATA.sum(0))


def _closing_over(wrap: Any) -> Any:
    """A loss whose client function closes over w under some transformation of its own."""

    def fn(w):
        inner = lambda x: loss(w, x)
        return fx.reduce_mean(fx.client_map(wrap(inner), X))

    return fn


@pytest.mark.parametrize(
    "wrap",
    {
        "plain": lambda f: f,
        "jit": jax.jit,
        "checkpoint": jax.checkpoint,
        "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
        "scan": lambda f: lambda x: jax.lax.scan(lambda s, _: (s + f(x), 0.0), 0.0, length=1)[0],
        "cond": lambda f: lambda x: jax.lax.cond(x[0] > 99, lambda: 0.0, lambda: f(x)),
        "custom_jvp": lambda f: lambda x: f(jax.nn.relu(x) - jax.nn.relu(-x)),
        "gradient": lambda f: lambda x: f(x) + 0 * jnp.sum(jax.grad(f)(x)),
    }.items(),
    ids=lambda item: item[0],
)
def test_of_what_the_client_function_closes_over(wrap):
    fn = _closing_over(wrap[1])
    close(jax.grad(fn)(W), by_hand(1))
    close(jax.jit(jax.hessian(fn))(W), by_hand(2))
    close(jax.vmap(jax.grad(fn))(jnp.stack([W, W])), [by_hand(1)] * 2)


@fx.program
def sgd_round(
    w: fx.Server[Float[Array, "n"]], x: fx.Clients[Float[Array, "n"]], rate: fx.Server[Array]
) -> fx.Server[Float[Array, "n"]]:
    return w - rate * fx.reduce_mean(fx.client_map(jax.grad(loss), w, x))


def np_rounds(rate: float, rounds: int) -> float:
    """The loss after some rounds, in float64."""
    w = np.asarray(W, np.float64)
    for _ in range(rounds):
        w = w - rate * sum(np.exp(x @ w / 4) * x / 4 for x in DATA.astype(np.float64)) / N
    return float(np.mean([np.exp(x @ w / 4) for x in DATA.astype(np.float64)]))


def test_hypergradient_through_a_scan_over_rounds():
    def after(rate):
        w, _ = jax.lax.scan(lambda w, _: (sgd_round(w, X, rate), None), W, length=3)
        return mean_loss(w, X)

    rate, eps = 0.3, 1e-5
    first = (np_rounds(rate + eps, 3) - np_rounds(rate - eps, 3)) / (2 * eps)
    second = (np_rounds(rate + 1e-3, 3) + np_rounds(rate - 1e-3, 3) - 2 * np_rounds(rate, 3)) / 1e-6
    for transform in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(transform(after))(rate), first, rtol=1e-4)
    np.testing.assert_allclose(jax.jit(jax.hessian(after))(rate), second, rtol=1e-3)


def test_integers_booleans_and_keys_ride_along():
    """Leaves without a derivative, from the server and from the clients."""
    keys = fx.Clients(jax.random.split(jax.random.key(0), N))
    counts = fx.Clients(jnp.arange(N))
    shift = jnp.int32(1)

    def fn(w, shift, flag, keys, counts):
        def client(w, shift, flag, key, n):
            noise = 0 * jax.random.normal(key, w.shape)
            return jnp.where(flag, jnp.sum(w + noise) * (n + shift).astype(float), 0.0)

        return fx.reduce_sum(fx.client_map(client, w, shift, flag, keys, counts))

    found = jax.grad(fn)(W, shift, jnp.array(True), keys, counts)
    close(found, np.full(3, sum(range(1, N + 1))))
    float0 = np.zeros((), jax.dtypes.float0)
    _, tangent = jax.jvp(
        lambda w, s: fn(w, s, jnp.array(True), keys, counts), (W, shift), (jnp.ones(3), float0)
    )
    close(tangent, 3 * 28)


def test_a_gradient_is_again_a_federated_program():
    """It has the placements, shapes and dtypes that a program's boundary asks for."""

    @fx.program
    def fn(
        w: fx.Server[Float[Array, "n"]], x: fx.Clients[Float[Array, "n"]]
    ) -> tuple[fx.Server[Float[Array, "n"]], fx.Clients[Float[Array, "n"]]]:
        return jax.grad(mean_loss, argnums=(0, 1))(w, x)

    found = fn(W, X)
    assert jtu.tree_structure(found) == jtu.tree_structure((W, X))
    assert_same(jax.eval_shape(fn, W, X), found)
