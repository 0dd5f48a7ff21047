"""What a type checker must make of the language. Checked by pyright, never run.

Each line of `accepted` must type-check with exactly the type it asserts. Each ignored error of
`refused` must be one: pyright reports an ignore comment that is not needed.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Iterator
from typing import Literal, NamedTuple, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import fedeqx as fx


class Model(NamedTuple):
    weight: Float[Array, "features"]
    bias: Float[Array, ""]


class Batch(NamedTuple):
    x: Float[Array, "batch features"]
    y: Float[Array, "batch"]


def loss(model: Model, batch: Batch) -> Float[Array, ""]:
    return jnp.mean((batch.x @ model.weight + model.bias - batch.y) ** 2)


def train(model: Model, batch: Batch) -> tuple[Model, int]:
    return model, 1


@fx.program
def mean_loss(model: fx.Server[Model], data: fx.Clients[Batch]) -> fx.Server[Float[Array, ""]]:
    return fx.reduce_mean(fx.client_map(loss, model, data))


MESH = jax.make_mesh((1,), ("clients",))


@fx.program(mesh=MESH)
def evaluate(data: fx.Clients[Batch], *, scale: fx.Server[float] = 1.0) -> fx.Clients[Array]:
    return fx.client_map(lambda batch: batch.y * scale, data)


def accepted(model: Model, data: fx.Clients[Batch], trees: list[Batch]) -> None:
    assert_type(data.value, Batch)
    assert_type(data.size, int)
    assert_type(iter(data), Iterator[Batch])
    for batch in data:
        assert_type(batch, Batch)
    assert_type(fx.Clients(model), fx.Clients[Model])
    assert_type(fx.Clients.stack(trees), fx.Clients[Batch])

    # Server[T] is T, and so is what a reduction gives.
    assert_type(fx.reduce_sum(data), Batch)
    assert_type(fx.reduce_mean(data), Batch)
    assert_type(fx.reduce_max(data), Batch)
    assert_type(fx.reduce_min(data), Batch)
    assert_type(fx.cohort_size(data), Int[Array, ""])
    assert_type(fx.broadcast(model, clients=3), fx.Clients[Model])
    assert_type(fx.broadcast(model, like=data), fx.Clients[Model])

    # client_map gives Clients of what the function returns.
    losses = fx.client_map(loss, model, data)
    assert_type(losses, fx.Clients[Array])
    assert_type(fx.client_map(train, model, data), fx.Clients[tuple[Model, int]])
    assert_type(fx.reduce_mean(fx.client_map(train, model, data))[0], Model)

    # Weights: what clients computed, integers, booleans, NumPy counts from a data set.
    fx.reduce_mean(losses, weights=losses)
    fx.client_map(loss, model, data, weights=fx.Clients(jnp.ones(3, int)))
    fx.reduce_mean(losses, weights=fx.Clients(np.ones(3)))

    # A program has its function's own signature.
    assert_type(mean_loss(model, data), Array)
    assert_type(mean_loss(model=model, data=data), Array)
    assert_type(evaluate(data, scale=2.0), fx.Clients[Array])

    assert_type(fx.CLIENTS, Literal["clients"])
    assert_type(fx.SERVER, Literal["server"])


def refused(model: Model, data: fx.Clients[Batch]) -> None:
    mean_loss(model, fx.reduce_sum(data))  # pyright: ignore[reportArgumentType]
    mean_loss(fx.broadcast(model, like=data), data)  # pyright: ignore[reportArgumentType]
    mean_loss(model)  # pyright: ignore[reportCallIssue]
    evaluate(data, 2.0)  # pyright: ignore[reportCallIssue]
    fx.reduce_mean(model)  # pyright: ignore[reportArgumentType]
    fx.reduce_sum(fx.reduce_sum(data))  # pyright: ignore[reportArgumentType]
    fx.cohort_size(model)  # pyright: ignore[reportArgumentType]
    fx.broadcast(model, 3)  # pyright: ignore[reportCallIssue]
    fx.broadcast(model, like=model)  # pyright: ignore[reportArgumentType]
    fx.reduce_mean(data, weights=model.weight)  # pyright: ignore[reportArgumentType]
    fx.client_map(loss, data, weights=model.weight)  # pyright: ignore[reportArgumentType]

    class Derived(fx.Clients[Model]):  # pyright: ignore[reportGeneralTypeIssues]
        pass

    @fx.program
    def stays(data: fx.Clients[Batch]) -> fx.Server[Batch]:
        return data  # pyright: ignore[reportReturnType]

    @fx.program
    def goes(data: fx.Clients[Batch]) -> fx.Clients[Batch]:
        return fx.reduce_mean(data)  # pyright: ignore[reportReturnType]
