"""What has no meaning gets an error that names the thing, what was found, and what to do."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from federated.helpers import label

import fedeqx as fx

N = 5
X = fx.Clients(jnp.arange(15.0).reshape(N, 3))
KEYS = fx.Clients(jax.random.split(jax.random.key(0), N))


class State(NamedTuple):
    value: Any
    key: Any


REDUCTIONS = [fx.reduce_sum, fx.reduce_mean, fx.reduce_max, fx.reduce_min]


@pytest.fixture(autouse=True)
def as_a_user_sees_it(monkeypatch):
    """Without the run-time type checks of the test set-up, whose errors would come first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def raised(error: type[Exception], fn: Any, *args: Any, **kwargs: Any) -> str:
    """The message, which must be the same under `jit` and `eval_shape`."""
    with pytest.raises(error) as eager:
        fn(*args, **kwargs)
    with pytest.raises(error) as shaped:
        jax.eval_shape(lambda: fn(*args, **kwargs))
    assert type(eager.value) is type(shaped.value)
    return str(eager.value)


@pytest.mark.parametrize("verb", REDUCTIONS)
def test_keys_cannot_be_reduced(verb):
    message = raised(TypeError, verb, fx.Clients(State(X.value, KEYS.value)))
    assert verb.__name__ in message
    assert ".key" in message
    assert "key<fry>" in message


def test_keys_have_no_weighted_mean():
    message = raised(TypeError, fx.reduce_mean, KEYS, weights=fx.Clients(jnp.ones(N)))
    assert "reduce_mean" in message


@pytest.mark.parametrize("verb", [fx.reduce_max, fx.reduce_min])
def test_complex_numbers_have_no_order(verb):
    message = raised(TypeError, verb, fx.Clients({"z": X.value.astype(complex)}))
    assert verb.__name__ in message
    assert "['z']" in message
    assert "complex64" in message


@pytest.mark.parametrize("verb", [*REDUCTIONS, fx.cohort_size])
@pytest.mark.parametrize("value", [jnp.ones(3), 1.0, {"a": jnp.ones(3)}, None], ids=label)
def test_only_clients_can_be_reduced(verb, value):
    """A server value reduced by mistake would be multiplied by the number of devices."""
    message = raised(TypeError, verb, value)
    assert verb.__name__ in message
    assert "server" in message


@pytest.mark.parametrize("verb", [*REDUCTIONS, fx.cohort_size])
def test_a_tree_of_clients_is_not_clients(verb):
    assert verb.__name__ in raised(TypeError, verb, {"a": X})


def test_broadcast_of_what_is_at_the_clients():
    message = raised(TypeError, fx.broadcast, {"a": [X]}, clients=N)
    assert "broadcast" in message
    assert "['a'][0]" in message


@pytest.mark.parametrize("sizes", [{}, {"clients": N, "like": X}])
def test_broadcast_needs_one_way_to_know_the_cohort(sizes):
    assert "clients=n" in raised(ValueError, fx.broadcast, jnp.ones(3), **sizes)


@pytest.mark.parametrize("clients", [0, -1, 2.0, True, "3"])
def test_broadcast_needs_a_cohort(clients):
    assert repr(clients) in raised(ValueError, fx.broadcast, jnp.ones(3), clients=clients)


def test_broadcast_like_a_server_value():
    assert "like" in raised(TypeError, fx.broadcast, jnp.ones(3), like=jnp.ones(N))


def test_client_map_needs_clients():
    for args in ((), (jnp.ones(3),), ({"a": jnp.ones(3)},)):
        assert "clients" in raised(ValueError, fx.client_map, lambda *a: a, *args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((X, fx.Clients(jnp.ones(4))), ["argument 0", "argument 1", "5", "4"]),
        (({"a": X, "b": fx.Clients(jnp.ones(4))},), ["['a']", "['b']", "5", "4"]),
        ((jnp.ones(3), X, [fx.Clients({"n": jnp.ones(6)})]), ["argument 2", "['n']", "6"]),
    ],
)
def test_client_map_of_two_cohorts(args, words):
    message = raised(ValueError, fx.client_map, lambda *a: a, *args)
    assert all(word in message for word in words), message


def test_client_map_must_not_return_clients():
    message = raised(TypeError, fx.client_map, lambda x: {"a": fx.Clients(x)}, X)
    assert "['a']" in message


def test_an_error_in_the_client_function_comes_through():
    def fails(x):
        raise RuntimeError("from the client")

    assert raised(RuntimeError, fx.client_map, fails, X) == "from the client"


NOT_WEIGHTS = {
    "at the server": jnp.ones(N),
    "a number": 1.0,
    "a list": [1.0] * N,
    "two numbers a client": fx.Clients(jnp.ones((N, 2))),
    "a tree": fx.Clients({"w": jnp.ones(N)}),
    "keys": KEYS,
    "complex": fx.Clients(jnp.ones(N, complex)),
}


@pytest.mark.parametrize("weights", NOT_WEIGHTS.values(), ids=NOT_WEIGHTS)
def test_weights_are_one_real_number_a_client(weights):
    for verb, args in ((fx.reduce_mean, (X,)), (fx.client_map, (jnp.sum, X))):
        message = raised(TypeError, verb, *args, weights=weights)
        assert verb.__name__ in message
        assert "weights" in message


def test_weights_of_another_cohort():
    for verb, args in ((fx.reduce_mean, (X,)), (fx.client_map, (jnp.sum, X))):
        message = raised(ValueError, verb, *args, weights=fx.Clients(jnp.ones(N + 1)))
        assert "weights" in message
        assert "5" in message
        assert "6" in message


def test_ragged_cohorts_made_by_tree_map_are_refused():
    """`tree_map` may put anything at a leaf; the next operation looks again."""
    shorten = lambda path, leaf: leaf[:3] if "'b'" in jax.tree_util.keystr(path) else leaf
    ragged = jax.tree_util.tree_map_with_path(shorten, fx.Clients({"a": X.value, "b": X.value}))
    for verb in (*REDUCTIONS, fx.cohort_size, lambda x: fx.client_map(lambda one: one, x)):
        message = raised(ValueError, verb, ragged)
        assert "['a']" in message
        assert "['b']" in message


def test_numpy_strings_are_no_numbers():
    with pytest.raises(TypeError):
        fx.reduce_sum(fx.Clients(np.array(["a", "b"])))
