"""What the jaxpr says: communication is in `fed_*` equations, clients' work in `fed_map` calls."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest
from federated.helpers import CASES, FED, Case, equations, names, rounds

import fedeqx as fx

BY_NAME: dict[str, Case] = {case.name: case for case in CASES}
MODEL, X = jnp.arange(3.0), fx.Clients(jnp.ones((7, 4, 3)))


def loss(model, x):
    """`sin` and `dot_general` here, and nowhere else: they must stay with the client."""
    return jnp.mean(jnp.sin(x @ model))


@fx.program
def mean_loss(model, x):
    return jnp.exp(fx.reduce_mean(fx.client_map(loss, model, x)))


ones = lambda tree: jtu.tree_map(jnp.ones_like, tree)
TRANSFORMED = {
    "value": mean_loss,
    "jit": jax.jit(mean_loss),
    "grad": jax.grad(mean_loss, argnums=(0, 1)),
    "jvp": lambda m, x: jax.jvp(mean_loss, (m, x), ones((m, x))),
    "linearize": lambda m, x: jax.linearize(mean_loss, m, x)[1](*ones((m, x))),
    "vmap": lambda m, x: jax.vmap(mean_loss, (0, None))(jnp.stack([m, m]), x),
    "vmap of grad": lambda m, x: jax.vmap(jax.grad(mean_loss), (0, None))(jnp.stack([m, m]), x),
    "hessian": jax.hessian(mean_loss),
    "jacrev of jacfwd": jax.jacrev(jax.jacfwd(mean_loss)),
    "checkpoint": jax.grad(jax.checkpoint(mean_loss)),
    "scan": lambda m, x: jax.lax.scan(lambda m, _: (jax.grad(mean_loss)(m, x), None), m, length=2),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_clients_work_is_in_calls_named_fed_map(name):
    jaxpr = jax.make_jaxpr(TRANSFORMED[name])(MODEL, X)
    at_client, outside = names(jaxpr, at_client=True), names(jaxpr, at_client=False)
    assert {"sin", "cos"} & at_client
    assert "dot_general" in at_client
    assert not {"sin", "cos", "dot_general"} & outside
    assert not set(FED) & at_client, "communication inside of a client"
    assert "exp" not in at_client, "the server's work at a client"


BOOKKEEPING = {"add_any", "convert_element_type", "broadcast_in_dim"}
"""What differentiation itself adds between calls: sums, casts and zeros of cotangents."""


@pytest.mark.parametrize("name", [n for n, c in BY_NAME.items() if c.differentiable])
def test_nothing_but_bookkeeping_has_a_clients_axis_outside_of_fed_map(name):
    case = BY_NAME[name]
    fn, inexact = case.of_floats(case.sample(clients=13))
    gradient = jax.grad(lambda tree: sum(jnp.sum(out.astype(jnp.float32)) for out in fn(tree)))
    for place in equations(jax.make_jaxpr(gradient)(inexact)):
        if place.at_client or place.name in FED:
            continue
        if any(13 in getattr(v.aval, "shape", ()) for v in place.eqn.invars):
            moved = {"transpose", "slice", "squeeze", "reduce_sum"}  # the case's own, not clients'
            assert place.name in BOOKKEEPING | moved, str(place.eqn)


def test_broadcast_transposes_to_sum_and_sum_to_broadcast():
    send = lambda v: fx.broadcast(v, clients=7).value
    back = jax.make_jaxpr(jax.linear_transpose(send, jnp.ones(3)))(jnp.ones((7, 3)))
    assert [p.name for p in equations(back) if p.name in FED] == ["fed_sum"]

    total = lambda v: fx.reduce_sum(fx.Clients(v))
    back = jax.make_jaxpr(jax.linear_transpose(total, jnp.ones((7, 3))))(jnp.ones(3))
    assert [p.name for p in equations(back) if p.name in FED] == ["fed_broadcast"]


def test_the_transposes_are_right():
    """<sum(x), s> = <x, broadcast(s)>, and twice transposed is the original."""
    x, s = jnp.arange(21.0).reshape(7, 3), jnp.array([1.0, -2.0, 3.0])
    total = lambda v: fx.reduce_sum(fx.Clients(v))
    transpose = lambda ct: jax.linear_transpose(total, x)(ct)[0]
    assert jnp.array_equal(transpose(s), jnp.stack([s] * 7))
    assert jnp.array_equal(jax.linear_transpose(transpose, s)(x)[0], jnp.sum(x, 0))


def test_one_equation_carries_a_whole_tree():
    """One communication of a PyTree is one equation, whatever the number of its leaves."""
    tree = {"a": jnp.ones(3), "b": (jnp.ones(()), jnp.ones((2, 2)))}
    both = lambda tree: fx.reduce_mean(fx.broadcast(tree, clients=7))
    for fn in (both, lambda t: jax.vjp(both, t)[1](t)):
        found = [p.name for p in equations(jax.make_jaxpr(fn)(tree))]
        assert found.count("fed_broadcast") == found.count("fed_sum")
        assert found.count("fed_sum") <= (1 if fn is both else 2)


def test_a_reduction_of_the_weighted_mean_is_one_equation():
    x, w = fx.Clients({"a": jnp.ones((7, 3)), "b": jnp.ones(7)}), fx.Clients(jnp.ones(7))
    jaxpr = jax.make_jaxpr(lambda x, w: fx.reduce_mean(x, weights=w))(x, w)
    assert [p.name for p in equations(jaxpr) if p.name in FED] == ["fed_sum"]


def test_everything_at_the_server_that_a_client_uses_is_broadcast():
    """Arguments and traced values that the function closes over, each of them once."""

    def program(argument, closed_over, x):
        return fx.client_map(lambda a, x: a * closed_over * x, argument, x)

    jaxpr = jax.make_jaxpr(program)(jnp.ones(()), jnp.ones(()), fx.Clients(jnp.ones(7)))
    sent = [v for p in equations(jaxpr) if p.name == "fed_broadcast" for v in p.eqn.invars]
    server = set(jaxpr.jaxpr.invars[:2])
    assert set(sent) == server
    assert len(sent) == 2


def test_the_cohort_size_is_data_and_not_spelled_into_the_program():
    """Outside of the clients' calls a jaxpr traced for 7 differs from one for 11 in axes alone."""

    def program(x):
        return fx.reduce_mean(x) + fx.reduce_sum(x) / fx.cohort_size(x).astype(jnp.float32)

    def constants(clients: int) -> list[Any]:
        jaxpr = jax.make_jaxpr(jax.value_and_grad(program))(fx.Clients(jnp.ones(clients)))
        found = []
        for place in equations(jaxpr):
            values = [v.val for v in place.eqn.invars if hasattr(v, "val")]
            found.append((place.name, [jnp.asarray(v).item() for v in values]))
        return found

    assert constants(7) == constants(11)
    sizes = [name for name, _ in constants(7) if name == "fed_size"]
    assert sizes, "the mean does not divide by fed_size"


