"""Where the mesh axis is missing, spent or taken: replicated, local or a named error."""

import inspect
import pydoc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federated.backends.meshes import (
    WAYS,
    assert_close,
    collectives,
    jit_value_and_gradients,
    make_mesh,
    np_weighted_loss,
    on_mesh,
    regression,
    weighted_loss,
)
from jax.sharding import PartitionSpec as P

import fedeqx as fx


@pytest.mark.parametrize("axes", ["model=4", "model=4!", "data=2! model=2"])
@pytest.mark.parametrize("way", WAYS)
def test_a_mesh_without_the_axis_runs_replicated(axes, way):
    arguments = regression(6)
    run = on_mesh(weighted_loss, make_mesh(axes), way, jit_value_and_gradients)
    assert_close(run(*arguments), np_weighted_loss(*arguments))


def test_help_says_so():
    told = " ".join(pydoc.plain(pydoc.render_doc(fx.program)).split())
    assert "A mesh without such an axis runs replicated" in told
    assert "clients" in inspect.signature(fx.broadcast).parameters


@pytest.mark.parametrize("axes", ["clients=4", "clients=4!", "clients=2 model=2"])
@pytest.mark.parametrize("way", WAYS)
def test_an_axis_that_is_manual_already_is_named(axes, way):
    """By each verb, in a `shard_map` over that axis or over all."""
    mesh = make_mesh(axes)
    x = np.ones((4, 3), np.float32)
    verbs = {
        "broadcast": lambda x: fx.broadcast(x, clients=4).value,
        "client_map": lambda x: fx.client_map(lambda v: v, fx.Clients(x)).value,
        "reduce_sum": lambda x: fx.reduce_sum(fx.Clients(x)),
        "reduce_mean": lambda x: fx.reduce_mean(fx.Clients(x)),
        "reduce_max": lambda x: fx.reduce_max(fx.Clients(x)),
    }
    for verb in verbs.values():
        enclose = lambda fn: jax.jit(
            jax.shard_map(fn, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        )
        program = fx.program(mesh=mesh)(verb) if way == "program" else verb
        run = on_mesh(program, mesh, "set_mesh" if way == "program" else way, enclose)
        with pytest.raises(ValueError, match="mesh axis 'clients' cannot carry the cohort"):
            run(x)


def test_a_program_with_a_mesh_of_its_own_names_the_axis_too():
    """Nothing but the enclosing `shard_map` tells that the axis is taken."""
    mesh = make_mesh("clients=4")
    program = fx.program(mesh=mesh)(lambda x: fx.reduce_sum(fx.Clients(x)))
    enclosed = jax.shard_map(program, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    with pytest.raises(ValueError, match="mesh axis 'clients' cannot carry the cohort"):
        jax.jit(enclosed)(np.ones((4, 3), np.float32))


@pytest.mark.parametrize("way", ["set_mesh", "with", "program"])
def test_a_shard_map_over_another_axis_leaves_the_clients_axis_free(way):
    """The program inside runs over "clients" for each half of the features."""
    mesh = make_mesh("clients=2 model=2")
    w = np.arange(4, dtype=np.float32)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

    def program(w, x):
        return fx.reduce_mean(fx.client_map(lambda w, x: jnp.sin(w * x), w, fx.Clients(x)))

    def enclose(fn):
        return jax.jit(
            jax.shard_map(
                fn,
                mesh=mesh,
                in_specs=(P("model"), P(None, "model")),
                out_specs=P("model"),
                axis_names={"model"},
            )
        )

    assert_close(on_mesh(program, mesh, way, enclose)(w, x), np.sin(w * x).mean(0))


def pods(values):
    return fx.reduce_mean(fx.client_map(lambda v: v * v, fx.Clients(values)))


@pytest.mark.parametrize("axes", ["clients=4", "clients=4!", "clients=2 model=2!"])
@pytest.mark.parametrize("kind", ["operations", "program", "program on the mesh", "jit"])
def test_a_program_inside_a_client_function(axes, kind):
    """A client that is itself a cohort, of a size that has nothing to do with the mesh."""
    mesh = make_mesh(axes)
    inner = {
        "operations": pods,
        "program": fx.program(pods),
        "program on the mesh": fx.program(mesh=mesh)(pods),
        "jit": jax.jit(pods),
    }[kind]
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)

    def outer(w, x):
        return fx.reduce_sum(fx.client_map(lambda w, x: w * inner(x), w, fx.Clients(x)))

    w = np.float32(0.5)
    run = on_mesh(outer, mesh, transform=lambda fn: jax.jit(jax.value_and_grad(fn, (0, 1))))
    total = (x**2).mean(1).sum()
    assert_close(run(w, x), (w * total, (total, w * 2 * x / 3)), rtol=1e-4)
    with jax.set_mesh(mesh):
        assert [name for name, _ in collectives(outer, w, x)] == ["all-reduce"]


def test_one_jitted_program_on_both_sides_of_a_client_function():
    """What was traced for the server is not taken for a client's, nor the other way round."""
    shared = jax.jit(fx.program(pods))
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

    def outer(x):
        at_server = shared(x[0])
        within = fx.reduce_sum(fx.client_map(shared, fx.Clients(x)))
        return at_server, within, shared(x[1])

    with jax.set_mesh(make_mesh("clients=4")):
        found = outer(jnp.asarray(x)), jax.jit(outer)(x)
    expected = (x[0] ** 2).mean(), (x**2).mean(1).sum(), (x[1] ** 2).mean()
    assert_close(found, (expected, expected))


@pytest.mark.xfail(reason="JAX traces the rule when no frame of the client function is left")
def test_a_program_in_the_backward_rule_of_a_client_function():
    """The rule is traced after the client function has returned; it is a client's work yet."""

    @jax.custom_vjp
    def mean_square(x):
        return jnp.mean(x * x)

    def backward(x, ct):
        share = fx.reduce_mean(fx.client_map(lambda v: 0 * v + 2.0, fx.Clients(x)))
        return (share * x * ct / x.shape[0],)

    mean_square.defvjp(lambda x: (mean_square(x), x), backward)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    program = lambda x: fx.reduce_sum(fx.client_map(mean_square, fx.Clients(x)))
    with jax.set_mesh(make_mesh("clients=4")):
        assert_close(jax.jit(jax.grad(program))(x), 2 * x / 3)


def test_the_scope_ends_when_a_client_function_fails():
    x = fx.Clients(np.ones((4, 2), np.float32))

    def fail(x):
        raise RuntimeError("on purpose")

    with jax.set_mesh(make_mesh("clients=4")):
        with pytest.raises(RuntimeError, match="on purpose"):
            fx.client_map(fail, x)
        (reduction,) = jax.make_jaxpr(fx.reduce_sum)(x).eqns[-1:]
    assert reduction.params["mesh"].shape["clients"] == 4
