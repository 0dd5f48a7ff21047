"""What is refused, and what the refusal names."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learning.helpers import cohort_of, make_rounds, model_of, neuron_loss, one_round, start

import fedeqx as fx
from fedeqx.learning import FedAvg, Optimizer

ALGORITHM = FedAvg(neuron_loss, client_optimizer=Optimizer(optax.sgd, learning_rate=0.1))


def step(cohort, **other):
    options: dict[str, Any] = {"key": jax.random.key(1)} | other
    state = options.pop("state", ALGORITHM.init(model_of(start()), key=jax.random.key(0)))
    return ALGORITHM.step(state, cohort, **options)


def data():
    return cohort_of(one_round(make_rounds(), 0)).value


# Without the run-time type checks of the tests, which would refuse these first.
WITHOUT_HOOK = """
import optax
from fedeqx.learning import FedAvg, FedSGD, LocalSGD, Optimizer, WeightedMean
bare = optax.sgd(0.1)
sgd = Optimizer(optax.sgd, learning_rate=0.1)
for refuse in (
    lambda: Optimizer(bare),
    lambda: WeightedMean(by="x"),
    lambda: FedAvg(print, client_optimizer=bare),
    lambda: FedAvg(print, client_optimizer=sgd, server_optimizer=bare),
    lambda: FedSGD(print, server_optimizer=bare),
    lambda: LocalSGD(print, bare),
):
    try:
        refuse()
    except Exception as e:
        print(type(e).__name__, e)
"""


def test_an_unknown_weighting_and_optimizers_of_optax_itself():
    """Also in place of an `Optimizer`: an easy slip, which would show only in the first round."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOOK], capture_output=True, text=True, check=True
    )
    made, by, *in_place = done.stdout.strip().splitlines()
    assert made.startswith("TypeError")
    for word in ("function that makes", "Optimizer(optax.sgd, learning_rate=0.1)"):
        assert word in made
    assert by.startswith("ValueError")
    for word in ("by='x'", "'examples'", "'clients'"):
        assert word in by
    assert len(in_place) == 4
    for message in in_place:
        assert message.startswith("TypeError")
        assert "Optimizer(optax.sgd, learning_rate=0.1)" in message
        assert "GradientTransformation" in message


def test_an_unknown_weighting_is_refused_here_too():
    with pytest.raises((TypeError, ValueError), match="by"):
        fx.learning.WeightedMean(by="x")  # pyright: ignore[reportArgumentType]


def test_a_cohort_that_is_at_the_server():
    with pytest.raises(TypeError, match=r"'cohort'[^$]*Clients\["):
        step(data())


def test_a_cohort_of_something_else():
    with pytest.raises(TypeError, match=r"'cohort'.value [^$]*ClientData[^$]*dict"):
        step(fx.Clients({"x": jnp.zeros((5, 3))}))


@pytest.mark.parametrize(
    ("field", "leaf", "found"),
    [
        ("step_mask", jnp.ones((5, 3)), r"float32\[3\]"),
        ("step_mask", jnp.ones(5, bool), r"bool\[\]"),
        ("num_examples", jnp.ones((5, 2)), r"float32\[2\]"),
        ("seed", jnp.arange(5), r"int32\[\]"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(field, leaf, found):
    with pytest.raises(TypeError, match=rf"'cohort'.value.{field} [^$]*{found}"):
        step(fx.Clients(data()._replace(**{field: leaf})))


def test_cohorts_of_two_sizes():
    with pytest.raises(ValueError, match=r"5 clients[^$]*num_examples[^$]*4"):
        step(fx.Clients(data()._replace(num_examples=jnp.ones(4))))


@pytest.mark.parametrize("steps", [2, 4])
def test_a_mask_of_other_steps_than_the_batches(steps):
    """Names both, and does not blame the internals of a scan."""
    cohort = fx.Clients(data()._replace(step_mask=jnp.ones((5, steps), bool)))
    with pytest.raises(ValueError, match=rf"step_mask says {steps}, but batches\[0\].*\[3, 2, 3\]"):
        step(cohort)


def test_a_model_in_place_of_a_state():
    with pytest.raises(TypeError, match=r"'state'[^$]*State"):
        step(fx.Clients(data()), state=model_of(start()))


def test_a_raw_key():
    with pytest.raises(TypeError, match=r"'key'"):
        step(fx.Clients(data()), key=np.zeros(2, np.uint32))


def test_a_loss_that_is_no_scalar_is_named():
    algorithm = FedAvg(
        lambda model, batch, key: batch[0][:, 0] * model["b"],
        client_optimizer=Optimizer(optax.sgd, learning_rate=0.1),
    )
    state = algorithm.init(model_of(start()), key=jax.random.key(0))
    with pytest.raises(TypeError, match="loss"):
        algorithm.step(state, fx.Clients(data()), key=jax.random.key(1))
