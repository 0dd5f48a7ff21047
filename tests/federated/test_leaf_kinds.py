"""Every kind of leaf goes through every operation that has a meaning for it; else a named error."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from federated.helpers import as_numpy, assert_same

import fedeqx as fx

N = 5


class Pair(NamedTuple):
    x: Any
    none: Any = None


class Layer(eqx.Module):
    weight: Any
    activation: Callable[..., Any]
    label: str
    width: int = eqx.field(static=True)


def _numbers(dtype: Any, shape: tuple[int, ...] = (3,)) -> Callable[[int], Any]:
    """One client's value, different for each client, exactly representable in every dtype."""

    def one(i: int) -> Any:
        entries = (np.arange(int(np.prod(shape))).reshape(shape) * (i + 1)) % 7
        return jnp.asarray(entries).astype(dtype)

    return one


FLOATS = {
    "float32": _numbers(jnp.float32),
    "bfloat16": _numbers(jnp.bfloat16),
    "float16": _numbers(jnp.float16),
    "matrix": _numbers(jnp.float32, (2, 3)),
    "scalar": lambda i: jnp.float32(i * i - 3),
    "zero size": _numbers(jnp.float32, (0, 2)),
    "NumPy": lambda i: np.arange(3, dtype=np.float32) * (2 - i),
    "NumPy float64": lambda i: np.arange(3, dtype=np.float64) * (2 - i),
    "NumPy scalar": lambda i: np.float32(i - 2),
    "NamedTuple with None": lambda i: Pair(jnp.arange(3.0) * i),
    "module": lambda i: Layer(jnp.arange(3.0) * (i - 1), jnp.tanh, "name", 3),
    "nested": lambda i: {"a": [jnp.arange(2.0) + i, (jnp.float32(i),)], "f": jax.nn.relu},
    "optax adam": lambda i: optax.adam(0.1).init({"w": jnp.arange(3.0) + i}),
    "optax momentum": lambda i: optax.sgd(0.1, momentum=0.9).init({"w": jnp.arange(3.0) + i}),
}
INTEGERS = {
    "int32": _numbers(jnp.int32),
    "int8": _numbers(jnp.int8),
    "int16": _numbers(jnp.int16),
    "uint8": _numbers(jnp.uint8),
    "uint32": _numbers(jnp.uint32),
    "NumPy int64": lambda i: np.arange(3) * (2 - i),
    "bool": lambda i: jnp.array([i % 2 == 0, True, False]),
    "bool scalar": lambda i: jnp.asarray(i == 3),
}
COMPLEX = {"complex64": lambda i: jnp.array([1j, 2.0 - 1j]) * i}
KEYS = {
    "key": lambda i: jax.random.key(i),
    "keys": lambda i: jax.random.split(jax.random.key(i), 2),
    "rbg key": lambda i: jax.random.key(i, impl="rbg"),
    "key in a tree": lambda i: Pair(jax.random.key(i)),
}
NUMBERS = FLOATS | INTEGERS | COMPLEX
ALL = NUMBERS | KEYS
# A state without any array is a client's value too: optax's plain SGD has one.
NO_ARRAYS = {
    "optax sgd": lambda i: optax.sgd(0.1).init({"w": jnp.arange(3.0)}),
    "None": lambda i: None,
    "function": lambda i: jnp.tanh,
    "empty": lambda i: {},
}


def cohort(kind: Callable[[int], Any]) -> tuple[list[Any], fx.Clients[Any]]:
    singles = [kind(i) for i in range(N)]
    return singles, fx.Clients.stack(singles)


def fold(fn: Callable[[list[np.ndarray]], Any], singles: list[Any]) -> Any:
    """A NumPy fold over the clients for each array leaf; other leaves are the first client's."""

    def leaf(*leaves: Any) -> Any:
        return fn([as_numpy(x) for x in leaves]) if hasattr(leaves[0], "dtype") else leaves[0]

    return jtu.tree_map(leaf, *singles)


