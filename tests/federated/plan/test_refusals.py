"""What is no federated program is refused, with the operation and the line."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import fedeqx as fx

X = fx.Clients(jnp.arange(12.0).reshape(4, 3))
W = jnp.arange(3.0)

MIXING = {
    "one client's value": lambda x, w: x.value[0],
    "a sum": lambda x, w: jnp.sum(x.value),
    "a mean over clients": lambda x, w: jnp.mean(x.value, axis=0),
    "a reshape across the axis": lambda x, w: x.value.reshape(-1),
    "a running sum": lambda x, w: fx.Clients(jnp.cumsum(x.value, axis=0)),
    "sorting": lambda x, w: fx.Clients(jnp.sort(x.value, axis=0)),
    "the reverse order": lambda x, w: fx.Clients(x.value[::-1]),
    "a shuffle": lambda x, w: fx.Clients(jax.random.permutation(jax.random.key(0), x.value)),
    "neighbours": lambda x, w: fx.Clients(jnp.roll(x.value, 1, axis=0)),
    "all pairs": lambda x, w: fx.Clients(x.value @ x.value.T),
    "a normalization": lambda x, w: fx.reduce_sum(
        fx.Clients(x.value / x.value.max(0, keepdims=True))
    ),
    "a choice": lambda x, w: fx.Clients(jnp.take(x.value, jnp.arange(x.size), axis=0)),
    "the best client": lambda x, w: jnp.argmax(x.value[:, 0]),
    "numbers of clients": lambda x, w: fx.Clients(jnp.arange(x.size)),
    "a write": lambda x, w: fx.Clients(x.value.at[0].set(0.0)),
    "a sum at places": lambda x, w: fx.Clients(
        x.value.at[jnp.zeros(x.size, jnp.int32)].add(x.value)
    ),
    "unstacked clients": lambda x, w: fx.Clients(jnp.stack(jnp.unstack(x.value)[::-1])),
    "tiled": lambda x, w: fx.Clients(jnp.tile(x.value, (2, 1))),
    "concatenation": lambda x, w: fx.reduce_sum(
        fx.Clients(jnp.concatenate([x.value[1:], x.value[:1]]))
    ),
    "a transposed matrix": lambda x, w: x.value.T @ x.value,
}


@pytest.mark.parametrize("name", MIXING)
def test_mixing_names_the_operation_and_the_line(name):
    with pytest.raises(fx.PlanError, match=r"[a-z_]+ at test_refusals\.py:\d+") as e:
        fx.plan(MIXING[name], X, W)
    assert re.search(r"mixes the clients|depends on the cohort size", str(e.value))


SEPARATE = {
    "arithmetic": lambda x, w: fx.Clients(2 * x.value + 1),
    "a sum of each client": lambda x, w: fx.Clients(x.value.sum(axis=1)),
    "sorting within each": lambda x, w: fx.Clients(jnp.sort(x.value, axis=1)),
    "a running sum within each": lambda x, w: fx.Clients(jnp.cumsum(x.value, axis=-1)),
    "an element of each": lambda x, w: fx.Clients(x.value[:, 1]),
    "the reverse within each": lambda x, w: fx.Clients(x.value[:, ::-1]),
    "a reshape within each": lambda x, w: fx.Clients(x.value.reshape(x.size, 3, 1)),
    "a product within each": lambda x, w: fx.Clients(jnp.einsum("ci,ci->c", x.value, x.value)),
    "a fixed matrix": lambda x, w: fx.Clients(x.value @ np.eye(3, 2, dtype=np.float32)),
    "a choice within each": lambda x, w: fx.Clients(x.value[:, np.array([2, 0])]),
    "padding within each": lambda x, w: fx.Clients(jnp.pad(x.value, ((0, 0), (1, 2)))),
    "concatenation within each": lambda x, w: fx.Clients(
        jnp.concatenate([x.value, -x.value], axis=1)
    ),
    "a vmap of one's own": lambda x, w: fx.Clients(jax.vmap(jnp.outer)(x.value, x.value)),
    "zeros": lambda x, w: fx.Clients(jnp.zeros_like(x.value) + x.value),
    "a nested jit": lambda x, w: fx.Clients(jax.jit(jnp.tanh)(x.value)),
    "a custom derivative": lambda x, w: fx.Clients(jax.nn.relu(x.value)),
    "a checkpoint": lambda x, w: fx.Clients(jax.checkpoint(jnp.sin)(x.value)),
    "split": lambda x, w: fx.Clients(jnp.split(x.value, 3, axis=1)),
    "stacked within each": lambda x, w: fx.Clients(jnp.stack([x.value, 2 * x.value], axis=1)),
    "stacked before": lambda x, w: fx.Clients(
        jnp.stack([x.value, 2 * x.value], axis=0).sum(axis=0)
    ),
    "unstacked": lambda x, w: fx.Clients(jnp.unstack(x.value, axis=1)),
    "tiled within each": lambda x, w: fx.Clients(jnp.tile(x.value, (1, 2))),
    "a write within each": lambda x, w: fx.Clients(x.value.at[:, 1].set(0.0)),
    "a sum at places of each": lambda x, w: fx.Clients(
        x.value.at[:, np.array([2, 0, 2])].add(x.value)
    ),
    "places of one's own": lambda x, w: fx.Clients(
        jnp.take_along_axis(x.value, jnp.argsort(x.value, axis=1), axis=1)
    ),
    "a name": lambda x, w: fx.Clients(checkpoint_name(x.value, "x")),
    "the maximum of each": lambda x, w: fx.Clients(jnp.argmax(x.value, axis=1)),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_what_keeps_clients_apart_is_planned(name):
    plan = fx.plan(SEPARATE[name], X, W)
    for clients in (1, 5):
        x = fx.Clients(jnp.asarray(np.random.default_rng(0).normal(size=(clients, 3)), jnp.float32))
        found, expected = plan(x, W), SEPARATE[name](x, W)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


SMOOTH = [name for name in SEPARATE if "maximum of each" not in name]


@pytest.mark.parametrize("name", SMOOTH)
def test_its_gradient_is_planned_too(name):
    def loss(x, w):
        made = jax.tree.leaves(SEPARATE[name](x, w))
        return fx.reduce_sum(
            fx.Clients([jnp.square(leaf).sum(range(1, leaf.ndim)) for leaf in made])
        )

    gradient = jax.grad(lambda x, w: sum(jax.tree.leaves(loss(x, w))))
    plan = fx.plan(gradient, X, W)
    x = fx.Clients(jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32))
    np.testing.assert_allclose(plan(x, W).value, gradient(x, W).value, rtol=1e-5, atol=1e-5)


def refused(fn, match, *args):
    with pytest.raises(fx.PlanError, match=match):
        fx.plan(fn, *args)


def test_an_unreduced_result_is_refused():
    refused(lambda x, w: x.value, "result is to be at the server, but holds clients' values", X, W)


def test_a_server_value_that_was_never_sent_is_named():
    refused(
        lambda x, w: fx.reduce_sum(fx.Clients(x.value * w[None])),
        r"mul at test_refusals\.py:\d+.* never sent",
        X,
        W,
    )


def test_a_server_value_declared_to_be_clients_is_refused():
    made = lambda x, w: fx.reduce_sum(fx.Clients(jnp.stack([w] * x.size)))
    refused(made, r"fed_sum at test_refusals\.py:\d+.* never sent to them", X, W)


def test_a_client_value_sent_to_the_others_is_refused():
    leak = lambda x, w: fx.reduce_sum(fx.client_map(lambda d: d[None] - x.value, x))
    refused(leak, r"fed_broadcast at test_refusals\.py:\d+.* a client's own value", X, W)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: fx.reduce_sum(x) / x.size,
        lambda x, w: w * x.size,
        lambda x, w: fx.reduce_sum(fx.client_map(lambda d: d / x.size, x)),
        lambda x, w: fx.reduce_sum(x) ** x.size,
        lambda x, w: [fx.reduce_sum(x)] * x.size,
        lambda x, w: w + np.arange(x.size, dtype=np.float32).sum(),
    ],
    ids=["divisor", "factor", "inside client_map", "power", "length", "constant"],
)
def test_the_cohort_size_as_a_python_number_is_refused(fn):
    with pytest.raises(fx.PlanError, match="cohort_size"):
        fx.plan(fn, X, W)


def test_the_cohort_size_as_a_value_is_planned():
    plan = fx.plan(lambda x: fx.reduce_sum(x) / fx.cohort_size(x).astype(jnp.float32), X)
    for clients in (1, 2, 9):
        x = fx.Clients(jnp.ones((clients, 3)))
        np.testing.assert_allclose(plan(x), jnp.ones(3))


def test_a_branch_that_communicates_is_refused():
    def fn(x, w):
        return jax.lax.cond(w[0] > 0, lambda: fx.reduce_sum(x), lambda: w)

    refused(fn, r"cond at test_refusals\.py:\d+.*communicates.*jnp\.where", X, W)


def test_a_while_loop_that_communicates_is_refused():
    def fn(x, w):
        body = lambda w: w + fx.reduce_mean(x)
        return jax.lax.while_loop(lambda w: w[0] < 9, body, w)

    refused(fn, r"while at test_refusals\.py:\d+.*communicates", X, W)


def test_control_flow_on_clients_values_belongs_into_client_map():
    def fn(x, w):
        return fx.Clients(jax.lax.cond(w[0] > 0, jnp.sin, jnp.cos, x.value))

    refused(
        fn, r"cond at test_refusals\.py:\d+.*Put it in the function that `client_map` runs", X, W
    )


def test_a_branch_without_communication_stays_whole():
    def fn(x, w):
        return jax.lax.cond(w[0] > 0, jnp.sin, jnp.cos, w) + fx.reduce_sum(x)

    np.testing.assert_allclose(fx.plan(fn, X, W)(X, W), fn(X, W), rtol=1e-6)


def test_a_side_effect_is_not_dropped(capfd):
    def fn(x, w):
        jax.debug.print("w is {}", w[0])
        return fx.reduce_sum(x)

    refused(fn, r"debug.* at test_refusals\.py:\d+.*side effect", X, W)

    def told(x):
        jax.debug.print("mine is {}", x[0])
        return x

    plan = fx.plan(lambda x: fx.reduce_sum(fx.client_map(told, x)), X)
    jax.block_until_ready(plan(X))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("mine is") == 4


def test_too_many_rounds_are_refused():
    def fn(x, w):
        return jax.lax.scan(lambda w, _: (w + fx.reduce_mean(x), None), w, None, length=300)[0]

    refused(fn, r"scan at test_refusals\.py:\d+.*300 iterations.*up to 256", X, W)


def test_no_clients_are_refused():
    refused(lambda w: w, "needs clients' values.*Found: w", W)


def test_other_arguments_than_planned_are_refused():
    plan = fx.plan(lambda x, w: fx.reduce_sum(x) + w, X, W)
    with pytest.raises(fx.PlanError, match=r"w was planned as float32\[3\], and is float32\[4\]"):
        plan(X, jnp.zeros(4))
    with pytest.raises(fx.PlanError, match=r"x.* was planned as float32\[3\] at each client"):
        plan(fx.Clients(jnp.zeros((2, 4))), W)
    with pytest.raises(fx.PlanError, match="structure"):
        plan((X, X), W)
