"""A second mesh axis: constraints and shard_maps inside the client function, sharded states."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federated.backends.meshes import WAYS, assert_close, declared, make_mesh, on_mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import fedeqx as fx

KINDS = (
    "clients=4 model=2",
    # The inner axis last: JAX 0.12 aborts on nested shard_maps of three axes in another order.
    "data=2 clients=2 model=2",
    "clients=4! model=2",
    "clients=2 model=2!",
    "clients=2! model=2!",
)
each_kind = pytest.mark.parametrize("axes", KINDS)
each_size = pytest.mark.parametrize("clients", [4, 7])
WIDTH, HIDDEN, BATCH = 3, 4, 2


def explicit(axes: str, name: str) -> bool:
    (axis,) = (axis for axis in axes.split() if axis.startswith(name))
    return axis.endswith("!")


def arguments(clients: int):
    rng = np.random.default_rng([5, clients])
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return draw(WIDTH, HIDDEN), draw(HIDDEN), draw(clients, BATCH, WIDTH)


def expected_of(up, down, x):
    """The mean over clients of mean((tanh(x up) down)^2), and its gradients, by hand."""
    up, down, x = (np.asarray(a, np.float64) for a in (up, down, x))
    value, d_up, d_down, d_x = 0.0, np.zeros_like(up), np.zeros_like(down), np.zeros_like(x)
    for i in range(len(x)):
        hidden = np.tanh(x[i] @ up)
        out = hidden @ down
        value += np.mean(out**2) / len(x)
        d_out = 2 * out / BATCH / len(x)
        d_down += hidden.T @ d_out
        d_pre = np.outer(d_out, down) * (1 - hidden**2)
        d_up += x[i].T @ d_pre
        d_x[i] = d_pre @ up.T
    return value, (d_up, d_down, d_x)


def by_constraint(up, down, x):
    hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ up), P(None, "model"))
    return jnp.mean((hidden @ down) ** 2)


def by_type(up, down, x):
    """On an explicit axis: the sum over "model" must be said."""
    up, down = jax.sharding.reshard(up, P(None, "model")), jax.sharding.reshard(down, P("model"))
    out = jnp.einsum("bh,h->b", jnp.tanh(x @ up), down, out_sharding=P(None))
    return jnp.mean(out**2)


def by_shard_map(up, down, x):
    def part(up, down, x):
        return jax.lax.psum(jnp.tanh(x @ up) @ down, "model")

    specs = P(None, "model"), P("model"), P()
    spread = jax.shard_map(part, in_specs=specs, out_specs=P(), axis_names={"model"})
    return jnp.mean(spread(up, down, x) ** 2)


def by_shard_map_over_explicit(up, down, x):
    up, down = jax.sharding.reshard(up, P(None, "model")), jax.sharding.reshard(down, P("model"))
    return by_shard_map(up, down, x)


def client_function(axes: str, how: str):
    if explicit(axes, "model"):
        return by_type if how == "constraint" else by_shard_map_over_explicit
    return by_constraint if how == "constraint" else by_shard_map


@each_kind
@pytest.mark.parametrize("how", ["constraint", "shard_map"])
@each_size
def test_values_and_gradients(axes, how, clients):
    up, down, x = arguments(clients)
    one = client_function(axes, how)
    program = lambda up, down, x: fx.reduce_mean(fx.client_map(one, up, down, fx.Clients(x)))
    run = on_mesh(
        program,
        make_mesh(axes),
        transform=lambda fn: jax.jit(jax.value_and_grad(fn, argnums=(0, 1, 2))),
    )
    assert_close(run(up, down, x), expected_of(up, down, x))


def test_a_constraint_in_a_mesh_of_three_axes_in_any_order():
    up, down, x = arguments(7)
    program = lambda *p: fx.reduce_mean(fx.client_map(by_constraint, *p, fx.Clients(x)))
    run = on_mesh(program, make_mesh("model=2 clients=2 data=2"), transform=jax.jit)
    assert_close(run(up, down), expected_of(up, down, x)[0])


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("how", ["constraint", "shard_map"])
def test_ways_to_declare(way, how):
    """Inside the client function the mesh is the context's, however it was declared."""
    up, down, x = arguments(7)
    one = client_function("model=2 clients=4", how)
    program = lambda up, down, x: fx.reduce_mean(fx.client_map(one, up, down, fx.Clients(x)))
    mesh = make_mesh("model=2 clients=4")
    run = on_mesh(program, mesh, way, lambda fn: jax.jit(jax.value_and_grad(fn, argnums=(0, 1, 2))))
    assert_close(run(up, down, x), expected_of(up, down, x))


