"""Cases whose result is a loss: what clients can compute, and how it reaches the server."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import fedeqx as fx

from ._case import Case
from ._regression import (
    FEATURES,
    Inputs,
    Labels,
    Linear,
    Scalar,
    np_grad,
    np_loss,
    np_step,
    regression,
    squared_error,
)


@fx.program
def mean_loss(
    model: fx.Server[Linear], x: fx.Clients[Inputs], y: fx.Clients[Labels]
) -> fx.Server[Scalar]:
    return fx.reduce_mean(fx.client_map(squared_error, model, x, y))


def np_mean_loss(model: Any, x: Any, y: Any) -> Any:
    return np.asarray(sum(np_loss(model, *data) for data in zip(x, y, strict=True)) / len(x))


@fx.program
def masked_loss(
    model: fx.Server[Linear],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
    weights: fx.Clients[Scalar],
) -> fx.Server[Scalar]:
    """Every third client has weight 0 and data of NaN."""
    losses = fx.client_map(squared_error, model, x, y, weights=weights)
    return fx.reduce_mean(losses, weights=weights)


def np_masked_loss(model: Any, x: Any, y: Any, weights: Any) -> Any:
    used = [i for i in range(len(x)) if i % 3]
    total = sum(weights[i] * np_loss(model, x[i], y[i]) for i in used)
    return np.asarray(total / sum(weights[i] for i in used))


def _masked(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    model, x, y = regression(n, rng)
    weights = rng.uniform(0.5, 2.0, n)
    weights[::3] = 0.0
    x.value[::3] = np.nan
    y.value[::3] = np.inf
    return model, x, y, fx.Clients(weights)


class Net(eqx.Module):
    """A hidden layer with a function leaf, a static field and an absent leaf."""

    hidden: Float[Array, "width features"]
    readout: Float[Array, "width"]
    activation: Callable[[Array], Array]
    name: str = eqx.field(static=True)
    bias: Array | None = None

    def __call__(self, x: Float[Array, "features"]) -> Scalar:
        return self.readout @ self.activation(self.hidden @ x)


def net(rng: np.random.Generator) -> Net:
    hidden: Any = rng.normal(size=(5, FEATURES))
    readout: Any = rng.normal(size=5)
    return Net(hidden, readout, jnp.tanh, "net")


@fx.program
def net_loss(
    model: fx.Server[Net], x: fx.Clients[Inputs], y: fx.Clients[Labels]
) -> fx.Server[Scalar]:
    loss = lambda model, x, y: jnp.mean((jax.vmap(model)(x) - y) ** 2)
    return fx.reduce_mean(fx.client_map(eqx.filter_checkpoint(loss), model, x, y))


def np_net_loss(model: Any, x: Any, y: Any) -> Any:
    losses = []
    for xi, yi in zip(x, y, strict=True):
        outputs = np.array([model.readout @ np.tanh(model.hidden @ row) for row in xi])
        losses.append(np.mean((outputs - yi) ** 2))
    return np.asarray(np.mean(losses))


@fx.program
def proximal_loss(
    model: fx.Server[Linear],
    anchor: fx.Server[Linear],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
) -> fx.Server[Scalar]:
    """The client function closes over a server value instead of taking it as an argument."""

    def loss(x, y):
        gap = jax.tree.map(lambda m, a: jnp.sum((m - a) ** 2), model, anchor)
        return squared_error(model, x, y) + 0.1 * (gap.weight + gap.bias)

    return fx.reduce_mean(fx.client_map(loss, x, y))


def np_proximal_loss(model: Any, anchor: Any, x: Any, y: Any) -> Any:
    gap = np.sum((model[0] - anchor[0]) ** 2) + (model[1] - anchor[1]) ** 2
    return np.asarray(np_mean_loss(model, x, y) + 0.1 * gap)


@jax.custom_vjp
def softplus(z):
    return jnp.logaddexp(z, jnp.zeros_like(z))


softplus.defvjp(lambda z: (softplus(z), jax.nn.sigmoid(z)), lambda s, ct: (ct * s,))


@fx.program
def logistic_loss(
    model: fx.Server[Linear], x: fx.Clients[Inputs], y: fx.Clients[Labels]
) -> fx.Server[Scalar]:
    """The client function has a rule of its own for reverse mode."""
    loss = lambda m, x, y: jnp.mean(softplus(-y * (x @ m.weight + m.bias)))
    return fx.reduce_mean(fx.client_map(loss, model, x, y))


def np_logistic_loss(model: Any, x: Any, y: Any) -> Any:
    losses = [
        np.mean(np.log1p(np.exp(-yi * (xi @ model[0] + model[1]))))
        for xi, yi in zip(x, y, strict=True)
    ]
    return np.asarray(np.mean(losses))


class Tuned(NamedTuple):
    before: Scalar
    after: Scalar


@fx.program
def personalized(
    model: fx.Server[Linear],
    rate: fx.Server[Scalar],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
) -> tuple[fx.Clients[Tuned], fx.Server[Tuned]]:
    """Loss before and after one local step: of each client, and the worst in the cohort."""

    def tune(model, rate, x, y):
        grads = jax.grad(squared_error)(model, x, y)
        tuned = jax.tree.map(lambda m, g: m - rate * g, model, grads)
        return Tuned(squared_error(model, x, y), squared_error(tuned, x, y))

    losses = fx.client_map(tune, model, rate, x, y)
    return losses, fx.reduce_max(losses)


def np_personalized(model: Any, rate: Any, x: Any, y: Any) -> Any:
    before = [np_loss(model, xi, yi) for xi, yi in zip(x, y, strict=True)]
    after = [
        np_loss(np_step(model, np_grad(model, xi, yi), rate), xi, yi)
        for xi, yi in zip(x, y, strict=True)
    ]
    return (
        Tuned._make([np.array(before), np.array(after)]),
        Tuned._make([np.asarray(max(before)), np.asarray(max(after))]),
    )


@fx.program
def branching_loss(
    model: fx.Server[Linear],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
    kind: fx.Clients[Int[Array, ""]],
) -> fx.Server[Scalar]:
    """Each client takes its own branch."""

    def loss(model, x, y, kind):
        absolute = lambda: jnp.mean(jnp.abs(x @ model.weight + model.bias - y))
        return jax.lax.cond(kind > 0, absolute, lambda: squared_error(model, x, y))

    return fx.reduce_sum(fx.client_map(loss, model, x, y, kind))


def np_branching_loss(model: Any, x: Any, y: Any, kind: Any) -> Any:
    total = 0.0
    for xi, yi, k in zip(x, y, kind, strict=True):
        residual = xi @ model[0] + model[1] - yi
        total += np.mean(np.abs(residual)) if k > 0 else np.mean(residual**2)
    return np.asarray(total)


LOSSES = (
    Case("mean_loss", mean_loss, regression, np_mean_loss, (0, 1, 2)),
    Case("masked_loss", masked_loss, _masked, np_masked_loss, (0, 1, 2)),
    Case(
        "net_loss",
        net_loss,
        lambda n, rng: (net(rng), *regression(n, rng)[1:]),
        np_net_loss,
        (0, 1),
    ),
    Case(
        "proximal_loss",
        proximal_loss,
        lambda n, rng: (regression(n, rng)[0], *regression(n, rng)),
        np_proximal_loss,
        (0, 1),
    ),
    Case("logistic_loss", logistic_loss, regression, np_logistic_loss, (0, 1), forward=False),
    Case(
        "personalized",
        personalized,
        lambda n, rng: (regression(n, rng)[0], np.asarray(0.1), *regression(n, rng)[1:]),
        np_personalized,
        (0, 1),
    ),
    Case(
        "branching_loss",
        branching_loss,
        lambda n, rng: (*regression(n, rng), fx.Clients((np.arange(n) % 2).astype(np.int32))),
        np_branching_loss,
        (0,),
    ),
)
