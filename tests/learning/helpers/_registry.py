"""The registered algorithms. Each is given as functions of its hyperparameters' names."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

from fedeqx.learning import AbstractAlgorithm, FedAvg, FedSGD, Optimizer, WeightedMean

from ._oracle import NpAdam, NpSGD, np_fedavg, np_fedsgd
from ._problem import NpRounds, neuron_loss


@dataclasses.dataclass(frozen=True)
class Entry:
    """One algorithm.

    - `make(**hyper)`: the algorithm, on `neuron_loss`.
    - `oracle(params, rounds, **hyper)`: the same in NumPy: the parameters after each round, and of
        each round (loss, steps, clients used, total weight, norm of the update).
    - `hyper`: every float hyperparameter, by name. Each must be one leaf of the algorithm.
    """

    name: str
    make: Callable[..., AbstractAlgorithm]
    oracle: Callable[..., tuple[np.ndarray, np.ndarray]]
    hyper: dict[str, float]

    def algorithm(self, **other: Any) -> AbstractAlgorithm:
        return self.make(**(self.hyper | other))

    def expected(self, params: np.ndarray, rounds: NpRounds, **other: Any):
        return self.oracle(params, rounds, **(self.hyper | other))


ALGORITHMS = (
    Entry(
        "fedavg",
        lambda rate: FedAvg(neuron_loss, client_optimizer=Optimizer(optax.sgd, learning_rate=rate)),
        lambda params, rounds, rate: np_fedavg(params, rounds, NpSGD(rate), NpSGD(1.0)),
        {"rate": 0.3},
    ),
    Entry(
        "fedavg_momentum",
        lambda rate, momentum, server_rate, server_momentum: FedAvg(
            neuron_loss,
            client_optimizer=Optimizer(optax.sgd, learning_rate=rate, momentum=momentum),
            server_optimizer=Optimizer(
                optax.sgd, learning_rate=server_rate, momentum=server_momentum
            ),
        ),
        lambda params, rounds, rate, momentum, server_rate, server_momentum: np_fedavg(
            params, rounds, NpSGD(rate, momentum), NpSGD(server_rate, server_momentum)
        ),
        {"rate": 0.2, "momentum": 0.5, "server_rate": 0.7, "server_momentum": 0.6},
    ),
    Entry(
        "fedavg_adam",
        lambda rate, b1, b2, eps: FedAvg(
            neuron_loss,
            client_optimizer=Optimizer(optax.adam, learning_rate=rate, b1=b1, b2=b2, eps=eps),
            aggregator=WeightedMean(by="clients"),
        ),
        lambda params, rounds, rate, b1, b2, eps: np_fedavg(
            params, rounds, NpAdam(rate, b1, b2, eps), NpSGD(1.0), by="clients"
        ),
        {"rate": 0.1, "b1": 0.8, "b2": 0.95, "eps": 0.01},
    ),
    Entry(
        "fedadam",
        lambda rate, server_rate, b1, b2, eps: FedAvg(
            neuron_loss,
            client_optimizer=Optimizer(optax.sgd, learning_rate=rate),
            server_optimizer=Optimizer(
                optax.adam, learning_rate=server_rate, b1=b1, b2=b2, eps=eps
            ),
        ),
        lambda params, rounds, rate, server_rate, b1, b2, eps: np_fedavg(
            params, rounds, NpSGD(rate), NpAdam(server_rate, b1, b2, eps)
        ),
        {"rate": 0.3, "server_rate": 0.1, "b1": 0.7, "b2": 0.9, "eps": 0.01},
    ),
    Entry(
        "fedsgd",
        lambda rate: FedSGD(neuron_loss, server_optimizer=Optimizer(optax.sgd, learning_rate=rate)),
        lambda params, rounds, rate: np_fedsgd(params, rounds, NpSGD(rate)),
        {"rate": 0.5},
    ),
    Entry(
        "fedsgd_adam",
        lambda rate, b1, b2, eps: FedSGD(
            neuron_loss,
            server_optimizer=Optimizer(optax.adam, learning_rate=rate, b1=b1, b2=b2, eps=eps),
            aggregator=WeightedMean(by="clients"),
        ),
        lambda params, rounds, rate, b1, b2, eps: np_fedsgd(
            params, rounds, NpAdam(rate, b1, b2, eps), by="clients"
        ),
        {"rate": 0.1, "b1": 0.8, "b2": 0.95, "eps": 0.01},
    ),
)

each_algorithm = pytest.mark.parametrize("entry", ALGORITHMS, ids=lambda entry: entry.name)


def hypergradients(entry: Entry, by_algorithm: Any) -> dict[str, float]:
    """The entries of a gradient with respect to the algorithm, by the hyperparameters' names."""
    numbers = lambda algorithm: jtu.tree_leaves(eqx.filter(algorithm, eqx.is_inexact_array))
    base, found = numbers(entry.algorithm()), {}
    for name, value in entry.hyper.items():
        moved = numbers(entry.algorithm(**{name: value + 1.0}))
        at = [i for i, (a, b) in enumerate(zip(base, moved, strict=True)) if bool(jnp.any(a != b))]
        assert len(at) == 1, f"{entry.name}: {name} is to be one leaf, but changes leaves {at}"
        found[name] = float(numbers(by_algorithm)[at[0]])
    return found


def expected_gradients(
    entry: Entry, params: np.ndarray, rounds: NpRounds
) -> tuple[dict[str, float], np.ndarray]:
    """The last round's loss by each hyperparameter and parameter: central differences in NumPy."""
    eps = 1e-6
    loss = lambda params, **other: entry.expected(params, rounds, **other)[1][-1, 0]
    slope = lambda at: (at(eps) - at(-eps)) / (2 * eps)
    by_hyper = {
        name: slope(lambda e, n=name, v=value: loss(params, **{n: v + e}))
        for name, value in entry.hyper.items()
    }
    axes = np.eye(len(params))
    return by_hyper, np.array([slope(lambda e, a=axis: loss(params + e * a)) for axis in axes])
