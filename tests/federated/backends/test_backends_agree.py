"""Every registered program gives one value and one gradient, whatever runs it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from federated.backends.registry import BACKENDS, QUICK, crossed
from federated.helpers import assert_matches, assert_same


@crossed(QUICK)
def test_value(case, backend):
    arguments = case.sample()
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    run = lambda arrays: BACKENDS[backend].run(case.program, eqx.combine(arrays, rest))
    with BACKENDS[backend].scope():
        found = jax.jit(run)(arrays)
    assert_matches(found, case.expected(arguments), rtol=case.rtol)


@crossed(QUICK[1:3], differentiable=True)
def test_derivatives(case, backend):
    """The gradient of what the backend runs is the program's, which an oracle vouches for."""
    arguments = case.sample()
    local, inexact = case.of_floats(arguments)
    run = lambda *arguments: BACKENDS[backend].run(case.program, arguments)
    found, _ = dataclasses.replace(case, program=run).of_floats(arguments)
    rng = np.random.default_rng(1)
    like = lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)
    cotangents = jtu.tree_map(like, jax.eval_shape(local, inexact))
    gradient = lambda fn: jax.jit(lambda x: jax.vjp(fn, x)[1](cotangents)[0])(inexact)
    expected = gradient(local)
    with BACKENDS[backend].scope():
        result = gradient(found)
    assert_same(result, expected, rtol=max(50 * case.rtol, 1e-3), atol=1e-4)
