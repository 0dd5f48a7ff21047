"""Evaluation and personalization against a NumPy loop over clients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedeqx as fx
from fedeqx.learning import ClientData, LocalSGD, Optimizer
from fedeqx.training import evaluate, personalize

CLIENTS, STEPS, BATCH, RATE = 5, 3, 4, 0.1


def loss(w, batch, key):
    del key
    return jnp.mean(jnp.square(batch["x"] @ w - batch["y"]))


def metric(w, batch):
    error = jnp.square(batch["x"] @ w - batch["y"])
    return jnp.sum(jnp.where(batch["real"], error, 0.0)), jnp.sum(batch["real"])


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)

    def batches():
        return {
            "x": rng.normal(size=(CLIENTS, STEPS, BATCH, 2)).astype(np.float32),
            "y": rng.normal(size=(CLIENTS, STEPS, BATCH)).astype(np.float32),
            "real": rng.random((CLIENTS, STEPS, BATCH)) < 0.7,
        }

    tuning, held_out = batches(), batches()
    mask = np.arange(STEPS)[None] < np.array([3, 2, 1, 0, 3])[:, None]
    numbers = (tuning, mask, mask.sum(1).astype(np.int32), np.arange(CLIENTS, dtype=np.uint32))
    data = ClientData._make(numbers)
    return np.array([0.5, -1.0], np.float32), data, held_out


def expected(w, batches, i):
    error = (batches["x"][i] @ w - batches["y"][i]) ** 2
    return (error * batches["real"][i]).sum(), batches["real"][i].sum()


def test_personalization_is_local_training_of_each_client_alone(problem):
    w, data, held_out = problem
    report = jax.jit(
        lambda w, d, h: personalize(
            w,
            d,
            h,
            work=LocalSGD(loss, Optimizer(optax.sgd, learning_rate=RATE)),
            metric=metric,
            key=jax.random.key(0),
        )
    )(jnp.asarray(w), fx.Clients(data), fx.Clients(held_out))
    for i, one in enumerate(report):
        tuned = w.astype(np.float64)
        for s in range(STEPS):
            if data.step_mask[i, s]:
                x, y = data.batches["x"][i, s], data.batches["y"][i, s]
                tuned = tuned - RATE * 2 * x.T @ (x @ tuned - y) / BATCH
        for value, weights in ((one.pre, w), (one.post, tuned)):
            total, count = expected(weights, held_out, i)
            np.testing.assert_allclose(value, total / count, rtol=1e-5)
    assert float(report.value.pre[3]) == float(report.value.post[3])  # it had nothing to tune on


def test_evaluation_weighs_items_alike_whosever_they_are(problem):
    w, _, held_out = problem
    sums = [expected(w, held_out, i) for i in range(CLIENTS)]
    value = evaluate(jnp.asarray(w), fx.Clients(held_out), metric)
    np.testing.assert_allclose(value, sum(s for s, _ in sums) / sum(c for _, c in sums), rtol=1e-5)


def test_nothing_is_communicated_up(problem):
    w, data, held_out = problem
    jaxpr = jax.make_jaxpr(
        lambda w, d, h: personalize(
            w,
            d,
            h,
            work=LocalSGD(loss, Optimizer(optax.sgd, learning_rate=RATE)),
            metric=metric,
            key=jax.random.key(0),
        )
    )(jnp.asarray(w), fx.Clients(data), fx.Clients(held_out))
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    assert "fed_broadcast" in names
    assert not names & {"fed_sum", "fed_max", "fed_min"}
