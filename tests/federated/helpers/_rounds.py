"""Cases that train: one and many rounds of federated algorithms with optax, and hypergradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

import fedeqx as fx

from ._case import Case
from ._losses import mean_loss, np_mean_loss
from ._regression import (
    Inputs,
    Labels,
    Linear,
    Scalar,
    linear,
    np_average,
    np_grad,
    np_linear,
    np_step,
    regression,
    squared_error,
)

STEPS = 3


def _apply(model: Linear, updates: Any) -> Any:
    return optax.apply_updates(model, updates)


def local_sgd(
    model: Linear,
    x: Inputs,
    y: Labels,
    optimizer: optax.GradientTransformation,
    mask: Bool[Array, "steps"] | None = None,
) -> Linear:
    """Full-batch steps on one client; those that `mask` leaves out change nothing."""

    def step(carry, use):
        model, state = carry
        updates, state = optimizer.update(jax.grad(squared_error)(model, x, y), state, model)
        updates = jax.tree.map(lambda u: jnp.where(use, u, jnp.zeros_like(u)), updates)
        return (_apply(model, updates), state), None

    mask = jnp.ones(STEPS, bool) if mask is None else mask
    (model, _), _ = jax.lax.scan(step, (model, optimizer.init(model)), mask)
    return model


def np_local_sgd(model: Any, x: Any, y: Any, rate: Any, steps: int = STEPS, momentum=0.0) -> Any:
    trace = np_linear(np.zeros(x.shape[1]), np.zeros(()))
    for _ in range(steps):
        grads = np_grad(model, x, y)
        trace = np_linear(*(g + momentum * t for g, t in zip(grads, trace, strict=True)))
        model = np_step(model, trace, rate)
    return model


@fx.program
def fedsgd_step(
    model: fx.Server[Linear], x: fx.Clients[Inputs], y: fx.Clients[Labels], rate: fx.Server[Scalar]
) -> fx.Server[Linear]:
    grads = fx.reduce_mean(fx.client_map(jax.grad(squared_error), model, x, y))
    return jax.tree.map(lambda m, g: m - rate * g, model, grads)


def np_fedsgd_step(model: Any, x: Any, y: Any, rate: Any) -> Any:
    grads = np_average([np_grad(model, *data) for data in zip(x, y, strict=True)])
    return np_step(model, grads, rate)


@fx.program
def fedavg_round(
    model: fx.Server[Linear], x: fx.Clients[Inputs], y: fx.Clients[Labels], rate: fx.Server[Scalar]
) -> fx.Server[Linear]:
    def delta(model, x, y, rate):
        tuned = local_sgd(model, x, y, optax.sgd(rate, momentum=0.5))
        return jax.tree.map(lambda new, old: new - old, tuned, model)

    return jax.tree.map(jnp.add, model, fx.reduce_mean(fx.client_map(delta, model, x, y, rate)))


def np_fedavg_round(model: Any, x: Any, y: Any, rate: Any) -> Any:
    pairs = zip(x, y, strict=True)
    return np_average([np_local_sgd(model, *data, rate, momentum=0.5) for data in pairs])


@fx.program
def uneven_round(
    model: fx.Server[Linear],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
    steps: fx.Clients[Int[Array, ""]],
    rate: fx.Server[Scalar],
) -> fx.Server[Linear]:
    """Each client has its own number of steps, which is also its weight; some have none."""

    def tuned(model, x, y, steps, rate):
        return local_sgd(model, x, y, optax.sgd(rate), jnp.arange(STEPS) < steps)

    models = fx.client_map(tuned, model, x, y, steps, rate, weights=steps)
    return fx.reduce_mean(models, weights=steps)


def np_uneven_round(model: Any, x: Any, y: Any, steps: Any, rate: Any) -> Any:
    used = [i for i in range(len(x)) if steps[i] > 0]
    models = [np_local_sgd(model, x[i], y[i], rate, steps=int(steps[i])) for i in used]
    return np_average(models, [steps[i] for i in used])


def _uneven(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    model, x, y = regression(n, rng)
    steps = (np.arange(n) % (STEPS + 1)).astype(np.int32)
    x.value[steps == 0] = np.nan
    return model, x, y, fx.Clients(steps), np.asarray(0.05)


def server_adam() -> optax.GradientTransformation:
    return optax.adam(0.1, b1=0.9, b2=0.99, eps=1e-3)


@fx.program
def fedadam_round(
    model: fx.Server[Linear],
    state: fx.Server[optax.OptState],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
) -> fx.Server[tuple[Linear, optax.OptState]]:
    def pseudo_gradient(model, x, y):
        tuned = local_sgd(model, x, y, optax.sgd(0.05))
        return jax.tree.map(lambda new, old: old - new, tuned, model)

    grads = fx.reduce_mean(fx.client_map(pseudo_gradient, model, x, y))
    with jax.numpy_dtype_promotion("standard"):  # optax's adam multiplies floats by counts
        updates, state = server_adam().update(grads, state, model)
    return _apply(model, updates), state


def np_fedadam_round(model: Any, state: Any, x: Any, y: Any) -> Any:
    adam, rest = state[0], state[1:]
    tuned = np_average([np_local_sgd(model, *data, 0.05) for data in zip(x, y, strict=True)])
    count, new, mu, nu = int(adam.count) + 1, [], [], []
    for m, t, first, second in zip(model, tuned, adam.mu, adam.nu, strict=True):
        first = 0.9 * first + 0.1 * (m - t)
        second = 0.99 * second + 0.01 * (m - t) ** 2
        scaled = np.sqrt(second / (1 - 0.99**count)) + 1e-3
        new.append(m - 0.1 * first / (1 - 0.9**count) / scaled)
        mu.append(first)
        nu.append(second)
    adam = adam._replace(count=np.asarray(count), mu=np_linear(*mu), nu=np_linear(*nu))
    return np_linear(*new), (adam, *rest)


def _fedadam(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    model, x, y = regression(n, rng)
    state: Any = server_adam().init(jax.tree.map(jnp.asarray, model))
    adam, *rest = state
    second = jax.tree.map(lambda leaf: leaf**2 + 0.1, linear(rng))
    adam = adam._replace(count=np.asarray(2, np.int32), mu=linear(rng), nu=second)
    return model, (adam, *rest), x, y


@fx.program
def scaffold_round(
    model: fx.Server[Linear],
    control: fx.Server[Linear],
    controls: fx.Clients[Linear],
    x: fx.Clients[Inputs],
    y: fx.Clients[Labels],
) -> tuple[fx.Server[Linear], fx.Server[Linear], fx.Clients[Linear]]:
    """State at the clients goes in and comes out (SCAFFOLD, arXiv 1910.06378, option II)."""
    rate = 0.05

    def work(model, control, mine, x, y):
        tuned = model
        for _ in range(STEPS):
            grads = jax.grad(squared_error)(tuned, x, y)
            drift = jax.tree.map(lambda g, c, m: g - m + c, grads, control, mine)
            tuned = jax.tree.map(lambda t, d: t - rate * d, tuned, drift)
        renewed = jax.tree.map(
            lambda m, c, old, new: m - c + (old - new) / (STEPS * rate),
            *(mine, control, model, tuned),
        )
        return tuned, renewed, jax.tree.map(lambda new, old: new - old, renewed, mine)

    tuned, renewed, change = fx.client_map(work, model, control, controls, x, y).value
    model = fx.reduce_mean(fx.Clients(tuned))
    control = jax.tree.map(jnp.add, control, fx.reduce_mean(fx.Clients(change)))
    return model, control, fx.Clients(renewed)


def np_scaffold_round(model: Any, control: Any, controls: Any, x: Any, y: Any) -> Any:
    tuned, renewed = [], []
    for i in range(len(x)):
        mine, local = np_linear(controls[0][i], controls[1][i]), model
        for _ in range(STEPS):
            grads = np_grad(local, x[i], y[i])
            drift = [g - m + c for g, m, c in zip(grads, mine, control, strict=True)]
            local = np_step(local, drift, 0.05)
        parts = zip(mine, control, model, local, strict=True)
        renewed.append(
            np_linear(*(m - c + (old - new) / (STEPS * 0.05) for m, c, old, new in parts))
        )
        tuned.append(local)
    mean_change = np_average(renewed), np_average(list(zip(*controls, strict=True)))
    control = np_linear(*(c + a - b for c, a, b in zip(control, *mean_change, strict=True)))
    stacked = np_linear(np.stack([r[0] for r in renewed]), np.stack([r[1] for r in renewed]))
    return np_average(tuned), control, stacked


def _scaffold(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    model, x, y = regression(n, rng)
    return model, linear(rng), fx.Clients.stack([linear(rng) for _ in range(n)]), x, y


@fx.program
def training_run(
    model: fx.Server[Linear],
    x: fx.Clients[Float[Array, "rounds batch features"]],
    y: fx.Clients[Float[Array, "rounds batch"]],
    rate: fx.Server[Scalar],
) -> fx.Server[tuple[Linear, Float[Array, "rounds"]]]:
    """A scan over rounds, each a program of its own; the losses are those before each round."""

    def one_round(model, data):
        x, y = data
        return fedavg_round(model, x, y, rate), mean_loss(model, x, y)

    by_round = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), (x, y))
    return jax.lax.scan(one_round, model, by_round)


def np_training_run(model: Any, x: Any, y: Any, rate: Any) -> Any:
    losses = []
    for r in range(x.shape[1]):
        losses.append(np_mean_loss(model, x[:, r], y[:, r]))
        model = np_fedavg_round(model, x[:, r], y[:, r], rate)
    return model, np.array(losses)


def _with_rate(n: int, rng: np.random.Generator, *leading: int) -> tuple[Any, ...]:
    return *regression(n, rng, *leading), np.asarray(0.05)


@fx.program
def rate_hypergradient(
    model: fx.Server[Linear], x: fx.Clients[Inputs], y: fx.Clients[Labels], rate: fx.Server[Scalar]
) -> fx.Server[Scalar]:
    """The derivative of the loss after a round with respect to the clients' learning rate."""
    return jax.grad(lambda rate: mean_loss(fedavg_round(model, x, y, rate), x, y))(rate)


def np_rate_hypergradient(model: Any, x: Any, y: Any, rate: Any) -> Any:
    """Exact: the loss is a polynomial in the rate, so a complex step has no cancellation."""
    moved = np_fedavg_round(model, x, y, rate + 1e-30j)
    return np.asarray(np.imag(np_mean_loss(moved, x, y)) / 1e-30)


ROUNDS = (
    Case("fedsgd_step", fedsgd_step, _with_rate, np_fedsgd_step, (0, 1, 2, 3)),
    Case("fedavg_round", fedavg_round, _with_rate, np_fedavg_round, (0, 1, 3)),
    Case("uneven_round", uneven_round, _uneven, np_uneven_round, (0, 1, 4)),
    Case("fedadam_round", fedadam_round, _fedadam, np_fedadam_round, (0, 2, 3)),
    Case("scaffold_round", scaffold_round, _scaffold, np_scaffold_round, (0, 1, 2)),
    Case(
        "training_run",
        training_run,
        lambda n, rng: _with_rate(n, rng, 3),
        np_training_run,
        (0, 1, 3),
    ),
    Case("rate_hypergradient", rate_hypergradient, _with_rate, np_rate_hypergradient, (3,)),
)
