"""`Clients` is a PyTree: what JAX, Equinox and Optax do with its leaves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from federated.helpers import assert_same

import fedeqx as fx

X = jnp.arange(6.0).reshape(3, 2)


def clients() -> fx.Clients[Any]:
    return fx.Clients({"x": X, "n": jnp.arange(3)})


def test_leaves_and_paths():
    leaves = jtu.tree_leaves_with_path(clients())
    assert [jtu.keystr(path) for path, _ in leaves] == [".value['n']", ".value['x']"]
    assert jtu.tree_structure(clients()) == jtu.tree_structure(clients())
    assert jtu.tree_structure(clients()) != jtu.tree_structure(clients().value)


def test_tree_map_keeps_the_placement():
    doubled = jax.tree.map(lambda leaf: 2 * leaf, clients())
    assert_same(doubled, fx.Clients({"x": 2 * X, "n": 2 * jnp.arange(3)}))
    both = jax.tree.map(jnp.add, clients(), doubled)
    assert_same(both.value["x"], 3 * X)


def test_tree_map_may_put_anything_at_a_leaf():
    """Shapes, names, partition halves: not only arrays with a clients axis."""
    shapes = jax.tree.map(lambda leaf: leaf.shape, clients())
    assert shapes.value["x"] == (3, 2)
    floats, rest = eqx.partition(clients(), eqx.is_inexact_array)
    assert floats.value["n"] is None
    assert_same(eqx.combine(floats, rest), clients())
    replaced = eqx.tree_at(lambda c: c.value["x"], clients(), X + 1)
    assert_same(replaced.value["x"], X + 1)


def test_jit_takes_and_returns_it():
    found = jax.jit(lambda c: jax.tree.map(lambda leaf: leaf + leaf, c))(clients())
    assert_same(found, fx.Clients({"x": 2 * X, "n": 2 * jnp.arange(3)}))


def test_jit_traces_once_for_one_cohort_size():
    traces = []

    @jax.jit
    def fn(c):
        traces.append(c.size)
        return fx.reduce_sum(c)

    for size in (3, 3, 4, 3):
        fn(fx.Clients(jnp.ones(size)))
    assert traces == [3, 4]


def test_grad_with_respect_to_it_is_a_clients():
    gradient = jax.grad(lambda c: jnp.sum(fx.reduce_mean(c) ** 2))(fx.Clients(X))
    expected = np.stack([2 * np.asarray(X).mean(0) / 3] * 3)
    assert isinstance(gradient, fx.Clients)
    np.testing.assert_allclose(gradient.value, expected, rtol=1e-6)


def test_grad_of_integer_leaves():
    gradient = jax.grad(lambda c: jnp.sum(fx.reduce_sum(c)["x"]), allow_int=True)(clients())
    np.testing.assert_array_equal(gradient.value["x"], np.ones((3, 2)))
    assert gradient.value["n"].dtype == jax.dtypes.float0
    filtered = eqx.filter_grad(lambda c: jnp.sum(fx.reduce_sum(c)["x"]))(clients())
    assert filtered.value["n"] is None


def test_vmap_over_another_axis():
    stacked = fx.Clients(jnp.stack([X, 10 * X], axis=1))
    found = jax.vmap(fx.reduce_sum, in_axes=1)(stacked)
    np.testing.assert_allclose(found, np.stack([X.sum(0), 10 * X.sum(0)]))
    back = jax.vmap(lambda s: fx.broadcast(s, clients=3), out_axes=1)(found)
    assert back.size == 3
    np.testing.assert_allclose(back.value, np.stack([found] * 3))


def test_vmap_with_the_axis_in_front_or_behind():
    """The mapped axis may stand anywhere; the clients axis stays the first that a program sees."""
    stacked = jnp.stack([X, -X])
    for axis in (0, 1, 2):
        found = jax.vmap(fx.reduce_max, in_axes=axis)(fx.Clients(jnp.moveaxis(stacked, 0, axis)))
        np.testing.assert_allclose(found, np.stack([X.max(0), (-X).max(0)]))


def test_scan_over_rounds_slices_it():
    rounds = fx.Clients(jnp.stack([X, 2 * X, 3 * X, 4 * X]))

    def step(total, cohort):
        assert cohort.size == 3
        return total + fx.reduce_sum(cohort), cohort

    total, seen = jax.lax.scan(step, jnp.zeros(2), rounds)
    np.testing.assert_allclose(total, 10 * np.asarray(X).sum(0))
    assert_same(seen, rounds)


def test_it_can_be_the_carry_of_a_scan():
    double = lambda c, _: (fx.client_map(lambda x: 2 * x, c), None)
    grown, _ = jax.lax.scan(double, fx.Clients(X), length=3)
    assert_same(grown, fx.Clients(8 * X))


def test_cond_chooses_between_two():
    fn = lambda p: jax.lax.cond(p, lambda: fx.Clients(X), lambda: fx.Clients(-X))
    assert_same(jax.jit(fn)(True), fx.Clients(X))
    assert_same(jax.jit(fn)(False), fx.Clients(-X))


def test_eval_shape_gives_it_back():
    shape = jax.eval_shape(lambda c: c, clients())
    assert isinstance(shape, fx.Clients)
    assert shape.size == 3
    mean = jax.eval_shape(fx.reduce_mean, fx.Clients(jax.ShapeDtypeStruct((3, 2), jnp.float32)))
    assert (mean.shape, mean.dtype) == ((2,), jnp.float32)


@pytest.mark.parametrize(
    "optimizer", [optax.sgd(0.1), optax.sgd(0.1, momentum=0.9), optax.adam(0.1)]
)
def test_optax_updates_parameters_at_the_clients(optimizer):
    """One optimizer over stacked parameters; all of these rules work element by element."""
    params = fx.Clients({"w": X})
    with jax.numpy_dtype_promotion("standard"):
        state = optimizer.init(params)
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        found: Any = optax.apply_updates(params, updates)
        single = optimizer.init({"w": X})
        expected: Any = optimizer.update({"w": jnp.ones_like(X)}, single)[0]
    assert isinstance(found, fx.Clients)
    np.testing.assert_allclose(found.value["w"], X + expected["w"], rtol=1e-6)


def test_equinox_filters_see_its_leaves():
    found = eqx.filter_jit(lambda c: c)(fx.Clients({"x": X, "f": jnp.tanh}))
    assert found.value["f"] is jnp.tanh
    assert eqx.tree_equal(clients(), clients())
    assert not eqx.tree_equal(clients(), fx.Clients({"x": X + 1, "n": jnp.arange(3)}))