def test_rounds_of_communication():
    """The cotangent of a mean does not depend on the forward result: one round, not two."""

    def of(fn: Any, name: str, count: int) -> None:
        case = BY_NAME[name]
        arrays, rest = eqx.partition(case.sample(), eqx.is_array)
        run = lambda arrays: eqx.filter(fn(*eqx.combine(arrays, rest)), eqx.is_array)
        assert rounds(jax.make_jaxpr(run)(arrays)) == count

    mean = BY_NAME["mean_loss"].program
    fedavg = BY_NAME["fedavg_round"].program
    of(mean, "mean_loss", 1)
    of(jax.value_and_grad(mean), "mean_loss", 1)
    of(fedavg, "fedavg_round", 1)
    of(BY_NAME["standardize"].program, "standardize", 2)
    of(BY_NAME["rate_hypergradient"].program, "rate_hypergradient", 3)


def test_cotangents_of_integers_are_not_sent():
    """Only what has a cotangent communicates in the backward pass."""
    counts = fx.Clients(jnp.arange(7))

    def program(scale, counts):
        sent = fx.broadcast((scale, jnp.arange(3)), like=counts)
        mapped = fx.client_map(lambda s, n: s[0] * (n + s[1][0]).astype(jnp.float32), sent, counts)
        return fx.reduce_mean(mapped)

    jaxpr = jax.make_jaxpr(jax.grad(lambda s: program(s, counts)))(jnp.ones(()))
    sums = [p.eqn for p in equations(jaxpr) if p.name == "fed_sum"]
    assert all(len(eqn.invars) == 1 for eqn in sums), sums
