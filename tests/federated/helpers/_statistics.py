"""Cases without learning: reductions of what clients hold, and values sent back to them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Bool, Float, Int, Key

import fedeqx as fx

from ._case import Case
from ._regression import Linear, Scalar, linear, np_average, np_linear

Vector = Float[Array, "features"]


@fx.program
def extremes(x: fx.Clients[Vector]) -> fx.Server[dict[str, Vector]]:
    return {"max": fx.reduce_max(x), "min": fx.reduce_min(x), "sum": fx.reduce_sum(x)}


def np_extremes(x: Any) -> Any:
    high, low, total = x[0].copy(), x[0].copy(), np.zeros_like(x[0])
    for row in x:
        high, low, total = np.maximum(high, row), np.minimum(low, row), total + row
    return {"max": high, "min": low, "sum": total}


@fx.program
def variance(x: fx.Clients[Vector]) -> fx.Server[Vector]:
    mean = fx.reduce_mean(x)
    return fx.reduce_mean(fx.client_map(lambda mean, x: (x - mean) ** 2, mean, x))


@fx.program
def standardize(x: fx.Clients[Vector]) -> fx.Clients[Vector]:
    """A program that calls a program, and ends at the clients."""
    mean, scale = fx.reduce_mean(x), jnp.sqrt(variance(x) + 0.1)
    return fx.client_map(lambda x, stats: (x - stats[0]) / stats[1], x, (mean, scale))


def np_variance(x: Any) -> Any:
    mean = sum(x) / len(x)
    return sum((row - mean) ** 2 for row in x) / len(x)


def np_standardize(x: Any) -> Any:
    mean, scale = sum(x) / len(x), np.sqrt(np_variance(x) + 0.1)
    return np.stack([(row - mean) / scale for row in x])


@fx.program
def shares(x: fx.Clients[Vector]) -> fx.Clients[Vector]:
    """A mean spelled out with `cohort_size`, and an explicit `broadcast`."""
    mean = fx.reduce_sum(x) / fx.cohort_size(x).astype(jnp.float32)
    sent = fx.broadcast(mean, like=x)
    return fx.client_map(lambda mine, mean: mine * mean, x, sent)


def np_shares(x: Any) -> Any:
    mean = sum(x) / len(x)
    return np.stack([row * mean for row in x])


class Counts(NamedTuple):
    examples: Int[Array, ""]
    label_seen: Bool[Array, "labels"]


class Report(NamedTuple):
    total: Int[Array, ""]
    seen_by: Int[Array, "labels"]
    seen: Bool[Array, "labels"]
    seen_by_all: Bool[Array, "labels"]
    largest: Int[Array, ""]
    mean: Float[Array, ""]


@fx.program
def census(counts: fx.Clients[Counts]) -> fx.Server[Report]:
    total = fx.reduce_sum(counts)
    most, least = fx.reduce_max(counts), fx.reduce_min(counts)
    mean = fx.reduce_mean(counts).examples
    return Report(
        total.examples, total.label_seen, most.label_seen, least.label_seen, most.examples, mean
    )


def np_census(counts: Any) -> Any:
    examples, seen = [int(e) for e in counts.examples], [row.tolist() for row in counts.label_seen]
    labels = range(len(seen[0]))
    return Report._make(
        [
            np.asarray(sum(examples)),
            np.array([sum(row[k] for row in seen) for k in labels]),
            np.array([any(row[k] for row in seen) for k in labels]),
            np.array([all(row[k] for row in seen) for k in labels]),
            np.asarray(max(examples)),
            np.asarray(sum(examples) / len(examples)),
        ]
    )


def _counts(n: int, rng: np.random.Generator) -> tuple[Any]:
    seen = rng.random((n, 4)) < 0.5
    seen[:, 3] = True
    return (fx.Clients(Counts._make([rng.integers(0, 100, n).astype(np.int32), seen])),)


@fx.program
def dropout_mean(
    scale: fx.Server[Vector], x: fx.Clients[Vector], key: fx.Clients[Key[Array, ""]]
) -> fx.Server[Vector]:
    def dropped(scale, x, key):
        return jnp.where(jax.random.bernoulli(key, 0.6, x.shape), x * scale, jnp.zeros_like(x))

    return fx.reduce_mean(fx.client_map(dropped, scale, x, key))


def np_dropout_mean(scale: Any, x: Any, key: Any) -> Any:
    total = np.zeros_like(scale)
    for i, row in enumerate(x):
        total += np.where(np.asarray(jax.random.bernoulli(key[i], 0.6, row.shape)), row * scale, 0)
    return total / len(x)


@fx.program
def server_key_noise(x: fx.Clients[Vector], key: fx.Server[Key[Array, ""]]) -> fx.Clients[Vector]:
    """A key of the server, broadcast: each client folds its own id into it."""
    ids = fx.Clients(jnp.arange(x.size))
    noise = lambda key, i, x: x * jax.random.normal(jax.random.fold_in(key, i), x.shape)
    return fx.client_map(noise, key, ids, x)


def np_server_key_noise(x: Any, key: Any) -> Any:
    folded = [jax.random.fold_in(key, i) for i in range(len(x))]
    noise = [np.asarray(jax.random.normal(k, x[0].shape), np.float64) for k in folded]
    return np.stack([row * e for row, e in zip(x, noise, strict=True)])


@fx.program
def weighted_models(
    models: fx.Clients[Linear], weights: fx.Clients[Scalar]
) -> fx.Server[tuple[Linear, Scalar]]:
    return fx.reduce_mean(models, weights=weights), fx.reduce_sum(weights)


def np_weighted_models(models: Any, weights: Any) -> Any:
    trees = [np_linear(w, b) for w, b in zip(models.weight, models.bias, strict=True)]
    return np_average(trees, weights), np.asarray(sum(weights))


def _weighted_models(n: int, rng: np.random.Generator) -> tuple[Any, Any]:
    models = fx.Clients.stack([linear(rng) for _ in range(n)])
    return models, fx.Clients(rng.uniform(0.5, 2.0, n))


@fx.program
def low_precision_mean(
    scale: fx.Server[Scalar], x: fx.Clients[BFloat16[Array, "features"]]
) -> fx.Server[BFloat16[Array, "features"]]:
    return fx.reduce_mean(fx.client_map(lambda s, x: x * s.astype(x.dtype), scale, x))


def np_low_precision_mean(scale: Any, x: Any) -> Any:
    return scale * sum(x) / len(x)


def _vectors(n: int, rng: np.random.Generator) -> tuple[Any]:
    return (fx.Clients(rng.normal(size=(n, 3))),)


def _keys(n: int, rng: np.random.Generator) -> Any:
    return jax.random.split(jax.random.key(int(rng.integers(1000))), n)


STATISTICS = (
    Case("extremes", extremes, _vectors, np_extremes, (0,)),
    Case("variance", variance, _vectors, np_variance, (0,)),
    Case("standardize", standardize, _vectors, np_standardize, (0,)),
    Case("shares", shares, _vectors, np_shares, (0,)),
    Case("census", census, _counts, np_census, ()),
    Case(
        "dropout_mean",
        dropout_mean,
        lambda n, rng: (rng.normal(size=3), *_vectors(n, rng), fx.Clients(_keys(n, rng))),
        np_dropout_mean,
        (0, 1),
    ),
    Case(
        "server_key_noise",
        server_key_noise,
        lambda n, rng: (*_vectors(n, rng), _keys(1, rng)[0]),
        np_server_key_noise,
        (0,),
        plannable=False,  # it numbers its clients
    ),
    Case("weighted_models", weighted_models, _weighted_models, np_weighted_models, (0, 1)),
    Case(
        "low_precision_mean",
        low_precision_mean,
        lambda n, rng: (
            np.asarray(1.5),
            fx.Clients(jnp.asarray(rng.uniform(0.5, 2.0, (n, 3)), jnp.bfloat16)),
        ),
        np_low_precision_mean,
        (0,),
        rtol=2e-2,  # a bfloat16 keeps 8 bits
    ),
)