@pytest.mark.parametrize("how", ["constraint", "shard_map"])
@pytest.mark.parametrize("axes", ["clients=2 model=2", "clients=2! model=2!"])
def test_local_steps_vmap_and_second_derivatives(axes, how):
    """Against the no-mesh run of the same function without the axis."""
    up, down, x = arguments(3)
    plain = lambda up, down, x: jnp.mean((jnp.tanh(x @ up) @ down) ** 2)

    def results(one, up, down, x):
        def tuned(up, down, x):
            def step(params, _):
                grads = jax.grad(lambda p: one(*p, x))(params)
                return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

            return jax.lax.scan(step, (up, down), None, length=2)[0]

        mean_loss = lambda up, down: fx.reduce_mean(fx.client_map(one, up, down, fx.Clients(x)))
        tune = lambda up: fx.reduce_mean(fx.client_map(tuned, up, down, fx.Clients(x)))
        tangent = jnp.ones_like(down)
        hessian_row = jax.jvp(jax.grad(lambda down: mean_loss(up, down)), (down,), (tangent,))[1]
        swept = jax.vmap(lambda scale: mean_loss(up * scale, down))(jnp.array([1.0, 0.5]))
        return tune(up), hessian_row, swept

    alone = jax.jit(lambda *args: results(plain, *args))(up, down, x)
    with jax.set_mesh(make_mesh(axes)):
        found = jax.jit(lambda *args: results(client_function(axes, how), *args))(up, down, x)
    assert_close(found, alone, rtol=1e-4)


@pytest.mark.parametrize("spec", [P(), P("clients"), P(None, "model"), P(None, None, "model")])
@pytest.mark.parametrize("axes", ["clients=2 model=2", "clients=2! model=2!"])
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_inputs_sharded_already(axes, spec, jit):
    """By clients, by another axis of one client's data, not at all; all of them are kept."""
    clients = 4
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, 2, 4)).astype(np.float32)
    w = rng.normal(size=(4,)).astype(np.float32)
    mesh = make_mesh(axes)

    def program(w, x):
        return fx.reduce_sum(fx.client_map(lambda w, x: jnp.sin(x) * w[None], w, x)), x

    with jax.set_mesh(mesh):
        placed = fx.Clients(jax.device_put(x, NamedSharding(mesh, spec)))
        spread = jax.device_put(w, NamedSharding(mesh, P("model")))
        for state in (w, spread):
            if state is spread and explicit(axes, "model") and spec != P(None, None, "model"):
                continue  # JAX would have the user choose between the two types
            fn = jax.jit(program) if jit else program
            total, same = fn(state, placed)
            assert_close((total, same.value), ((np.sin(x) * w).sum(0), x))


@pytest.mark.parametrize("axes", ["clients=2 model=2", "clients=2! model=2!", "clients=2! model=2"])
def test_server_values_sharded_over_the_clients_axis(axes):
    """A state spread over all devices (ZeRO) goes to each client whole; its gradient comes back."""
    mesh = make_mesh(axes)
    w = np.arange(4, dtype=np.float32)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    program = lambda w, x: fx.reduce_mean(fx.client_map(jnp.dot, w, fx.Clients(x)))
    with jax.set_mesh(mesh):
        state = jax.device_put(w, NamedSharding(mesh, P("clients")))
        value, gradient = jax.jit(jax.value_and_grad(program))(state, x)
        eager = jax.grad(program)(state, jnp.asarray(x))
    assert_close((value, gradient, eager), ((x @ w).mean(), x.mean(0), x.mean(0)))
    if explicit(axes, "clients"):
        assert gradient.sharding.spec == P("clients")


