"""Dtypes and digits: what reductions accumulate in, and what they give back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedeqx as fx

MANY = 4096  # the sum of so many ones is not representable step by step in 8 or 11 bits


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_means_of_low_precision_accumulate_in_float32(dtype):
    """Summed in bfloat16, 4096 ones are 256; in float16, 2048."""
    x = fx.Clients(jnp.ones((MANY, 2), dtype))
    for w in (None, fx.Clients(jnp.ones(MANY)), fx.Clients(jnp.ones(MANY, dtype))):
        mean = fx.reduce_mean(x, weights=w)
        assert mean.dtype == dtype
        np.testing.assert_array_equal(np.asarray(mean, np.float32), [1.0, 1.0])
    assert fx.reduce_sum(x).dtype == dtype
    np.testing.assert_array_equal(np.asarray(fx.reduce_sum(x), np.float32), [MANY, MANY])


def test_a_float16_mean_does_not_overflow_where_its_sum_would():
    x = fx.Clients(jnp.full((MANY,), 1000.0, jnp.float16))
    for w in (None, fx.Clients(jnp.full(MANY, 100, jnp.float16))):
        assert fx.reduce_mean(x, weights=w) == 1000


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_low_precision_accumulate_in_float32(dtype):
    """The cotangent of a broadcast is a sum over clients, with the same rule."""
    x = fx.Clients(jnp.ones(MANY, dtype))
    total = lambda s: fx.reduce_sum(fx.client_map(lambda s, x: s * x, s, x))
    for derivative in (jax.grad(total), jax.jacfwd(total), jax.jacrev(total)):
        found = derivative(jnp.ones((), dtype))
        assert found.dtype == dtype
        assert found == MANY
    sent = lambda s: fx.broadcast(s, clients=MANY).value
    (back,) = jax.vjp(sent, jnp.ones((), dtype))[1](jnp.ones(MANY, dtype))
    assert back.dtype == dtype
    assert back == MANY


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_clients_that_tie_in_low_precision(dtype):
    """The count of those that attain the maximum is a sum too."""
    gradient = jax.grad(fx.reduce_max)(fx.Clients(jnp.ones(MANY, dtype)))
    assert gradient.value.dtype == dtype
    np.testing.assert_array_equal(np.asarray(gradient.value, np.float32), 1 / MANY)
    ones = fx.Clients(jnp.ones(MANY, dtype))
    _, tangent = jax.jvp(fx.reduce_max, (ones,), (ones,))
    assert tangent.dtype == dtype
    assert tangent == 1


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.int32, jnp.uint32, bool])
def test_the_mean_of_integers_is_a_float(dtype):
    """127 + 127 wraps in int8; and a mean is seldom an integer."""
    top = 1 if dtype is bool else min(int(jnp.iinfo(dtype).max), 1000)
    rows = np.array([top, top, 0, top], np.int64)
    x = fx.Clients(jnp.asarray(rows).astype(dtype))
    for fn in (fx.reduce_mean, jax.jit(fx.reduce_mean)):
        assert fn(x).dtype == jnp.float32
        assert fn(x) == rows.mean()
    weighted = fx.reduce_mean(x, weights=fx.Clients(jnp.array([3, 0, 1, 0])))
    assert weighted.dtype == jnp.float32
    assert weighted == top * 0.75


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (jnp.int8, jnp.int32),
        (jnp.int16, jnp.int32),
        (jnp.int32, jnp.int32),
        (jnp.uint8, jnp.uint32),
        (jnp.uint32, jnp.uint32),
        (bool, jnp.int32),
    ],
)
def test_the_sum_of_small_integers_does_not_wrap(dtype, result):
    top = 1 if dtype is bool else min(int(jnp.iinfo(dtype).max), 2**20)
    total = fx.reduce_sum(fx.Clients(jnp.full(1000, top).astype(dtype)))
    assert total.dtype == result
    assert int(total) == 1000 * top


VERBS: dict[str, Any] = {
    "sum": fx.reduce_sum,
    "mean": fx.reduce_mean,
    "max": fx.reduce_max,
    "min": fx.reduce_min,
    "weighted": lambda x: fx.reduce_mean(x, weights=fx.Clients(jnp.arange(x.size))),
    "broadcast": lambda x: fx.broadcast(x.value[0], like=x),
    "map": lambda x: fx.client_map(lambda x: x, x),
    "masked map": lambda x: fx.client_map(lambda x: x, x, weights=fx.Clients(jnp.arange(x.size))),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("weak", [False, True])
def test_eager_jit_and_eval_shape_agree_on_weak_types(verb, weak):
    """A weak type decides what the next operation promotes to, so it may not depend on `jit`."""
    value = jax.lax.full((3,), 2.0) if weak else jnp.full((3,), 2.0, jnp.float32)
    x = fx.Clients(value)
    assert value.weak_type == weak
    kinds = [
        [(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(result)]
        for result in (VERBS[verb](x), jax.jit(VERBS[verb])(x), jax.eval_shape(VERBS[verb], x))
    ]
    assert kinds[0] == kinds[1] == kinds[2]


def test_what_a_client_makes_of_python_numbers():
    """They are one value a client, with the same dtype in every mode."""
    numbers: tuple[Any, ...] = (1.0, 2, True)
    fn = lambda x: fx.client_map(lambda x: (*numbers, x), x)
    x = fx.Clients(jnp.ones(3))
    eager, compiled, shapes = fn(x), jax.jit(fn)(x), jax.eval_shape(fn, x)
    for result in (eager, compiled, shapes):
        assert [leaf.shape for leaf in result.value] == [(3,)] * 4
    dtypes = [str(leaf.dtype) for leaf in eager.value]
    assert dtypes == ["float32", "int32", "bool", "float32"]
    assert dtypes == [str(leaf.dtype) for leaf in compiled.value]
    assert dtypes == [str(leaf.dtype) for leaf in shapes.value]


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.usefixtures("x64")
class TestInDoublePrecision:
    def test_float64_is_kept(self):
        x = fx.Clients(jnp.array([1.0, 1e-12, 3.0]))
        expected = (1.0 + 1e-12 + 3.0) / 3
        for fn in (fx.reduce_mean, jax.jit(fx.reduce_mean)):
            assert fn(x).dtype == jnp.float64
            np.testing.assert_allclose(fn(x), expected, rtol=1e-15)
        w = fx.Clients(jnp.array([1.0, 2.0, 1.0]))
        np.testing.assert_allclose(fx.reduce_mean(x, weights=w), (4 + 2e-12) / 4, rtol=1e-15)

    def test_float32_is_kept(self):
        x = fx.Clients(jnp.ones(3, jnp.float32))
        weights = fx.Clients(jnp.ones(3, jnp.float64))
        assert fx.reduce_mean(x).dtype == fx.reduce_mean(x, weights=weights).dtype == jnp.float32
        assert fx.reduce_sum(x).dtype == jnp.float32

    def test_a_mean_is_no_less_exact_than_its_values(self):
        """float32 weights of which the sum is not a float32: the total must not be rounded."""
        weights = fx.Clients(jnp.array([2.0**24, 1.0, 1.0], jnp.float32))
        mean = fx.reduce_mean(fx.Clients(jnp.ones(3)), weights=weights)
        np.testing.assert_allclose(mean, 1.0, rtol=1e-15)

    def test_the_mean_of_integers(self):
        x = fx.Clients(jnp.array([2**53 - 1, 1]))
        assert fx.reduce_mean(x).dtype == jnp.float64
        assert fx.reduce_mean(x) == 2.0**52
        assert fx.reduce_sum(x).dtype == jnp.int64
        assert fx.reduce_sum(fx.Clients(jnp.full(3, 127, jnp.int8))) == 381

    def test_the_cohort_size(self):
        assert fx.cohort_size(fx.Clients(jnp.ones(3))).dtype == jnp.int32

    def test_numpy_float64(self):
        mean = fx.reduce_mean(fx.Clients(np.array([0.1, 0.2])))
        assert mean.dtype == jnp.float64
        np.testing.assert_allclose(mean, 0.15, rtol=1e-15)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("dtype", "result"),
    [(jnp.int8, jnp.int32), (bool, jnp.int32), (jnp.uint16, jnp.uint32), (jnp.int64, jnp.int64)],
)
def test_the_sum_of_integers_has_one_dtype_in_64_bits_too(dtype, result):
    x = fx.Clients(jnp.ones((300,), dtype))
    for fn in (fx.reduce_sum, jax.jit(fx.reduce_sum), fx.stream(fx.reduce_sum, at_once=7)):
        total = fn(x)
        assert total.dtype == result
        assert int(total) == 300
