"""Linear regression on clients' own data: the losses and hand-derived gradients of many cases."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import fedeqx as fx

BATCH, FEATURES = 4, 3


class Linear(NamedTuple):
    weight: Float[Array, "features"]
    bias: Float[Array, ""]


Inputs = Float[Array, "batch features"]
Labels = Float[Array, "batch"]
Scalar = Float[Array, ""]


def squared_error(model: Linear, x: Inputs, y: Labels) -> Scalar:
    return jnp.mean((x @ model.weight + model.bias - y) ** 2)


def np_linear(weight: Any, bias: Any) -> Any:
    """A Linear that holds NumPy arrays."""
    return Linear(weight, bias)


def np_loss(model: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return np.mean((x @ model[0] + model[1] - y) ** 2)


def np_grad(model: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """The gradient of the mean squared error, by hand."""
    residual = x @ model[0] + model[1] - y
    return np_linear(2 * x.T @ residual / len(y), 2 * residual.mean())


def np_step(model: Any, direction: Any, rate: Any) -> Any:
    return np_linear(model[0] - rate * direction[0], model[1] - rate * direction[1])


def np_average(trees: Any, weights: Any = None) -> Any:
    """The weighted mean of Linear-shaped trees, summed client by client."""
    weights = np.ones(len(trees)) if weights is None else np.asarray(weights, float)
    weight, bias = np.zeros_like(trees[0][0]), np.zeros_like(trees[0][1])
    for tree, w in zip(trees, weights, strict=True):
        weight, bias = weight + w * tree[0], bias + w * tree[1]
    return np_linear(weight / weights.sum(), bias / weights.sum())


def linear(rng: np.random.Generator) -> Linear:
    return np_linear(rng.normal(size=FEATURES), np.asarray(rng.normal()))


def regression(n: int, rng: np.random.Generator, *leading: int) -> tuple[Any, Any, Any]:
    """A model at the server, inputs and labels at n clients."""
    x = rng.normal(size=(n, *leading, BATCH, FEATURES))
    y = rng.normal(size=(n, *leading, BATCH))
    return linear(rng), fx.Clients(x), fx.Clients(y)