def adam_round(optimizer, params, state, x):
    """Clients take local steps of SGD; the server applies Adam."""

    def local(params, x):
        def step(params, _):
            grads = jax.grad(lambda p: jnp.mean(jnp.tanh(jnp.tanh(x @ p[0]) @ p[1]) ** 2))(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

        tuned = jax.lax.scan(step, params, None, length=2)[0]
        return jax.tree.map(lambda old, new: old - new, params, tuned)

    update = fx.reduce_mean(fx.client_map(local, params, fx.Clients(x)))
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimizer.update(update, state, params)
    return optax.apply_updates(params, updates), state


@pytest.mark.parametrize("axes", ["clients=4 model=2", "model=2 clients=2", "clients=2! model=2"])
@each_size
def test_server_state_keeps_its_sharding(axes, clients):
    """Parameters and Adam's moments, sharded over "model", come out so; nothing gathers them."""
    rng = np.random.default_rng(0)
    up, down = (rng.normal(size=s).astype(np.float32) for s in ((3, 8), (8, 3)))
    x = rng.normal(size=(clients, 2, 3)).astype(np.float32)
    optimizer = optax.adam(0.1)
    one_round = jax.jit(lambda params, state, x: adam_round(optimizer, params, state, x))
    alone = one_round((up, down), optimizer.init((jnp.asarray(up), jnp.asarray(down))), x)
    mesh = make_mesh(axes)
    with jax.set_mesh(mesh):
        specs = P(None, "model"), P("model")
        params = tuple(
            jax.device_put(p, NamedSharding(mesh, s))
            for p, s in zip((up, down), specs, strict=True)
        )
        state = jax.jit(optimizer.init)(params)
        state = jax.tree.map(jax.device_put, state, _like_params(state, params))
        compiled = one_round.lower(params, state, x).compile()
        new = compiled(params, state, x)
    assert_close(new, alone, rtol=1e-4)
    new_params, (adam, *_) = new
    for tree in (new_params, adam.mu, adam.nu):
        for leaf, spec in zip(tree, specs, strict=True):
            assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec), leaf.ndim)
    assert "all-gather" not in (compiled.as_text() or "all-gather")


def _like_params(state, params):
    """The shardings of an Adam state whose moments are sharded as the parameters are."""
    replicated = NamedSharding(params[0].sharding.mesh, P())
    shardings = tuple(p.sharding for p in params)
    adam, *rest = state
    adam = adam._replace(count=replicated, mu=shardings, nu=shardings)
    return (adam, *jax.tree.map(lambda _: replicated, tuple(rest)))


@pytest.mark.xfail(
    jax.__version_info__ < (0, 11), reason="JAX 0.10 lets XLA gather an explicit model axis"
)
def test_server_state_keeps_its_type_on_an_explicit_axis():
    """There the type says it, through broadcast, client work and mean."""
    mesh = make_mesh("clients=2! model=2!")
    w = np.arange(8, dtype=np.float32).reshape(2, 4)
    x = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)

    def one_round(w, x):
        local = lambda w, x: 0.5 * (jax.sharding.reshard(x, P(None, "model")) - w)
        return w + fx.reduce_mean(fx.client_map(local, w, fx.Clients(x)))

    with jax.set_mesh(mesh):
        state = jax.device_put(w, NamedSharding(mesh, P(None, "model")))
        compiled = jax.jit(one_round).lower(state, x).compile()
        after = compiled(state, x)
    assert_close(after, (w + x.mean(0)) / 2)
    assert after.sharding.spec == P(None, "model")
    assert "all-gather" not in (compiled.as_text() or "all-gather")


def test_constraints_by_a_named_sharding_in_legacy_style():
    """A client function that names the concrete mesh itself."""
    mesh = make_mesh("clients=2 model=2")
    x = np.random.default_rng(0).normal(size=(4, 2, 4)).astype(np.float32)

    def one(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, P(None, "model")))

    for way in ("set_mesh", "with"):
        with declared(mesh, way):
            total = jax.jit(lambda x: fx.reduce_sum(fx.client_map(one, fx.Clients(x))))(x)
        assert_close(total, np.sin(x).sum(0))
