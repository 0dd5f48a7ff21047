"""One neuron, fitted to random targets by cohorts that are uneven in every way."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import fedeqx as fx
from fedeqx.learning import ClientData

ROUNDS, CLIENTS, STEPS, BATCH, FEATURES = 4, 5, 3, 2, 3


class NpRounds(NamedTuple):
    """The cohorts of all rounds, in NumPy: leading axes of rounds and of clients."""

    x: np.ndarray
    y: np.ndarray
    step_mask: np.ndarray
    num_examples: np.ndarray
    seed: np.ndarray


def neuron_loss(model: Any, batch: Any, key: Any) -> Float[Array, ""]:
    """The squared error of `tanh(x w + b)`. Not linear in anything that is differentiated."""
    del key
    x, y = batch
    return jnp.mean(jnp.square(jnp.tanh(x @ model["w"] + model["b"]) - y))


def start() -> np.ndarray:
    """The parameters `[w, b]` before the first round."""
    return np.array([0.4, -0.3, 0.2, 0.1])


def model_of(params: np.ndarray) -> dict[str, Array]:
    dtype = jnp.result_type(float)
    return {"w": jnp.asarray(params[:FEATURES], dtype), "b": jnp.asarray(params[FEATURES], dtype)}


def params_of(model: Any) -> np.ndarray:
    """`[w, b]`, with any leading axes of rounds."""
    parts = [np.asarray(model["w"], np.float64), np.asarray(model["b"], np.float64)[..., None]]
    return np.concatenate(parts, axis=-1)


def make_rounds(seed: int = 0) -> NpRounds:
    """Clients with 1 to 3 real steps, gaps among them, and 1 to 12 examples.

    In each round another client has neither steps nor examples.
    """
    rng = np.random.default_rng(seed)
    shape = (ROUNDS, CLIENTS, STEPS, BATCH)
    # Rounded to float32, so that the oracle starts from the very numbers that JAX gets.
    x = rng.normal(size=(*shape, FEATURES)).astype(np.float32).astype(np.float64)
    y = rng.uniform(-0.9, 0.9, size=shape).astype(np.float32).astype(np.float64)
    step_mask = rng.random((ROUNDS, CLIENTS, STEPS)) < 0.6
    step_mask[np.arange(ROUNDS)[:, None], np.arange(CLIENTS), rng.integers(0, STEPS, CLIENTS)] = (
        True
    )
    num_examples = rng.integers(1, 13, (ROUNDS, CLIENTS))
    for r in range(ROUNDS):
        absent = (2 * r + 1) % CLIENTS
        num_examples[r, absent] = 0
        step_mask[r, absent] = False
    seed_of_client = np.arange(ROUNDS * CLIENTS).reshape(ROUNDS, CLIENTS)
    return NpRounds(x, y, step_mask, num_examples, seed_of_client)


def one_round(rounds: NpRounds, r: int) -> NpRounds:
    return NpRounds(*(leaf[r] for leaf in rounds))


def cohort_of(rounds: NpRounds) -> fx.Clients[ClientData]:
    """As the algorithms take it: of one round, or of all for a scan over the leading axis."""
    dtype = jnp.result_type(float)
    return fx.Clients(
        ClientData(
            (jnp.asarray(rounds.x, dtype), jnp.asarray(rounds.y, dtype)),
            jnp.asarray(rounds.step_mask),
            jnp.asarray(rounds.num_examples, jnp.int32),
            jnp.asarray(rounds.seed, jnp.uint32),
        )
    )
