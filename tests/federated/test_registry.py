"""Every registered program: value and derivative against its oracle; eager, jit and shapes agree."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from federated.helpers import CASES, Case, as_numpy, assert_matches, assert_same

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
differentiable = pytest.mark.parametrize(
    "case", [case for case in CASES if case.differentiable], ids=lambda case: case.name
)


def as_arguments(case: Case, clients: int = 7):
    """The sample, split for `filter_jit`-free transformations: arrays and the rest."""
    return eqx.partition(case.sample(clients), eqx.is_array)


@each_case
@pytest.mark.parametrize("clients", [7, 2])
def test_eager_value_is_the_oracles(case, clients):
    arguments = case.sample(clients)
    assert_matches(case.program(*arguments), case.expected(arguments), rtol=case.rtol)


@each_case
def test_jit_and_eval_shape_agree_with_eager(case):
    arrays, rest = as_arguments(case)
    fn = lambda arrays: case.program(*eqx.combine(arrays, rest))
    eager, compiled = fn(arrays), jax.jit(fn)(arrays)
    assert_same(compiled, eager, rtol=case.rtol, atol=1e-6)
    assert_same(jax.eval_shape(fn, arrays), eager)


@differentiable
def test_derivatives_are_the_oracles(case):
    """jvp and vjp along random directions, against central differences in float64."""
    arguments = case.sample()
    fn, inexact = case.of_floats(arguments)
    rng = np.random.default_rng(1)
    like = lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)
    tangents = jtu.tree_map(like, inexact)
    expected = case.oracle_derivative(arguments, tangents)
    rtol = max(50 * case.rtol, 1e-3)

    outs, pullback = jax.vjp(fn, inexact)
    cotangents = [like(out) for out in outs]
    (gradient,) = pullback(cotangents)
    inner = sum(
        np.sum(as_numpy(g) * as_numpy(t))
        for g, t in zip(jtu.tree_leaves(gradient), jtu.tree_leaves(tangents), strict=True)
    )
    products = [as_numpy(c) * e for c, e in zip(cotangents, expected, strict=True)]
    scale = sum(np.abs(p).sum() for p in products)
    np.testing.assert_allclose(inner, sum(p.sum() for p in products), atol=rtol * scale)

    if case.forward:
        _, found = jax.jvp(fn, (inexact,), (tangents,))
        for f, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(as_numpy(f), e, rtol=rtol, atol=rtol * np.abs(e).max())
