"""A client of weight 0 contributes nothing, to a value or to any derivative, even NaN or inf."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import fedeqx as fx

N = 6
RNG = np.random.default_rng(3)
M = jnp.asarray(RNG.normal(size=3), jnp.float32)
CLEAN = np.asarray(RNG.normal(size=(N, 4, 3)), np.float32)
WEIGHTS = np.array([0.0, 2.0, 0.0, 1.0, 0.5, 0.0], np.float32)
USED = np.flatnonzero(WEIGHTS)

close = lambda found, expected: np.testing.assert_allclose(found, expected, rtol=3e-5, atol=1e-6)


def quadratic(m, x):
    return jnp.mean((x @ m - jnp.ones(4)) ** 2)


LOSSES = {
    "quadratic": quadratic,
    # No derivative at the zeros that a masked client could be given.
    "norm": lambda m, x: jnp.sqrt(jnp.sum((x @ m) ** 2)),
    "log": lambda m, x: jnp.mean(jnp.log(jnp.abs(x @ m))),
    "ratio": lambda m, x: jnp.sum(x @ m) / jnp.sum(jnp.abs(x)),
    "power": lambda m, x: jnp.sum(jnp.abs(x @ m) ** 0.5),
    # A loss that is NaN or inf although its inputs are finite.
    "0 / 0 examples": lambda m, x: quadratic(m, x) + jnp.where(x[0, 0] > 90, jnp.nan, 0.0),
    "overflow": lambda m, x: quadratic(m, x) + jnp.sum(jnp.exp(jnp.where(x > 90, x, -x) - 95)),
    "scan": lambda m, x: jax.lax.scan(lambda s, row: (s + jnp.exp(row @ m), s), 0.0, x)[0],
}
POISONS = {
    "nan": lambda x: np.full_like(x, np.nan),
    "inf": lambda x: np.full_like(x, np.inf),
    "zeros": np.zeros_like,
    "hundreds": lambda x: np.full_like(x, 100.0),
    "huge": lambda x: np.full_like(x, 1e30),
    "one nan": lambda x: np.where(np.arange(3) == 1, np.nan, x),
}


def poisoned(poison: Any, data: np.ndarray = CLEAN) -> fx.Clients[Array]:
    """Data in which all clients of weight 0 hold what breaks a calculation."""
    return fx.Clients(
        jnp.stack([poison(x) if w == 0 else x for x, w in zip(data, WEIGHTS, strict=True)])
    )


def weighted_loss(loss: Any) -> Any:
    def fn(m: Any, x: fx.Clients[Any], w: fx.Clients[Any]) -> Any:
        return fx.reduce_mean(fx.client_map(loss, m, x, weights=w), weights=w)

    return fn


def reference(loss: Any) -> Any:
    """The same over the clients of positive weight alone, as a Python loop."""

    def fn(m: Array, data: Any, weights: Any) -> Any:
        terms = [weights[i] * loss(m, data[i]) for i in USED]
        return sum(terms) / sum(weights[i] for i in USED)

    return fn


def _derivatives(fn: Any, m: Any, x: Any, w: Any) -> dict[str, Any]:
    v = jnp.array([1.0, -1.0, 2.0])
    both = jax.value_and_grad(fn)(m, x, w)
    return {
        "value": both[0],
        "grad": both[1],
        "jvp": jax.jvp(lambda m: fn(m, x, w), (m,), (v,))[1],
        "hessian": jax.hessian(fn)(m, x, w),
    }


@functools.cache
def expected(loss: str) -> dict[str, Any]:
    return jax.jit(lambda m: _derivatives(reference(LOSSES[loss]), m, CLEAN, WEIGHTS))(M)


@pytest.mark.parametrize(
    ("loss", "poison"),
    [
        *(("quadratic", poison) for poison in POISONS),
        *((loss, "zeros") for loss in ("norm", "log", "ratio", "power")),
        *((loss, "nan") for loss in ("norm", "log")),
        ("scan", "nan"),
        ("0 / 0 examples", "hundreds"),
        ("overflow", "hundreds"),
    ],
)
def test_whatever_a_weightless_client_holds(loss, poison):
    x, w = poisoned(POISONS[poison]), fx.Clients(jnp.asarray(WEIGHTS))
    found = jax.jit(lambda m, x, w: _derivatives(weighted_loss(LOSSES[loss]), m, x, w))(M, x, w)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected(loss)[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_eager_agrees():
    """Operation by operation, as a user at a prompt meets it."""
    x, w = poisoned(POISONS["nan"]), fx.Clients(jnp.asarray(WEIGHTS))
    fn, by_loop = weighted_loss(quadratic), reference(quadratic)
    close(fn(M, x, w), by_loop(M, CLEAN, WEIGHTS))
    close(jax.grad(fn)(M, x, w), jax.grad(by_loop)(M, CLEAN, WEIGHTS))


def test_derivative_with_respect_to_clients_data_is_zero_at_weight_zero():
    x, w = poisoned(POISONS["nan"]), fx.Clients(jnp.asarray(WEIGHTS))
    found = jax.grad(weighted_loss(quadratic), argnums=1)(M, x, w).value
    expected = np.array(jax.grad(reference(quadratic), argnums=1)(M, jnp.asarray(CLEAN), WEIGHTS))
    expected[WEIGHTS == 0] = 0
    close(found, expected)


def test_derivative_with_respect_to_weights():
    """d/dw_i of sum w l / sum w is (l_i - mean) / sum w; a weight of 0 has none."""
    x, w = poisoned(POISONS["nan"]), jnp.asarray(WEIGHTS)
    fn = lambda w: weighted_loss(quadratic)(M, x, fx.Clients(w))
    losses = np.array([float(quadratic(M, jnp.asarray(d))) for d in CLEAN])
    total, mean = WEIGHTS.sum(), (WEIGHTS * losses).sum() / WEIGHTS.sum()
    expected = np.where(WEIGHTS == 0, 0.0, (losses - mean) / total)
    close(jax.jit(jax.grad(fn))(w), expected)
    close(jax.jit(jax.jacfwd(fn))(w), expected)
    curvature = jax.jit(jax.hessian(fn))(w)
    by_hand = -(np.add.outer(losses - mean, losses - mean)) / total**2
    by_hand[WEIGHTS == 0, :] = by_hand[:, WEIGHTS == 0] = 0
    close(curvature, by_hand)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, bool])
def test_weights_of_any_real_kind(dtype):
    w = np.array([0, 1, 0, 1, 1, 0]) if dtype is bool else np.array([0, 2, 0, 1, 3, 0])
    found = weighted_loss(quadratic)(
        M, poisoned(POISONS["nan"]), fx.Clients(jnp.asarray(w).astype(dtype))
    )
    close(found, reference(quadratic)(M, CLEAN, w.astype(np.float32)))
    assert found.dtype == jnp.float32


def test_numpy_weights():
    found = weighted_loss(quadratic)(M, poisoned(POISONS["nan"]), fx.Clients(WEIGHTS))
    close(found, reference(quadratic)(M, CLEAN, WEIGHTS))


def test_masking_a_mean_alone():
    """Without `client_map(weights=)`: the value and what flows into the reduction are clean."""
    losses = jnp.where(WEIGHTS == 0, jnp.nan, jnp.arange(6.0))
    w = fx.Clients(jnp.asarray(WEIGHTS))
    fn = lambda losses: fx.reduce_mean(fx.Clients(losses), weights=w)
    close(fn(losses), (WEIGHTS * np.arange(6)).sum() / 3.5)
    close(jax.grad(fn)(losses), WEIGHTS / 3.5)
    inf = jnp.where(WEIGHTS == 0, -jnp.inf, jnp.arange(6.0))
    close(fn(inf), (WEIGHTS * np.arange(6)).sum() / 3.5)


def test_a_weightless_client_of_every_leaf_kind():
    """Outputs are zero; integers and booleans too."""
    w = fx.Clients(jnp.array([1.0, 0.0]))
    tree = {"f": jnp.ones(2), "i": jnp.array([3, 4]), "b": jnp.array([True, True])}
    found = fx.client_map(
        lambda t: {**t, "z": jax.lax.complex(jnp.zeros(()), t["f"])}, fx.Clients(tree), weights=w
    ).value
    np.testing.assert_array_equal(found["f"], [1, 0])
    np.testing.assert_array_equal(found["i"], [3, 0])
    np.testing.assert_array_equal(found["b"], [True, False])
    np.testing.assert_array_equal(found["z"], [1j, 0])


def test_what_the_client_function_closes_over_is_guarded_too():
    x, w = poisoned(POISONS["nan"]), fx.Clients(jnp.asarray(WEIGHTS))

    def fn(m):
        losses = fx.client_map(lambda x: quadratic(m, x), x, weights=w)
        return fx.reduce_mean(losses, weights=w)

    close(jax.grad(fn)(M), expected("quadratic")["grad"])
    close(jax.jit(jax.hessian(fn))(M), expected("quadratic")["hessian"])


@fx.program
def weighted_round(
    m: fx.Server[Float[Array, "n"]],
    x: fx.Clients[Float[Array, "batch n"]],
    w: fx.Clients[Float[Array, ""]],
    rate: fx.Server[Float[Array, ""]],
) -> fx.Server[Float[Array, "n"]]:
    deltas = fx.client_map(
        lambda m, x, rate: -rate * jax.grad(quadratic)(m, x), m, x, rate, weights=w
    )
    return m + fx.reduce_mean(deltas, weights=w)


def test_hypergradient_through_rounds():
    x, w = poisoned(POISONS["nan"]), fx.Clients(jnp.asarray(WEIGHTS))

    def after(rate):
        m, _ = jax.lax.scan(lambda m, _: (weighted_round(m, x, w, rate), None), M, length=2)
        return weighted_loss(quadratic)(m, x, w)

    def by_loop(rate):
        m = M
        for _ in range(2):
            m = m - rate * jax.grad(reference(quadratic))(m, CLEAN, WEIGHTS)
        return reference(quadratic)(m, CLEAN, WEIGHTS)

    close(jax.jit(jax.grad(after))(0.1), jax.grad(by_loop)(0.1))


def test_all_weights_zero_leaves_the_server_state_unchanged():
    """The mean of nothing is 0, not NaN, and no derivative is NaN."""
    x = fx.Clients(jnp.full((N, 4, 3), jnp.nan))
    none = fx.Clients(jnp.zeros(N))
    np.testing.assert_array_equal(weighted_round(M, x, none, jnp.float32(0.1)), M)
    fn = lambda m, w: weighted_loss(quadratic)(m, x, fx.Clients(w))
    assert fn(M, none.value) == 0
    for argnum in (0, 1):
        for transform in (jax.grad, jax.hessian):
            assert not jnp.any(jax.jit(transform(fn, argnum))(M, none.value))
    jacobian = jax.jacrev(weighted_round)(M, x, none, jnp.float32(0.1))
    np.testing.assert_array_equal(jacobian, np.eye(3))


def test_nan_at_a_weight_that_is_not_zero_is_not_hidden():
    x = fx.Clients(jnp.asarray(CLEAN).at[1].set(jnp.nan))
    w = fx.Clients(jnp.asarray(WEIGHTS))
    assert jnp.isnan(weighted_loss(quadratic)(M, x, w))
    w = fx.Clients(jnp.asarray(WEIGHTS).at[1].set(jnp.nan))
    assert jnp.isnan(weighted_loss(quadratic)(M, fx.Clients(jnp.asarray(CLEAN)), w))


def test_vmap_over_weights():
    """Each of a batch of weightings guards its own clients."""
    x = fx.Clients(jnp.asarray(CLEAN).at[0].set(jnp.nan).at[1].set(jnp.nan))
    batch = np.array([[0.0, 0, 1, 1, 0, 1], [0, 0, 0, 2, 1, 0]], np.float32)
    fn = lambda w: jax.grad(weighted_loss(quadratic))(M, x, fx.Clients(w))
    found = jax.vmap(fn)(jnp.asarray(batch))
    for row, w in zip(found, batch, strict=True):
        terms = [w[i] * jax.grad(quadratic)(M, CLEAN[i]) for i in np.flatnonzero(w)]
        close(row, sum(terms) / w.sum())
