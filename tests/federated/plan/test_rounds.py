"""What a plan says: rounds by dependency, what is moved in each, at any cohort size."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federated.helpers import CASES, assert_matches
from jaxtyping import Array, Float

import fedeqx as fx
from fedeqx.learning import ClientData, FedAvg, Optimizer

Matrix = Float[Array, "batch 3"]
Vector = Float[Array, "batch"]


def loss(model, x, y):
    return jnp.mean((x @ model["w"] + model["b"] - y) ** 2)


@fx.program
def federated_loss(model: fx.Server[dict], x: fx.Clients[Matrix], y: fx.Clients[Vector]):
    return fx.reduce_mean(fx.client_map(loss, model, x, y))


@fx.program
def fedavg_round(rate, model: fx.Server[dict], x: fx.Clients[Matrix], y: fx.Clients[Vector]):
    def local(rate, model, x, y):
        def step(model, _):
            gradient = jax.grad(loss)(model, x, y)
            return jax.tree.map(lambda p, g: p - rate * g, model, gradient), None

        return jax.lax.scan(step, model, None, length=3)[0]

    return fx.reduce_mean(fx.client_map(local, rate, model, x, y))


def loss_after_a_round(rate, model, x, y):
    return federated_loss(fedavg_round(rate, model, x, y), x, y)


def arguments(clients=7):
    rng = np.random.default_rng(clients)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    model = {"w": draw(3), "b": draw()}
    return model, fx.Clients(draw(clients, 5, 3)), fx.Clients(draw(clients, 5))


def data_of(model, x, y):
    del model
    clients = x.size
    return fx.Clients(
        ClientData(
            {"x": x.value[:, None], "y": y.value[:, None]},
            jnp.ones((clients, 1), bool),
            jnp.arange(1, clients + 1),
            jnp.arange(clients, dtype=jnp.uint32),
        )
    )


def algorithm():
    batch_loss = lambda model, batch, key: loss(model, batch["x"], batch["y"])
    return FedAvg(
        batch_loss,
        client_optimizer=Optimizer(optax.sgd, learning_rate=0.1),
        server_optimizer=Optimizer(optax.adam, learning_rate=0.1),
    )


def test_value_and_gradient_of_a_loss_are_one_round():
    model, x, y = arguments()
    plan = fx.plan(jax.value_and_grad(federated_loss), model, x, y)
    (only,) = plan.rounds
    # The model, and the cotangent of the mean, one over the cohort size, which no reduction needs.
    assert [m.shape for m in only.broadcasts] == [(), (3,), ()]
    assert [m.name for m in only.broadcasts][:2] == ["model['b']", "model['w']"]
    assert [(m.name, m.shape, m.how) for m in only.reductions] == [
        ("result[0]", (), "sum"),
        ("result[1]['b']", (), "sum"),
        ("result[1]['w']", (3,), "sum"),
    ]
    assert only.kept == ()
    assert (plan.bytes_down, plan.bytes_up) == (20, 20)


def test_a_round_of_fedavg_is_one_round():
    plan = fx.plan(fedavg_round, jnp.float32(0.1), *arguments())
    (only,) = plan.rounds
    assert [m.name for m in only.broadcasts] == ["rate", "model['b']", "model['w']"]
    assert {m.name: m.shape for m in only.reductions} == {"result['b']": (), "result['w']": (3,)}


def test_the_step_of_an_algorithm_is_one_round():
    model, x, y = arguments()
    rule = algorithm()
    state = rule.init(model, key=jax.random.key(0))
    data = data_of(model, x, y)
    plan = fx.plan(rule.step, state, data, key=jax.random.key(1))
    assert len(plan.rounds) == 1
    sent = {m.name for m in plan.rounds[0].broadcasts}
    assert {"state.model['b']", "state.model['w']"} <= sent
    # The server optimizer's state stays there; neither schedule nor client needs round or key.
    assert not any(word in name for name in sent for word in ("server", "round", "key"))
    expected = eqx.filter_jit(rule.step)(state, data, key=jax.random.key(1))
    found = eqx.filter_jit(plan)(state, data, key=jax.random.key(1))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_hypergradient_is_three_rounds():
    rate, (model, x, y) = jnp.float32(0.1), arguments()
    plan = fx.plan(jax.grad(loss_after_a_round), rate, model, x, y)
    assert len(plan.rounds) == 3
    first, second, third = plan.rounds
    assert {m.name for m in first.broadcasts} == {"rate", "model['b']", "model['w']"}
    # The new model goes down in the second, the cotangent of it in the third.
    new_model = [m.shape for m in second.broadcasts if m.shape == (3,)]
    assert len(new_model) == 1
    assert [m.name for m in third.reductions] == ["result"]
    assert first.kept
    assert not third.kept
    # What is kept for the backward pass: as much as three local steps need, and not the data.
    assert all(m.shape != (1, 5, 3) for m in first.kept)


PLANNABLE = [case for case in CASES if case.plannable]
# At one client, all weights are zero in these, and their oracle divides by none.
WEIGHTLESS = ("masked_loss", "uneven_round")


@pytest.mark.parametrize(
    ("case", "clients"),
    [
        pytest.param(c, n, id=f"{c.name}, {n}", marks=[] if n == 7 else pytest.mark.slow)
        for c in PLANNABLE
        for n in (1, 2, 7, 64)
        if n > 1 or c.name not in WEIGHTLESS
    ],
)
def test_one_plan_is_right_at_any_cohort_size(case, clients):
    plan = fx.plan(case.program, *case.sample(clients=5))
    given = case.sample(clients=clients)
    arrays, rest = eqx.partition(given, eqx.is_array)
    run = jax.jit(lambda arrays: plan(*eqx.combine(arrays, rest)))
    assert_matches(run(arrays), case.expected(given), rtol=case.rtol)


@pytest.mark.parametrize("clients", [1, 2, 7, 64])
def test_a_plan_of_a_hypergradient_is_right_at_any_cohort_size(clients):
    rate, hypergradient = jnp.float32(0.1), jax.grad(loss_after_a_round, argnums=(0, 1))
    plan = fx.plan(hypergradient, rate, *arguments(3))
    given = arguments(clients)
    found, expected = plan(rate, *given), hypergradient(rate, *given)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def batched(tree, axis):
    return jax.tree.map(lambda x: jnp.stack([x, 2 * x], axis), tree)


MODEL, X, Y = arguments()
TRANSFORMED = {
    "hessian": (jax.hessian(federated_loss), (MODEL, X, Y), 1),
    "jvp": (lambda *a: jax.jvp(federated_loss, a, a), (MODEL, X, Y), 1),
    "checkpoint": (jax.grad(jax.checkpoint(federated_loss)), (MODEL, X, Y), 1),
    "grad of grad": (
        jax.grad(lambda m, x, y: federated_loss(jax.grad(federated_loss)(m, x, y), x, y)),
        (MODEL, X, Y),
        3,
    ),
    "vmap of grad": (
        jax.vmap(jax.grad(federated_loss), (0, None, None)),
        (batched(MODEL, 0), X, Y),
        1,
    ),
    "vmap over clients' data": (
        jax.vmap(jax.value_and_grad(federated_loss, argnums=1), (None, 1, 1), (0, 1)),
        (MODEL, batched(X, 1), batched(Y, 1)),
        1,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_programs(name):
    fn, given, rounds = TRANSFORMED[name]
    plan = fx.plan(fn, *given)
    assert len(plan.rounds) == rounds
    found = plan(*given), fx.stream(fn, at_once=2)(*given)
    expected = jax.tree.leaves(fn(*given))
    for result in found:
        for a, b in zip(jax.tree.leaves(result), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_shapes_are_enough():
    structs = jax.eval_shape(lambda: arguments())
    plan = fx.plan(jax.value_and_grad(federated_loss), *structs)
    model, x, y = arguments()
    expected = jax.value_and_grad(federated_loss)(model, x, y)
    np.testing.assert_allclose(plan(model, x, y)[0], expected[0], rtol=1e-6)


def test_a_scan_over_rounds_is_unrolled():
    def training(model, x, y):
        step = lambda model, _: (fedavg_round(jnp.float32(0.1), model, x, y), None)
        return jax.lax.scan(step, model, None, length=4)[0]

    given = arguments()
    plan = fx.plan(training, *given)
    assert len(plan.rounds) == 4
    found, expected = plan(*given), training(*given)
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_an_unrolled_scan_keeps_its_outputs_in_order(reverse):
    def rates(model, x, y):
        def step(model, rate):
            new = fedavg_round(rate, model, x, y)
            return new, (rate, new["b"])

        steps = jnp.array([0.1, 0.2, 0.3], jnp.float32)
        return jax.lax.scan(step, model, steps, reverse=reverse)[1]

    given = arguments()
    for a, b in zip(fx.plan(rates, *given)(*given), rates(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_independent_rounds_are_one():
    """Textual order is not what counts."""
    model, x, y = arguments()

    def two(model, x, y):
        first = federated_loss(model, x, y)
        second = fx.reduce_max(fx.client_map(loss, model, x, y))
        return first + second

    assert len(fx.plan(two, model, x, y).rounds) == 1


def test_what_is_sent_twice_goes_down_once():
    model, x, y = arguments()
    twice = lambda model, x, y: federated_loss(model, x, y) + federated_loss(model, x, y)
    plan = fx.plan(twice, model, x, y)
    assert plan.bytes_down == 16
    assert plan.bytes_up == 8  # two programs, two results


def test_what_nothing_needs_is_not_sent():
    model, x, y = arguments()

    def of_w_alone(model, x, y):
        means = fx.reduce_mean(fx.client_map(lambda m, x: (x @ m["w"], m["b"]), model, x))
        return means[0]

    plan = fx.plan(of_w_alone, model, x, y)
    assert [m.name for m in plan.rounds[0].broadcasts] == ["model['w']"]
    assert [m.shape for m in plan.rounds[0].reductions] == [(5,)]


def test_no_communication_is_a_round_of_client_work():
    _, x, y = arguments()
    plan = fx.plan(lambda x, y: fx.client_map(jnp.multiply, y, y), x, y)
    assert len(plan.rounds) == 1
    assert (plan.bytes_down, plan.bytes_up) == (0, 0)
    np.testing.assert_allclose(plan(x, y).value, y.value**2)


def test_derivatives_of_a_plan_are_those_of_the_program():
    model, x, y = arguments()
    plan = fx.plan(federated_loss, model, x, y)
    found, expected = jax.grad(plan)(model, x, y), jax.grad(federated_loss)(model, x, y)
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-5)