def check(found: Any, expected: Any) -> None:
    assert jtu.tree_structure(found) == jtu.tree_structure(expected)
    for f, e in zip(jtu.tree_leaves(found), jtu.tree_leaves(expected), strict=True):
        if hasattr(e, "dtype"):
            assert as_numpy(f).shape == e.shape
            rtol = {"bfloat16": 8e-3, "float16": 1e-3}.get(str(f.dtype), 1e-5)
            np.testing.assert_allclose(as_numpy(f), e, rtol=rtol, atol=1e-6)
        else:
            assert f is e


by = lambda kinds: pytest.mark.parametrize("kind", kinds.values(), ids=kinds)


@by(ALL)
def test_broadcast(kind):
    single = kind(1)
    sent = fx.broadcast(single, clients=N)
    assert isinstance(sent, fx.Clients)
    check(sent.value, fold(lambda rows: np.stack(rows), [single] * N))
    assert_same(fx.broadcast(single, like=fx.Clients(jnp.zeros(N))), sent)
    assert_same(jax.tree.map(_dtype, sent.value), jax.tree.map(_dtype, _as_jax(single)))


def _dtype(leaf: Any) -> Any:
    return str(leaf.dtype) if hasattr(leaf, "dtype") else leaf


def _as_jax(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x) if hasattr(x, "dtype") else x, tree)


@by(ALL)
def test_client_map_takes_and_returns_it(kind):
    """From the clients, from the server, and as the client function's result."""
    singles, clients = cohort(kind)
    check(fx.client_map(lambda tree: tree, clients).value, fold(np.stack, singles))
    ids = fx.Clients(jnp.arange(N))
    check(
        fx.client_map(lambda tree, i: tree, singles[1], ids).value,
        fold(np.stack, [singles[1]] * N),
    )


@by(ALL)
def test_client_map_sees_one_client_without_an_axis(kind):
    singles, clients = cohort(kind)
    shapes = lambda tree: jax.tree.map(jnp.shape, eqx.filter(_as_jax(tree), eqx.is_array))
    seen = []

    def look(tree):
        seen.append(shapes(tree))
        return tree

    fx.client_map(look, clients)
    assert seen[0] == shapes(singles[0])


@by(ALL)
def test_cohort_size(kind):
    size = fx.cohort_size(cohort(kind)[1])
    assert_same(size, jnp.int32(N))


@by(NUMBERS)
def test_reduce_sum(kind):
    singles, clients = cohort(kind)
    check(fx.reduce_sum(clients), fold(lambda rows: sum(r.astype(_wide(r)) for r in rows), singles))


def _wide(array: np.ndarray) -> Any:
    return np.int64 if array.dtype.kind in "biu" else array.dtype


@by(NUMBERS)
def test_reduce_mean(kind):
    singles, clients = cohort(kind)
    mean = lambda rows: sum(r.astype(_float(r)) for r in rows) / N
    check(fx.reduce_mean(clients), fold(mean, singles))


def _float(array: np.ndarray) -> Any:
    return np.complex128 if array.dtype.kind == "c" else np.float64


@by(NUMBERS)
def test_weighted_mean(kind):
    singles, clients = cohort(kind)
    w = np.array([0.0, 1.0, 3.0, 0.0, 4.0], np.float32)
    mean = lambda rows: sum(w[i] * r.astype(_float(r)) for i, r in enumerate(rows)) / 8
    found = fx.reduce_mean(clients, weights=fx.Clients(jnp.asarray(w)))
    check(found, fold(mean, singles))


@pytest.mark.parametrize(
    ("reduce", "numpy"), [(fx.reduce_max, np.maximum), (fx.reduce_min, np.minimum)]
)
@by(FLOATS | INTEGERS)
def test_extremes(kind, reduce, numpy):
    singles, clients = cohort(kind)
    found = reduce(clients)
    check(found, fold(lambda rows: _fold(numpy, rows), singles))
    dtypes = lambda tree: jax.tree.map(_dtype, tree)
    assert dtypes(found) == dtypes(_as_jax(singles[0]))


