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

pytestmark = pytest.mark.slow

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


def devices_of(x):
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


def meshes_in(jaxpr) -> dict[str, int | None]:
    """The length of the clients axis in each communication; there is one of each kind."""
    meshes = {
        eqn.primitive.name: eqn.params["mesh"]
        for eqn in jaxpr.eqns
        if "mesh" in eqn.params and eqn.primitive.name.startswith("fed_")
    }
    return {name: mesh and mesh.shape["clients"] for name, mesh in meshes.items()}


def test_the_programs_mesh_comes_before_a_legacy_one():
    x = fx.Clients(jnp.arange(4.0))
    program = fx.program(mesh=make_mesh("clients=2"))(fx.reduce_sum)
    with declared(make_mesh("clients=4"), "with"):
        assert meshes_in(jax.make_jaxpr(program)(x)) == {"fed_sum": 2}


def test_another_mesh_than_that_of_set_mesh_is_an_error():
    """JAX computes on one mesh at a time; the message shows both."""
    program = fx.program(mesh=make_mesh("clients=2"))(fx.reduce_sum)
    with (
        jax.set_mesh(make_mesh("clients=4")),
        pytest.raises(ValueError, match=r"\(clients=2\) is not the mesh .* \(clients=4\)"),
    ):
        program(fx.Clients(jnp.arange(4.0)))


@pytest.mark.parametrize("own", ["clients=4", "clients=4!"])
@pytest.mark.parametrize("around", ["clients=4", "clients=4!"])
def test_the_same_mesh_may_be_given_twice(own, around):
    arguments = regression(6)
    program = fx.program(mesh=make_mesh(own))(weighted_loss)
    with jax.set_mesh(make_mesh(around)):
        found = jit_value_and_gradients(program)(*arguments)
    assert_close(found, np_weighted_loss(*arguments))


def test_the_programs_mesh_ends_with_it():
    """With its result or with an error, and for a program around it."""
    x = fx.Clients(jnp.arange(4.0))
    small, large = make_mesh("clients=2 model=2"), make_mesh("clients=4")

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

    assert meshes_in(jax.make_jaxpr(outer)(x)) == {"fed_sum": 2, "fed_max": 4}
    assert meshes_in(jax.make_jaxpr(fx.reduce_sum)(x)) == {"fed_sum": None}
    assert_close(outer(x), 6.0 + 3.0)  # XLA compiles for one mesh at a time


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
        found[size] = meshes_in(jaxpr)

    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {size: {"fed_sum": size, "fed_max": size} for size in sizes}


@each_way
@pytest.mark.parametrize("verb", ["broadcast", "reduce_sum", "reduce_max"])
def test_communication_alone(way, verb):
    """No client function tells JAX of the mesh's devices: the verb must, and its derivatives."""
    mesh = make_mesh("clients=4")
    x = np.arange(6, dtype=np.float32) - 2
    program, argument, value, gradient = {
        "broadcast": (lambda w: fx.broadcast(w, clients=6).value @ x, np.float32(2), 6, 3),
        "reduce_sum": (lambda x: fx.reduce_sum(fx.Clients(x)), x, 3, np.ones(6)),
        "reduce_max": (lambda x: fx.reduce_max(fx.Clients(x)), x, 3, np.eye(6)[5]),
    }[verb]
    for transform, expected in (
        (lambda fn: jax.jit(fn), value),
        (lambda fn: jax.jit(jax.grad(fn)), gradient),
        (lambda fn: jax.grad(jax.jit(fn)), gradient),
    ):
        found = on_mesh(program, mesh, way, transform)(jnp.asarray(argument))
        assert_close(found, expected)
        assert len(devices_of(found)) == 4


def test_a_jitted_function_that_programs_of_several_meshes_share():
    """It is traced anew for each: a program's mesh is part of what `jit` keeps its traces by."""
    shared = jax.jit(lambda x: fx.reduce_sum(x))
    x = fx.Clients(np.arange(8, dtype=np.float32))
    for size in (2, 4, None, 2):
        program = lambda x: shared(x)
        if size is not None:
            program = fx.program(mesh=make_mesh(f"clients={size}"))(program)
        total = program(x)
        assert_close(total, 28.0)
        assert len(devices_of(total)) == (size or 1)


@pytest.mark.parametrize("way", ["with", "program"])  # JAX forbids jax.set_mesh in a jit
def test_a_jit_around_the_declaration(way):
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
