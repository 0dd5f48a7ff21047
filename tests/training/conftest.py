"""A small grouped data set, and a model so small that a round takes milliseconds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import fedeqx as fx
from fedeqx.learning import FedAvg, Optimizer


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """Ten groups of 1 to 10 short documents."""
    records = [
        {"client": f"c{i}", "text": f"{i} {j} " + "abcdefgh"[i % 5 :] * (i + j + 1)}
        for i in range(10)
        for j in range(i + 1)
    ]
    return fx.data.group(records, by="client", out=tmp_path_factory.mktemp("data") / "grouped")


@pytest.fixture
def cohorts(dataset):
    return fx.data.cohorts(dataset, size=4, steps=2, batch_size=2, sequence_length=8, seed=3)


class Bigram(eqx.Module):
    """Logits of the next byte from the byte alone, with dropout: so that keys matter."""

    table: jax.Array

    def __call__(self, tokens, key):
        logits = self.table[tokens]
        return jnp.where(jax.random.bernoulli(key, 0.9, logits.shape), logits, 0.0)


def bigram_loss(model, batch, key):
    logits = jax.nn.log_softmax(model(batch["tokens"][..., :-1], key))
    picked = jnp.take_along_axis(logits, batch["tokens"][..., 1:, None], axis=-1)[..., 0]
    count = jnp.maximum(jnp.sum(batch["mask"], dtype=jnp.float32), 1.0)
    return -jnp.sum(jnp.where(batch["mask"], picked, 0.0)) / count


@pytest.fixture
def model():
    return Bigram(jnp.zeros((257, 257)))


@pytest.fixture
def algorithm():
    return FedAvg(
        bigram_loss,
        client_optimizer=Optimizer(optax.sgd, learning_rate=0.5),
        server_optimizer=Optimizer(optax.adam, learning_rate=0.1),
    )