def _fold(numpy: Callable[..., Any], rows: list[np.ndarray]) -> Any:
    result = rows[0]
    for row in rows[1:]:
        result = numpy(result, row)
    return result


@by(ALL)
def test_jit_and_eval_shape_agree_with_eager(kind):
    _, clients = cohort(kind)
    arrays, rest = eqx.partition(clients, eqx.is_array)
    is_key = any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jtu.tree_leaves(arrays))
    verbs = [] if is_key else [fx.reduce_sum, fx.reduce_mean]
    if not any(jnp.iscomplexobj(x) for x in jtu.tree_leaves(arrays)) and not is_key:
        verbs += [fx.reduce_max, fx.reduce_min]

    def all_of_them(arrays: Any) -> Any:
        clients = eqx.combine(arrays, rest)
        mapped = fx.client_map(lambda tree: tree, clients)
        results = mapped, [fx.broadcast(verb(clients), like=clients) for verb in verbs]
        return eqx.filter(results, eqx.is_array)

    eager = all_of_them(arrays)
    assert_same(jax.jit(all_of_them)(arrays), eager, rtol=1e-6)
    assert_same(jax.eval_shape(all_of_them, arrays), eager)


@by(NO_ARRAYS)
def test_a_value_without_arrays_passes_through(kind):
    """It says nothing of the cohort's size, so something else in the call must."""
    x = fx.Clients(jnp.arange(N))
    sent = fx.broadcast(kind(0), like=x)
    made = fx.client_map(lambda x: kind(0), x)
    for clients in (sent, made):
        assert isinstance(clients, fx.Clients)
        assert jtu.tree_structure(clients.value) == jtu.tree_structure(kind(0))
        again = fx.client_map(lambda x, state: (x, state), x, clients)
        assert_same(again.value[0], jnp.arange(N))
        for verb in (fx.reduce_sum, fx.reduce_mean, fx.reduce_max, fx.reduce_min):
            assert jtu.tree_structure(verb(clients)) == jtu.tree_structure(kind(0))


def test_a_module_with_python_numbers_passes_through():
    """`eqx.nn.Dropout` has its rate and a flag as leaves that are no arrays."""
    dropout = eqx.nn.Dropout(0.25)
    x = fx.Clients(jnp.ones(N))
    model = (eqx.nn.Linear(2, 3, key=jax.random.key(0)), dropout)
    for clients in (fx.broadcast(model, like=x), fx.client_map(lambda m, x: m, model, x)):
        assert clients.size == N
        assert clients.value[1].p == 0.25
        for verb in (fx.reduce_mean, fx.reduce_max):
            reduced = verb(clients)
            assert reduced[1] == dropout
            np.testing.assert_allclose(reduced[0].weight, model[0].weight, rtol=1e-6)


def test_an_equinox_model_goes_through_a_round():
    """MLP, LayerNorm, Dropout: function leaves, static fields, flags, None."""
    model = eqx.nn.Sequential(
        [
            eqx.nn.MLP(2, 2, 4, 0, activation=jnp.tanh, key=jax.random.key(0)),
            eqx.nn.LayerNorm(2, use_bias=False),
            eqx.nn.Dropout(0.5),
        ]
    )
    data = fx.Clients(jnp.ones((N, 2)))
    keys = fx.Clients(jax.random.split(jax.random.key(1), N))

    def tuned(model, x, key):
        grads = eqx.filter_grad(lambda m: jnp.sum(m(x, key=key) ** 2))(model)
        return eqx.apply_updates(model, grads)

    one_round = lambda *args: fx.reduce_mean(fx.client_map(tuned, *args))
    new = eqx.filter_jit(one_round)(model, data, keys)
    assert jtu.tree_structure(new) == jtu.tree_structure(model)
    assert new.layers[0].activation is model.layers[0].activation
    assert not jnp.array_equal(new.layers[0].layers[0].weight, model.layers[0].layers[0].weight)
