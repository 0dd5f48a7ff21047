"""Cases made of others: programs within programs and within clients, and state of a client."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import fedeqx as fx

from ._case import Case
from ._regression import BATCH, FEATURES, Inputs, Labels, Linear, Scalar, np_average, regression

Vector = Float[Array, "features"]


@fx.program
def center(x: fx.Clients[Vector]) -> fx.Server[Vector]:
    return fx.reduce_mean(x)


@fx.program
def nested_programs(scale: fx.Server[Scalar], x: fx.Clients[Inputs]) -> fx.Server[Vector]:
    """A program calls one, and each client runs one among examples of its own."""
    means = fx.client_map(lambda rows: center(fx.Clients(rows)), x)
    middle = center(means)

    def spread(scale, middle, rows):
        away = fx.client_map(lambda row: scale * (row - middle) ** 2, fx.Clients(rows))
        return fx.reduce_sum(away)

    return fx.reduce_mean(fx.client_map(spread, scale, middle, x))


def np_nested_programs(scale: Any, x: Any) -> Any:
    middle = sum(rows.sum(0) / BATCH for rows in x) / len(x)
    total = np.zeros(FEATURES)
    for rows in x:
        for row in rows:
            total = total + scale * (row - middle) ** 2
    return total / len(x)


class BatchNorm(NamedTuple):
    """The running statistics of what comes in."""

    mean: Vector
    variance: Vector


@fx.program
def batch_norm_round(
    model: fx.Server[Linear],
    statistics: fx.Server[BatchNorm],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
) -> fx.Server[tuple[BatchNorm, Scalar]]:
    """Each client normalizes by its own batch, and the running statistics are averaged."""

    def at_client(model, statistics, x, y):
        mean, variance = jnp.mean(x, axis=0), jnp.var(x, axis=0)
        normal = (x - mean[None]) / jnp.sqrt(variance + 0.1)[None]
        loss = jnp.mean((normal @ model.weight + model.bias - y) ** 2)
        new = BatchNorm(
            0.9 * statistics.mean + 0.1 * mean, 0.9 * statistics.variance + 0.1 * variance
        )
        return new, loss

    return fx.reduce_mean(fx.client_map(at_client, model, statistics, x, y))


def np_batch_norm_round(model: Any, statistics: Any, x: Any, y: Any) -> Any:
    news, total = [], 0.0
    for rows, labels in zip(x, y, strict=True):
        mean, variance = rows.sum(0) / BATCH, ((rows - rows.mean(0)) ** 2).sum(0) / BATCH
        normal = (rows - mean) / np.sqrt(variance + 0.1)
        total = total + ((normal @ model[0] + model[1] - labels) ** 2).sum() / BATCH
        news.append([0.9 * statistics[0] + 0.1 * mean, 0.9 * statistics[1] + 0.1 * variance])
    average = np_average(news)
    return BatchNorm(average[0], average[1]), np.asarray(total / len(x))


def _with_statistics(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    model, x, y = regression(n, rng)
    statistics = BatchNorm(rng.normal(size=FEATURES), rng.uniform(0.5, 2.0, FEATURES))  # pyright: ignore
    return model, statistics, x, y


COMPOSED = (
    Case(
        "nested_programs",
        nested_programs,
        lambda n, rng: (np.asarray(1.5), regression(n, rng)[1]),
        np_nested_programs,
        (0, 1),
    ),
    Case(
        "batch_norm_round",
        batch_norm_round,
        _with_statistics,
        np_batch_norm_round,
        (0, 1, 2),
        rtol=1e-4,
    ),
)
