"""Every way to declare a mesh, of every kind: the value and all gradients are NumPy's."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federated.backends.meshes import (
    WAYS,
    assert_close,
    declared,
    jit_value_and_gradients,
    make_mesh,
    np_weighted_loss,
    on_mesh,
    regression,
    to_jax,
    value_and_gradients,
    weighted_loss,
)

import fedeqx as fx

KINDS = (
    "clients=4",
    "clients=4!",
    "clients=4 model=2",
    "clients=4! model=2!",
    "clients=4 model=2!",
    "clients=4! model=2",
    "model=2! clients=4",
    "model=2 clients=2! data=2!",
    "data=2! model=2 clients=2",
)
each_kind = pytest.mark.parametrize("axes", KINDS)
each_way = pytest.mark.parametrize("way", WAYS)


def devices_of(x) -> set[jax.Device]:
    return x.sharding.device_set


def test_the_oracle_holds_without_a_mesh():
    arguments = regression(6)
    found = jit_value_and_gradients(weighted_loss)(*to_jax(arguments))
    assert_close(found, np_weighted_loss(*arguments))


@each_kind
@each_way
def test_compiled(axes, way):
    """From NumPy arrays, six clients on four devices or on two."""
    arguments = regression(6)
    mesh = make_mesh(axes)
    run = on_mesh(weighted_loss, mesh, way, jit_value_and_gradients)
    value, gradients = run(*arguments)
    assert_close((value, gradients), np_weighted_loss(*arguments))
    assert devices_of(value) == set(mesh.devices.flat)


@pytest.mark.parametrize("axes", ["clients=4", "clients=4!", "clients=2 model=2!"])
@pytest.mark.parametrize("clients", [4, 6])
@each_way
def test_eager(axes, way, clients):
    arguments = regression(clients)
    expected = np_weighted_loss(*arguments)
    mesh = make_mesh(axes)
    assert_close(on_mesh(weighted_loss, mesh, way)(*arguments), expected[0])
    run = on_mesh(weighted_loss, mesh, way, value_and_gradients)
    assert_close(run(*to_jax(arguments)), expected)


@pytest.mark.parametrize("axes", ["clients=4", "clients=2! model=2"])
@each_way
def test_devices_given(axes, way):
    """A mesh need not start at the first device, nor go through them in order."""
    chosen = jax.devices()[:3:-1]
    assert len(chosen) == 4
    arguments = regression(6)
    run = on_mesh(weighted_loss, make_mesh(axes, chosen), way, jit_value_and_gradients)
    value, gradients = run(*arguments)
    assert_close((value, gradients), np_weighted_loss(*arguments))
    assert devices_of(value) == set(chosen)


@pytest.mark.parametrize("way", ["set_mesh", "with"])
def test_the_programs_mesh_comes_first(way):
    arguments = regression(4)
    own, around = make_mesh("clients=2"), make_mesh("clients=4")

    @fx.program(mesh=own)
    def program(x):
        return fx.client_map(jnp.sum, x)

    with declared(around, way):
        jaxpr = str(jax.make_jaxpr(program)(arguments[2]))
    assert "'clients': 2" in jaxpr
    assert "'clients': 4" not in jaxpr.replace("ctx_mesh=Mesh('clients': 4", "")


def test_the_programs_mesh_ends_with_it():
    """With its result or with an error, and for a program around it."""
    x = fx.Clients(jnp.arange(4.0))
    small, large = make_mesh("clients=2"), make_mesh("clients=4")

    @fx.program(mesh=small)
    def inner(x, fail=False):
        if fail:
            raise RuntimeError("on purpose")
        return fx.reduce_sum(x)

    @fx.program(mesh=large)
    def outer(x):
        with pytest.raises(RuntimeError, match="on purpose"):
            inner(x, fail=True)
        before = inner(x)
        return before + fx.reduce_max(x)

    reductions = {
        eqn.primitive.name: eqn.params["mesh"]
        for eqn in jax.make_jaxpr(outer)(x).eqns
        if eqn.primitive.name.startswith("fed_")
    }
    assert reductions["fed_sum"].shape["clients"] == 2
    assert reductions["fed_max"].shape["clients"] == 4
    (after,) = (
        eqn
        for eqn in jax.make_jaxpr(lambda x: fx.reduce_sum(x))(x).eqns
        if eqn.primitive.name == "fed_sum"
    )
    assert after.params["mesh"] is None
    assert_close(jax.jit(outer)(x), 6.0 + 3.0)


def test_threads_have_meshes_of_their_own():
    """Programs on 1, 2, 4 and 8 devices and on no mesh, traced at once."""
    x = fx.Clients(jnp.arange(8.0))
    sizes = (None, 1, 2, 4, 8)
    barrier = threading.Barrier(len(sizes))
    found = {}

    def work(size):
        def body(x):
            barrier.wait(timeout=30)
            total = fx.reduce_sum(fx.client_map(lambda x: x * x, x))
            barrier.wait(timeout=30)
            return total + fx.reduce_max(x)

        mesh = None if size is None else make_mesh(f"clients={size}")
        program = fx.program(body) if mesh is None else fx.program(mesh=mesh)(body)
        jaxpr = jax.make_jaxpr(program)(x)
        meshes = [e.params["mesh"] for e in jaxpr.eqns if e.primitive.name.startswith("fed_")]
        found[size] = [None if m is None else m.shape["clients"] for m in meshes]

    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {size: [size, size] for size in sizes}


@pytest.mark.parametrize("way", WAYS)
def test_a_jit_around_the_declaration(way):
    """The mesh may be declared in the traced function too, where JAX allows that."""
    if way == "set_mesh":
        pytest.skip("jax.set_mesh is not allowed in a traced function")
    arguments = regression(6)
    mesh = make_mesh("clients=4")
    fn = on_mesh(weighted_loss, mesh, way)
    assert_close(jax.jit(fn)(*arguments), np_weighted_loss(*arguments)[0])


def test_the_same_program_with_and_without_a_mesh():
    """One jitted function is compiled anew where the mesh around it changes."""
    arguments = regression(6)
    fn = jax.jit(weighted_loss)
    expected = np_weighted_loss(*arguments)[0]
    for size in (None, 4, 2, None):
        if size is None:
            value = fn(*arguments)
        else:
            with jax.set_mesh(make_mesh(f"clients={size}")):
                value = fn(*arguments)
        assert_close(value, expected)
        assert len(devices_of(value)) == (size or 1)


def test_help_says_what_a_mesh_does():
    told = " ".join((fx.program.__doc__ or "").split())
    assert "A mesh without such an axis runs replicated" in told
    assert "jax.set_mesh" in told
