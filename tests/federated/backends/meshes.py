"""Meshes of every kind, every way to declare one, and a program whose oracle is NumPy."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jaxtyping import Array, Float

import fedeqx as fx

WAYS = ("set_mesh", "with", "program")


def make_mesh(axes: str, devices: Any = None) -> Mesh:
    """`"clients=4 model=2!"`: the axes in order with their sizes; `!` makes an axis explicit."""
    names, sizes, types = [], [], []
    for axis in axes.split():
        name, size = axis.split("=")
        names.append(name)
        sizes.append(int(size.rstrip("!")))
        types.append(AxisType.Explicit if size.endswith("!") else AxisType.Auto)
    if devices is None:
        devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(tuple(sizes), tuple(names), axis_types=tuple(types), devices=devices)


@contextlib.contextmanager
def declared(mesh: Mesh, way: str) -> Iterator[None]:
    """The two ways to declare a mesh around a call."""
    if way == "set_mesh":
        with jax.set_mesh(mesh):
            yield
    else:
        with contextlib.ExitStack() as stack:
            with pytest.warns(DeprecationWarning, match="with mesh"):
                stack.enter_context(mesh)
            yield


def on_mesh(
    program: Callable[..., Any],
    mesh: Mesh,
    way: str = "set_mesh",
    transform: Callable[[Any], Any] = lambda fn: fn,
) -> Callable[..., Any]:
    """The transformed program, with the mesh declared in one of `WAYS`."""
    if way == "program":
        return transform(fx.program(mesh=mesh)(program))

    def run(*args: Any) -> Any:
        with declared(mesh, way):
            return transform(program)(*args)

    return run


ALL = (0, 1, 2, 3, 4)


def squared_error(
    w: Float[Array, "features"],
    b: Float[Array, ""],
    x: Float[Array, "batch features"],
    y: Float[Array, "batch"],
) -> Float[Array, ""]:
    return jnp.mean((x @ w + b - y) ** 2)


def weighted_loss(w, b, x, y, weights):
    return fx.reduce_mean(fx.client_map(squared_error, w, b, x, y), weights=weights)


def value_and_gradients(program: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(program, argnums=ALL)


def jit_value_and_gradients(program: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(value_and_gradients(program))


def regression(clients: int, seed: int = 0) -> tuple[Any, ...]:
    """Arguments of `weighted_loss` as NumPy arrays; all weights are positive and differ."""
    rng = np.random.default_rng([seed, clients])
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    weights = rng.uniform(0.5, 2.0, clients).astype(np.float32)
    x, y = draw(clients, 2, 4), draw(clients, 2)
    return draw(4), draw(), fx.Clients(x), fx.Clients(y), fx.Clients(weights)


def np_weighted_loss(w, b, x, y, weights) -> tuple[Any, tuple[Any, ...]]:
    """The value and all five gradients of `weighted_loss`, by hand, one client at a time."""
    w, b = np.asarray(w, np.float64), float(b)
    x, y, k = (np.asarray(c.value, np.float64) for c in (x, y, weights))
    losses, dw, db, dx, dy = [], np.zeros_like(w), 0.0, np.zeros_like(x), np.zeros_like(y)
    for i in range(len(x)):
        residual = x[i] @ w + b - y[i]
        share = k[i] / k.sum() * 2 * residual / len(residual)
        losses.append(np.mean(residual**2))
        dw += x[i].T @ share
        db += share.sum()
        dx[i] = np.outer(share, w)
        dy[i] = -share
    mean = np.dot(k, losses) / k.sum()
    return mean, (dw, db, dx, dy, (np.array(losses) - mean) / k.sum())


def to_jax(args: Any) -> Any:
    return jax.tree.map(jnp.asarray, args)


def assert_close(found: Any, expected: Any, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    """The leaves agree in number, shape and value; a `Clients` is as good as its value."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert np.shape(x) == np.shape(y)
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


_COLLECTIVE = re.compile(
    r" = (?P<type>.*?) "
    r"(?P<name>all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    r"|collective-broadcast|ragged-all-to-all)(-start)?\("
)


def collectives(fn: Callable[..., Any], *args: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The name of each collective in the compiled program, and the dtypes that it carries."""
    text = jax.jit(fn).lower(*args).compile().as_text()
    assert text is not None
    return sorted(
        (found["name"], tuple(sorted(re.findall(r"\b([a-z]+\d*)\[", found["type"]))))
        for found in _COLLECTIVE.finditer(text)
    )
