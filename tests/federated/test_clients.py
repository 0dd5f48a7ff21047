"""The type `Clients`: making it, taking single clients out of it, and what it refuses."""

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federated.helpers import assert_same, label

import fedeqx as fx


class Pair(NamedTuple):
    a: Any
    b: Any


class Layer(eqx.Module):
    weight: Any
    activation: Callable[..., Any]
    name: str = eqx.field(static=True)


def test_placement_names():
    assert (fx.CLIENTS, fx.SERVER) == ("clients", "server")


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((5, 2)),
        jnp.zeros(5),
        {"a": jnp.zeros((5, 0)), "b": [jnp.zeros((5, 2)), None]},
        Pair(jnp.zeros((5, 1), bool), "shared"),
        jax.random.split(jax.random.key(0), 5),
        jax.ShapeDtypeStruct((5, 3), jnp.float32),
        Layer(jnp.zeros((5, 3)), jax.nn.relu, "layer"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_size_is_the_leading_axis(value):
    assert fx.Clients(value).size == 5
    assert isinstance(fx.Clients(value).size, int)
    assert fx.Clients(value).value is value


def test_size_is_static_under_jit():
    assert jax.jit(lambda c: jnp.zeros(c.size))(fx.Clients(jnp.ones((5, 2)))).shape == (5,)


@pytest.mark.parametrize(
    ("trees", "stacked"),
    [
        ([jnp.float32(1), jnp.float32(2)], jnp.array([1.0, 2.0])),
        ([jnp.array(True), jnp.array(False)], jnp.array([True, False])),
        ([{"x": jnp.ones(3)}, {"x": jnp.zeros(3)}], {"x": jnp.array([[1.0] * 3, [0.0] * 3])}),
        ([Pair(jnp.ones(0), None)] * 2, Pair(jnp.ones((2, 0)), None)),
        ([jnp.ones(2, jnp.bfloat16)] * 2, jnp.ones((2, 2), jnp.bfloat16)),
        ([jax.random.key(0), jax.random.key(1)], jax.vmap(jax.random.key)(jnp.arange(2))),
        ([Layer(jnp.ones(2), jnp.tanh, "n")] * 2, Layer(jnp.ones((2, 2)), jnp.tanh, "n")),
    ],
    ids=label,
)
def test_stack_and_iteration_are_inverse(trees, stacked):
    clients = fx.Clients.stack(trees)
    assert isinstance(clients, fx.Clients)
    assert_same(clients.value, stacked)
    assert clients.size == 2
    assert_same(list(clients), trees)


@pytest.mark.parametrize("numbers", [[1.5, 2.5, -1.0], [1, 2, 3], [1j, 2.0 + 1j]])
def test_stack_of_python_numbers(numbers):
    value = fx.Clients.stack([{"rate": n} for n in numbers]).value["rate"]
    assert value.dtype == jnp.asarray(numbers).dtype
    np.testing.assert_array_equal(value, np.asarray(numbers))


def test_stack_keeps_numpy():
    """Data loading must not touch a device."""
    clients = fx.Clients.stack([{"x": np.arange(3), "n": np.float64(2)}] * 4)
    assert isinstance(clients.value["x"], np.ndarray)
    assert clients.value["n"].dtype == np.float64
    assert all(
        isinstance(leaf, np.ndarray | np.generic) for one in clients for leaf in one.values()
    )


def test_iteration_under_jit():
    fn = lambda c: [2 * one["x"] for one in c]
    found = jax.jit(fn)(fx.Clients({"x": jnp.arange(6.0).reshape(3, 2)}))
    assert_same(found, [jnp.array([0.0, 2.0]), jnp.array([4.0, 6.0]), jnp.array([8.0, 10.0])])


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ({"a": jnp.ones((3, 1)), "b": jnp.ones((4, 1))}, ValueError, ["['a']", "['b']", "3", "4"]),
        ({"a": jnp.ones(3), "b": jnp.float32(1)}, ValueError, ["['b']", "clients axis"]),
        ({"a": jnp.ones(3), "b": np.float32(1)}, ValueError, ["['b']", "clients axis"]),
        ({"a": jnp.ones(3), "b": 2.0}, TypeError, ["['b']", "float"]),
        ({"a": jnp.ones(3), "b": True}, TypeError, ["['b']", "bool"]),
        ({"a": fx.Clients(jnp.ones(3))}, TypeError, ["['a']", "Clients"]),
        (jnp.ones((0, 3)), ValueError, ["at least one client"]),
        (Pair(jnp.ones((2, 1)), jnp.ones((3, 1))), ValueError, [".a", ".b", "2", "3"]),
        (Layer(jnp.float32(0), jnp.tanh, "n"), ValueError, [".weight"]),
    ],
    ids=label,
)
def test_what_is_no_cohort_is_refused_by_leaf(value, error, words):
    with pytest.raises(error) as info:
        fx.Clients(value)
    assert all(word in str(info.value) for word in words), str(info.value)


def test_size_needs_an_array():
    with pytest.raises(ValueError, match="how many clients"):
        fx.Clients({"f": jax.nn.relu}).size  # noqa: B018


@pytest.mark.parametrize(
    ("trees", "words"),
    [
        ([], ["at least one"]),
        ([{"a": jnp.ones(2)}, {"b": jnp.ones(2)}], ["structure", "client 1"]),
        ([{"a": jnp.ones(2)}, {"a": jnp.ones(3)}], ["['a']", "[2]", "[3]", "client 1"]),
        ([jnp.ones(2), jnp.ones(2), jnp.ones(2, int)], ["float32", "int32", "client 2"]),
        ([{"f": jnp.tanh, "x": jnp.ones(1)}, {"f": jnp.sin, "x": jnp.ones(1)}], ["['f']"]),
        ([{"x": "left"}, {"x": "right"}], ["['x']", "left", "right"]),
        ([Layer(jnp.ones(1), jnp.tanh, "n"), Layer(jnp.ones(1), jnp.tanh, "m")], ["client 1"]),
        ([{"x": jnp.ones(2)}, {"x": None}], ["client 1"]),
        ([{"x": jnp.ones(2)}, {"x": jnp.ones(2)}, {"x": "text"}], ["['x']", "client 2"]),
        ([{"x": "text"}, {"x": jnp.ones(2)}], ["['x']", "client 1"]),
        ([jax.random.key(0), jax.random.key(0, impl="rbg")], ["client 1"]),
    ],
    ids=label,
)
def test_stack_says_which_client_differs_and_where(trees, words):
    with pytest.raises(ValueError, match=r"Clients\.stack") as info:
        fx.Clients.stack(trees)
    assert all(word in str(info.value) for word in words), str(info.value)


def test_clients_is_final_and_frozen():
    clients = fx.Clients(jnp.ones(3))
    with pytest.raises(AttributeError):
        clients.value = jnp.ones(4)  # pyright: ignore[reportAttributeAccessIssue]


def test_clients_survives_pickling():
    """Cohorts go through worker processes."""
    clients = fx.Clients({"x": np.arange(6).reshape(3, 2), "name": "shared"})
    assert_same(pickle.loads(pickle.dumps(clients)), clients)
