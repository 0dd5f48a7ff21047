"""What a program costs on a mesh: the collectives in the compiled program, counted."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federated.backends.meshes import collectives, make_mesh, regression
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import fedeqx as fx

MESHES = ("clients=4", "clients=4!", "clients=2 model=2", "clients=2! model=2!")
EVEN, UNEVEN = 8, 7
each_size = pytest.mark.parametrize("clients", [EVEN, UNEVEN])


class Model(NamedTuple):
    up: jax.Array
    down: jax.Array
    bias: jax.Array


@pytest.fixture(params=MESHES)
def mesh(request):
    with jax.set_mesh(make_mesh(request.param)) as mesh:
        yield mesh


def problem(clients: int):
    rng = np.random.default_rng([1, clients])
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return Model._make((draw(3, 4), draw(4), draw())), draw(clients, 2, 3), draw(clients, 2)


def loss(model, x, y):
    return jnp.mean((jnp.tanh(x @ model.up) @ model.down + model.bias - y) ** 2)


def fedavg_round(model, x, y):
    """Two local steps of SGD with momentum; the mean of what changed, in one reduction."""
    optimizer = optax.sgd(0.1, momentum=0.9)

    def work(model, x, y):
        def step(carry, _):
            model, state = carry
            updates, state = optimizer.update(jax.grad(loss)(model, x, y), state, model)
            return (optax.apply_updates(model, updates), state), None

        tuned = jax.lax.scan(step, (model, optimizer.init(model)), None, length=2)[0][0]
        return jax.tree.map(lambda new, old: new - old, tuned, model)

    change = fx.reduce_mean(fx.client_map(work, model, fx.Clients(x), fx.Clients(y)))
    return jax.tree.map(jnp.add, model, change)


def loss_after(model, x, y):
    return fx.reduce_mean(
        fx.client_map(loss, fedavg_round(model, x, y), fx.Clients(x), fx.Clients(y))
    )


ONE = [("all-reduce", ("f32", "f32", "f32"))]


def names(found):
    return [name for name, _ in found]


@each_size
def test_a_fedavg_round_is_one_all_reduce(mesh, clients):
    """Of the whole tree, even or not; the cohort's padding moves nothing."""
    assert collectives(fedavg_round, *problem(clients)) == ONE


@each_size
def test_the_derivatives_of_a_round_are_two(mesh, clients):
    """The mean of the updates and, backwards, the sum of the broadcast's cotangents.

    A vjp for a given cotangent needs only the second: nothing after the mean is nonlinear.
    """
    model, x, y = problem(clients)
    backward = lambda model, x, y: jax.vjp(lambda m: fedavg_round(m, x, y), model)
    both = lambda model, x, y: [backward(model, x, y)[0], backward(model, x, y)[1](model)]
    assert names(collectives(both, model, x, y)) in (["all-reduce"], ["all-reduce"] * 2)
    alone = lambda model, x, y: backward(model, x, y)[1](model)
    assert names(collectives(alone, model, x, y)) == ["all-reduce"]


@each_size
def test_a_gradient_needs_one_round(mesh, clients):
    """The loss and the gradient of FedSGD: all in one all-reduce, since XLA may join them."""
    program = lambda *args: fx.reduce_mean(fx.client_map(loss, args[0], *map(fx.Clients, args[1:])))
    found = collectives(jax.value_and_grad(program), *problem(clients))
    assert found == [("all-reduce", ("f32",) * 4)]


@pytest.mark.parametrize("axes", MESHES[:2])
@each_size
def test_the_hypergradient_of_a_round(axes, clients):
    """With respect to the model: three rounds of communication, of nothing but sums."""
    with jax.set_mesh(make_mesh(axes)):
        found = names(collectives(jax.grad(loss_after), *problem(clients)))
    assert found == ["all-reduce"] * 3


@each_size
def test_one_all_reduce_for_each_dtype(mesh, clients):
    tree = {
        "a": jnp.ones((clients, 3)),
        "b": jnp.ones((clients,)),
        "half": jnp.ones((clients, 2), jnp.bfloat16),  # summed in float32
        "count": jnp.ones((clients,), jnp.int32),
        "flag": jnp.ones((clients, 2), bool),  # summed in int32
    }
    found = collectives(lambda tree: fx.reduce_sum(fx.Clients(tree)), tree)
    assert found == [("all-reduce", ("f32",) * 3), ("all-reduce", ("s32",) * 2)]


@each_size
def test_a_weighted_mean_is_one_too(mesh, clients):
    """The weights' sum travels with the values'."""
    _, _, x, y, weights = regression(clients)
    mean = lambda x, y, weights: fx.reduce_mean(fx.Clients((x.value, y.value)), weights=weights)
    assert collectives(mean, x, y, weights) == [("all-reduce", ("f32",) * 3)]


@pytest.mark.parametrize("axes", MESHES[:2])
@each_size
def test_extremes(axes, clients):
    """One collective for all floats of a width, NaN rules and padding included."""
    tree = {"a": jnp.ones((clients, 3)), "b": jnp.ones((clients,))}
    with jax.set_mesh(make_mesh(axes)):
        for verb in (fx.reduce_max, fx.reduce_min):
            found = collectives(lambda tree, verb=verb: verb(fx.Clients(tree)), tree)
            assert names(found) == ["all-reduce"]


@each_size
def test_client_work_and_broadcast_communicate_nothing(mesh, clients):
    """A chain of client computations keeps values where they are, and padded."""

    def program(w, x):
        x = fx.Clients(x)
        sent = fx.broadcast(w, like=x)
        first = fx.client_map(lambda w, x: jnp.sin(w * x), sent, x)
        second = fx.client_map(lambda a, x: a + x, first, x)
        return fx.client_map(lambda a: jnp.cos(a), second)

    def reduced(w, x):
        return fx.reduce_sum(program(w, x))

    w, x = np.ones(3, np.float32), np.ones((clients, 3), np.float32)
    assert collectives(reduced, w, x) == [("all-reduce", ("f32",))]
    if clients == EVEN:  # the result of an uneven cohort is handed out whole
        assert collectives(program, w, x) == []


@pytest.mark.parametrize("axes", ["clients=4", "clients=4!"])
def test_data_on_its_devices_stays_there(axes):
    """A cohort sharded over "clients" is not moved, in a round or in its gradient."""
    model, x, y = problem(EVEN)
    mesh = make_mesh(axes)
    with jax.set_mesh(mesh):
        x, y = (jax.device_put(v, NamedSharding(mesh, P("clients"))) for v in (x, y))
        assert collectives(fedavg_round, model, x, y) == ONE
        assert set(names(collectives(jax.grad(loss_after), model, x, y))) == {"all-reduce"}


@pytest.mark.parametrize("clients", [EVEN, UNEVEN])
def test_many_rounds_communicate_once_a_round(clients):
    """In a scan: the body has one all-reduce, and there is none outside of it."""
    model, x, y = problem(clients)

    def rounds(model, x, y):
        body = lambda model, _: (fedavg_round(model, x, y), None)
        return jax.lax.scan(body, model, None, length=5)[0]

    with jax.set_mesh(make_mesh("clients=4")):
        assert collectives(rounds, model, x, y) == ONE


def test_without_the_axis_nothing_communicates():
    with jax.set_mesh(make_mesh("model=4")):
        assert collectives(fedavg_round, *problem(EVEN)) == []
