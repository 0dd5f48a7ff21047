"""Every registered program: its value and derivatives are its oracle's, under jit too."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from federated.helpers import (
    CASES,
    LOSSES,
    ROUNDS,
    STATISTICS,
    as_numpy,
    assert_matches,
    assert_same,
)

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
differentiable = pytest.mark.parametrize(
    "case", [case for case in CASES if case.differentiable], ids=lambda case: case.name
)


@each_case
def test_value(case):
    """Eager, the oracle, `jit` and `eval_shape` agree, the latter in dtype and weak type too."""
    arguments = case.sample()
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    fn = lambda arrays: case.program(*eqx.combine(arrays, rest))
    eager = fn(arrays)
    assert_matches(eager, case.expected(arguments), rtol=case.rtol)
    assert_same(jax.jit(fn)(arrays), eager, rtol=case.rtol, atol=1e-6)
    assert_same(jax.eval_shape(fn, arrays), eager)


@pytest.mark.parametrize("case", [*LOSSES, *STATISTICS, ROUNDS[1]], ids=lambda case: case.name)
def test_value_of_a_small_cohort(case):
    arguments = case.sample(clients=2)
    result = eqx.filter_jit(case.program)(*arguments)
    assert_matches(result, case.expected(arguments), rtol=case.rtol)


@differentiable
def test_derivatives(case):
    """jvp and vjp along random directions, against central differences in float64."""
    arguments = case.sample()
    fn, inexact = case.of_floats(arguments)
    rng = np.random.default_rng(1)
    like = lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)
    tangents = jtu.tree_map(like, inexact)
    cotangents = jtu.tree_map(like, jax.eval_shape(fn, inexact))
    expected = case.oracle_derivative(arguments, tangents)
    rtol = max(50 * case.rtol, 1e-3)

    @jax.jit
    def derivatives(inexact, tangents, cotangents):
        (gradient,) = jax.vjp(fn, inexact)[1](cotangents)
        forward = jax.jvp(fn, (inexact,), (tangents,))[1] if case.forward else None
        return gradient, forward

    gradient, forward = derivatives(inexact, tangents, cotangents)
    inner = sum(
        np.sum(as_numpy(g) * as_numpy(t))
        for g, t in zip(jtu.tree_leaves(gradient), jtu.tree_leaves(tangents), strict=True)
    )
    products = [as_numpy(c) * e for c, e in zip(cotangents, expected, strict=True)]
    scale = sum(np.abs(p).sum() for p in products)
    np.testing.assert_allclose(inner, sum(p.sum() for p in products), atol=rtol * scale)
    if case.forward:
        for f, e in zip(forward, expected, strict=True):
            np.testing.assert_allclose(as_numpy(f), e, rtol=rtol, atol=rtol * np.abs(e).max())


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name in ("masked_loss", "proximal_loss", "extremes")],
    ids=lambda case: case.name,
)
def test_eager_gradient(case):
    """Tracers reach the operations one by one, without an enclosing `jit`."""
    fn, inexact = case.of_floats(case.sample())
    gradient = jax.grad(lambda inexact: sum(jnp.sum(out) for out in fn(inexact)))
    assert_same(gradient(inexact), jax.jit(gradient)(inexact), rtol=1e-4, atol=1e-5)
