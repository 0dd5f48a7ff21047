"""Hypergradient descent: learn FedAvg's learning rates by differentiating through its rounds.

The clients of this problem disagree about the slope, so the best rates are not obvious. The
gradient of the loss after three rounds, with respect to the algorithm itself, says how to change
them; nothing is written for it but `filter_value_and_grad`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import fedeqx as fx
from fedeqx.learning import ClientData, FedAvg, Optimizer

CLIENTS, STEPS, BATCH, ROUNDS = 8, 4, 16, 3


def loss(model, batch, key):
    del key
    x, y = batch
    return jnp.mean(jnp.square(x * model["slope"] + model["offset"] - y))


def problem(key):
    """Each client's line has a slope of its own around 2."""
    slopes = 2 + 0.3 * jax.random.normal(key, (CLIENTS, 1, 1))
    x = jax.random.normal(jax.random.fold_in(key, 1), (CLIENTS, STEPS, BATCH))
    return fx.Clients(
        ClientData(
            batches=(x, slopes * x + 1),
            step_mask=jnp.ones((CLIENTS, STEPS), bool),
            num_examples=jnp.full(CLIENTS, STEPS * BATCH),
            seed=jnp.arange(CLIENTS, dtype=jnp.uint32),
        )
    )


@eqx.filter_value_and_grad
def loss_after_rounds(algorithm, cohort, key):
    model = {"slope": jnp.zeros(()), "offset": jnp.zeros(())}
    state = algorithm.init(model, key=key)
    for r in range(ROUNDS):
        state, _ = algorithm.step(state, cohort, key=jax.random.fold_in(key, r))

    def at_client(model, data):
        return jnp.mean(jax.vmap(lambda batch: loss(model, batch, key))(data.batches))

    return fx.reduce_mean(fx.client_map(at_client, algorithm.model(state), cohort))


def main(steps: int = 15) -> tuple[float, float]:
    """Returns the loss after three rounds with the rates at the start and at the end."""
    key = jax.random.key(0)
    cohort = problem(key)
    algorithm = FedAvg(
        loss,
        client_optimizer=Optimizer(optax.sgd, learning_rate=0.01),
        server_optimizer=Optimizer(optax.sgd, learning_rate=0.5),
    )
    descent = Optimizer(optax.adam, learning_rate=0.1)
    rates, rest = eqx.partition(algorithm, eqx.is_array)
    state = descent.init(rates)
    step = eqx.filter_jit(loss_after_rounds)
    values = []
    for i in range(steps):
        algorithm = eqx.combine(rates, rest)
        value, hypergradient = step(algorithm, cohort, key)
        values.append(float(value))
        work, server = algorithm.round.work, algorithm.round.optimizer
        client_rate = work.optimizer.hyperparameters["learning_rate"]
        server_rate = server.hyperparameters["learning_rate"]
        print(f"{i:2}  loss {value:.4f}  client rate {client_rate:.3f}  server {server_rate:.3f}")
        rates, state = descent.update(hypergradient, state, rates, jnp.asarray(i))
    return values[0], values[-1]


if __name__ == "__main__":
    main()
