"""`program` costs nothing in what is compiled, nor a retrace where JAX alone would have none."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from federated.helpers import CASES
from jaxtyping import Array, Float

import fedeqx as fx


def bare(program):
    """The function under the decorator; nested programs keep theirs."""
    return program.__wrapped__


def traced(fn, case):
    arrays, rest = eqx.partition(case.sample(), eqx.is_array)
    run = lambda arrays: eqx.filter(fn(*eqx.combine(arrays, rest)), eqx.is_array)
    return run, arrays


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_jaxpr_is_that_of_the_function(case):
    texts = []
    for fn in (case.program, bare(case.program)):
        run, arrays = traced(fn, case)
        texts.append(re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(run)(arrays))))
    assert texts[0] == texts[1]


def test_the_compiled_program_is_that_of_the_function():
    case = next(case for case in CASES if case.name == "fedavg_round")
    texts = []
    for fn in (case.program, bare(case.program)):
        run, arrays = traced(fn, case)
        grad = jax.grad(lambda a, run=run: sum(jnp.sum(x) for x in jax.tree.leaves(run(a))))
        texts.append(jax.jit(grad, keep_unused=True).lower(arrays).as_text())
    assert texts[0] == texts[1]


def test_it_is_traced_as_often_as_the_function():
    traces = []

    @jax.jit
    @fx.program
    def fn(x: fx.Clients[Float[Array, "n"]]) -> fx.Server[Float[Array, "n"]]:
        traces.append(x.size)
        return fx.reduce_mean(x)

    for clients in (3, 3, 4, 3):
        fn(fx.Clients(jnp.ones((clients, 2))))
    assert traces == [3, 4]
    with pytest.raises(TypeError):
        fn(fx.Clients(jnp.ones((3, 2, 2))))
    fn(fx.Clients(jnp.ones((3, 2))))
    assert traces == [3, 4], "a refused call must not be traced, nor empty the cache"


def test_the_client_function_is_not_run_while_checking():
    """Two traces at most: one finds what it closes over, one maps it."""
    runs = []

    @fx.program
    def fn(x: fx.Clients[Float[Array, "n"]]) -> fx.Clients[Float[Array, "n"]]:
        return fx.client_map(lambda x: runs.append(1) or x, x)

    jax.make_jaxpr(fn)(fx.Clients(jnp.ones((3, 2))))
    assert len(runs) <= 2
