"""What a person reads of a plan: the table, the diagram, and the count of operations."""

import jax
import jax.numpy as jnp
import pytest

import fedeqx as fx
from fedeqx.federated.plan._flops import work_of

X = fx.Clients(jnp.zeros((4, 5, 3)))
W = jnp.zeros(3)


def mean(w, x):
    return fx.reduce_mean(fx.client_map(lambda w, x: jnp.sum(x @ w), w, x))


def test_a_table():
    text = str(fx.plan(mean, W, X))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["mean:", "1", "round"]
    assert ["down", "w", "float32[3]", "12", "B"] in lines
    assert ["up,", "sum", "result", "float32[]", "4", "B"] in lines
    assert text.endswith("in total, for each client: 12 B down, 4 B up")


def test_what_a_client_keeps_is_told():
    def twice(w, x):
        scale = fx.client_map(lambda x: jnp.sum(x**2), x)
        total = fx.reduce_sum(fx.client_map(jnp.multiply, scale, scale))
        return fx.reduce_sum(fx.client_map(lambda t, s: t * s, total, scale))

    plan = fx.plan(twice, W, X)
    (kept,) = plan.rounds[0].kept
    assert (kept.shape, kept.bytes) == ((), 4) or kept.shape == (1,)
    assert "keeps" in str(plan)


def test_a_diagram():
    lines = fx.plan(jax.value_and_grad(mean), W, X).to_mermaid().splitlines()
    assert lines[0] == "sequenceDiagram"
    assert "    S->>C: broadcast 2 arrays, 16 B" in lines
    assert "    C->>S: sum 2 arrays, 16 B" in lines


def work(fn, *args):
    return work_of(jax.make_jaxpr(fn)(*args).jaxpr.eqns)


@pytest.mark.parametrize(
    ("fn", "shapes", "flops"),
    [
        (jnp.dot, [(4, 5), (5, 6)], 2 * 4 * 5 * 6),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), [(7, 4, 5), (7, 5, 6)], 7 * 2 * 4 * 5 * 6),
        (jnp.add, [(4, 5), (4, 5)], 20),
        (jnp.sum, [(4, 5)], 20),
        (lambda x: jnp.reshape(x, -1), [(4, 5)], 0),
        (lambda x: jax.lax.scan(lambda c, x: (c + x, c), x[0], x)[0], [(6, 5)], 6 * 5),
        (jax.jit(lambda x: x * x + x), [(8,)], 16),
        (
            lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID"),
            [(2, 3, 8, 8), (4, 3, 3, 3)],
            2 * (2 * 4 * 6 * 6) * (3 * 3 * 3),
        ),
    ],
)
def test_flops_are_those_counted_by_hand(fn, shapes, flops):
    assert work(fn, *(jnp.zeros(shape) for shape in shapes)).flops == flops


def test_flops_of_matrices_are_those_of_xla():
    a, b = jnp.zeros((16, 32)), jnp.zeros((32, 8))
    analysis = jax.jit(jnp.dot).lower(a, b).cost_analysis()
    assert analysis is not None
    assert work(jnp.dot, a, b).flops == analysis["flops"]


def test_a_branch_counts_as_its_longest_and_a_while_loop_at_least_once():
    branch = lambda x: jax.lax.cond(x[0] > 0, lambda x: x @ x, lambda x: x[0], x)
    assert work(branch, jnp.zeros(100)).flops >= 200
    loop = lambda x: jax.lax.while_loop(lambda x: x[0] < 9, lambda x: x + 1, x)
    assert not work(loop, jnp.zeros(4)).exact
    plan = fx.plan(lambda x: fx.reduce_sum(fx.client_map(loop, x)), fx.Clients(jnp.zeros((2, 4))))
    assert "at least" in str(plan)
