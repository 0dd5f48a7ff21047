"""The mesh: any way of declaring it, any axis types, any cohort; few collectives."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federated.helpers import assert_same
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

import fedeqx as fx

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)\(")


def mesh_of(shape=(4,), names=("clients",), types=AUTO, first=0):
    if isinstance(types, AxisType):
        types = (types,) * len(shape)
    devices = jax.devices()[first : first + int(np.prod(shape))]
    return jax.make_mesh(shape, names, axis_types=types, devices=devices)


def collectives(fn, *args):
    return COLLECTIVE.findall(jax.jit(fn).lower(*args).compile().as_text() or "")


axis_type = pytest.mark.parametrize("types", [AUTO, EXPLICIT], ids=["auto", "explicit"])


def client_loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@fx.program
def mean_loss(
    w: fx.Server[Float[Array, " d"]], x: fx.Clients[Float[Array, "b d"]], weights: fx.Clients
) -> fx.Server[Float[Array, ""]]:
    return fx.reduce_mean(fx.client_map(client_loss, w, x, weights=weights), weights=weights)


def problem(clients):
    rng = np.random.default_rng(clients)
    x = rng.normal(size=(clients, 5, 3)).astype(np.float32)
    weights = (np.arange(clients) % 3 + (clients == 1)).astype(np.float32)
    return np.array([0.3, -0.2, 0.9], np.float32), x, weights


def by_hand(w, x, weights):
    """Value, gradient in w, in x and in the weights, in float64."""
    w, x, weights = (np.asarray(a, np.float64) for a in (w, x, weights))
    t = np.tanh(x @ w)
    losses, total = (t**2).mean(1), weights.sum()
    inner = 2 * t * (1 - t**2) / x.shape[1]
    share = weights / total
    value = (share * losses).sum()
    return (
        value,
        np.einsum("c,cb,cbd->d", share, inner, x),
        share[:, None, None] * inner[..., None] * w,
        np.where(weights == 0, 0.0, (losses - value) / total),
    )


def everything(w, x, weights):
    fn = lambda w, x, weights: mean_loss(w, fx.Clients(x), fx.Clients(weights))
    value, (gw, gx, gweights) = jax.value_and_grad(fn, argnums=(0, 1, 2))(w, x, weights)
    return value, gw, gx, gweights


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("clients", [1, 6, 7, 8, 9])
def test_cohorts_that_the_axis_does_and_does_not_divide(devices, clients):
    inputs = problem(clients)
    with jax.set_mesh(mesh_of((devices,))):
        found = jax.jit(everything)(*inputs)
    for f, e in zip(found, by_hand(*inputs), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)


MIXED = [
    pytest.param((AUTO, AUTO), id="auto"),
    pytest.param((EXPLICIT, EXPLICIT), id="explicit"),
    pytest.param((AUTO, EXPLICIT), id="clients-auto"),
    pytest.param((EXPLICIT, AUTO), id="clients-explicit"),
]


@pytest.mark.parametrize("types", MIXED)
@pytest.mark.parametrize("clients", [8, 6])
def test_axis_types_and_hessian_and_vmap(types, clients):
    w, x, weights = map(jnp.asarray, problem(clients))

    def second_order(w):
        loss = lambda w: mean_loss(w, fx.Clients(x), fx.Clients(weights))
        ws = jnp.stack([w, 2 * w])
        return jax.hessian(loss)(w), jax.vmap(jax.grad(loss))(ws)

    alone = jax.jit(second_order)(jnp.asarray(w))
    with jax.set_mesh(mesh_of((4, 2), ("clients", "model"), types)):
        on_mesh = jax.jit(second_order)(jnp.asarray(w))
    assert_same(on_mesh, alone, rtol=1e-4, atol=1e-6)


def declare(how):
    mesh = mesh_of()
    if how == "set_mesh":
        return jax.set_mesh(mesh), everything
    if how == "with mesh":
        return mesh, everything
    named = fx.program(mesh=mesh)(everything)
    return contextlib.nullcontext(), named


@pytest.mark.parametrize("how", ["set_mesh", "with mesh", "program(mesh=...)"])
@pytest.mark.parametrize("clients", [8, 6])
@pytest.mark.filterwarnings("ignore:.with mesh.*:DeprecationWarning")
def test_ways_of_declaring_a_mesh(how, clients):
    inputs = problem(clients)
    block, fn = declare(how)
    with block:
        found = jax.jit(fn)(*inputs)
        model_only = lambda *inputs: fn(*inputs)[:2]  # a client's value that leaves is gathered
        assert len(collectives(model_only, *inputs)) == 2
    for f, e in zip(found, by_hand(*inputs), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)


def test_eager_on_a_mesh():
    inputs = problem(6)
    with jax.set_mesh(mesh_of()):
        found = everything(*inputs)
    for f, e in zip(found, by_hand(*inputs), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_axis_may_stand_anywhere(position):
    names = ["data", "model"]
    names.insert(position, "clients")
    inputs = problem(6)
    with jax.set_mesh(mesh_of((2, 2, 2), tuple(names))):
        found = jax.jit(everything)(*inputs)
    for f, e in zip(found, by_hand(*inputs), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)


def test_a_mesh_without_the_axis_runs_replicated_and_help_says_so():
    inputs = problem(6)
    with jax.set_mesh(mesh_of((4,), ("model",))):
        assert collectives(everything, *inputs) == []
        found = jax.jit(everything)(*inputs)
    for f, e in zip(found, by_hand(*inputs), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)
    assert "runs replicated" in (fx.program.__doc__ or "")


def test_an_axis_that_cannot_be_used_is_named():
    w, x, weights = problem(8)
    mesh = mesh_of()
    inner = lambda x, weights: mean_loss(jnp.asarray(w), fx.Clients(x), fx.Clients(weights))
    mapped = jax.shard_map(inner, mesh=mesh, in_specs=P("clients"), out_specs=P(), check_vma=False)
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="'clients' cannot carry the cohort"):
        jax.jit(mapped)(x, weights)


@axis_type
@pytest.mark.parametrize("clients", [8, 6])
def test_all_that_a_client_may_hold(types, clients):
    """Keys, integers, booleans, bfloat16; extremes and sums; what is padded never shows."""
    keys = fx.Clients(jax.random.split(jax.random.key(0), clients))
    ints = fx.Clients(np.arange(clients, dtype=np.int32) - 9)
    halves = fx.Clients(jnp.arange(clients, dtype=jnp.bfloat16))

    def program(keys, ints, halves):
        drawn = fx.client_map(lambda key: jax.random.normal(key, (2,)), keys)
        squares = fx.client_map(lambda i: i * i, ints)
        odd = fx.client_map(lambda i: i % 2 == 1, ints)
        return (
            drawn,
            (fx.reduce_max(ints), fx.reduce_min(ints), fx.reduce_sum(squares)),
            (fx.reduce_max(odd), fx.reduce_min(odd), fx.reduce_mean(odd)),
            (fx.reduce_mean(halves), fx.reduce_max(halves), fx.cohort_size(ints)),
        )

    alone = program(keys, ints, halves)
    with jax.set_mesh(mesh_of(types=types)):
        on_mesh = jax.jit(program)(keys, ints, halves)
    assert on_mesh[0].size == clients
    assert len(list(on_mesh[0])) == clients
    assert_same(on_mesh, alone, rtol=1e-6, atol=1e-6)
    numbers = np.arange(clients) - 9
    assert [int(v) for v in on_mesh[1]] == [numbers.max(), numbers.min(), (numbers**2).sum()]


@pytest.mark.parametrize("clients", [8, 6])
def test_nan_of_a_weightless_client_stays_out(clients):
    w, x, weights = problem(clients)
    x[0] = np.nan  # its weight is 0
    clean = problem(clients)
    with jax.set_mesh(mesh_of()):
        found = jax.jit(everything)(w, x, weights)
    for f, e in zip(found, by_hand(*clean), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)


def fedavg(w, x):
    def local(w, x):
        optimizer = optax.sgd(0.1, momentum=0.9)

        def step(carry, batch):
            w, state = carry
            updates, state = optimizer.update(jax.grad(client_loss)(w, batch[None]), state, w)
            return (optax.apply_updates(w, updates), state), None

        return jax.lax.scan(step, (w, optimizer.init(w)), x)[0][0] - w

    update = fx.reduce_mean(fx.client_map(local, w, fx.Clients(x)))
    return w + update


@pytest.mark.parametrize("clients", [8, 6])
@axis_type
def test_a_fedavg_round_is_one_collective_and_its_gradient_two(clients, types):
    w, x, _ = problem(clients)
    after = lambda w, x: fx.reduce_mean(fx.client_map(client_loss, fedavg(w, x), fx.Clients(x)))
    alone = jax.jit(jax.grad(after))(w, x)
    with jax.set_mesh(mesh_of(types=types)):
        assert collectives(fedavg, w, x) == ["all-reduce"]
        round_gradient = lambda w, x: jax.vjp(lambda w: fedavg(w, x), w)[1](w)[0]
        assert set(collectives(round_gradient, w, x)) == {"all-reduce"}
        assert len(collectives(round_gradient, w, x)) <= 2
        np.testing.assert_allclose(jax.jit(jax.grad(after))(w, x), alone, rtol=1e-4, atol=1e-6)


def test_a_whole_tree_is_reduced_by_one_collective():
    tree = {f"leaf {i}": np.ones((8, i + 1), np.float32) for i in range(6)}
    with jax.set_mesh(mesh_of()):
        assert collectives(lambda t: fx.reduce_sum(fx.Clients(t)), tree) == ["all-reduce"]
        weighted = lambda t: fx.reduce_mean(fx.Clients(t), weights=fx.Clients(t["leaf 0"][:, 0]))
        assert collectives(weighted, tree) == ["all-reduce"]


@pytest.mark.parametrize("inner", ["constraint", "shard_map"])
@pytest.mark.parametrize("clients", [8, 6])
def test_a_model_axis_inside_the_client_function(inner, clients):
    """A client's hidden layer is spread over "model", by constraint or by hand."""
    mesh = mesh_of((4, 2), ("clients", "model"))
    _, x, _ = problem(clients)
    rng = np.random.default_rng(5)
    up, down = (rng.normal(size=s).astype(np.float32) for s in ((3, 4), (4,)))

    def plain(up, down, x):
        return jnp.mean((jnp.tanh(x @ up) @ down) ** 2)

    def spread(up, down, x):
        if inner == "constraint":
            hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ up), P(None, "model"))
            return jnp.mean((hidden @ down) ** 2)
        half = jax.shard_map(
            lambda x, up, down: jax.lax.psum(jnp.tanh(x @ up) @ down, "model"),
            in_specs=(P(), P(None, "model"), P("model")),
            out_specs=P(),
            axis_names={"model"},
        )
        return jnp.mean(half(x, up, down) ** 2)

    def loss_with(fn):
        return lambda up, down: fx.reduce_mean(fx.client_map(fn, up, down, fx.Clients(x)))

    alone = jax.jit(jax.value_and_grad(loss_with(plain), argnums=(0, 1)))(up, down)
    with jax.set_mesh(mesh):
        on_mesh = jax.jit(jax.value_and_grad(loss_with(spread), argnums=(0, 1)))(up, down)
    assert_same(on_mesh, alone, rtol=1e-4, atol=1e-6)


def sharded_round(types):
    """A round whose state is spread over "model": its function, its arguments, and the mesh."""
    mesh = mesh_of((4, 2), ("clients", "model"), types)
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 6)).astype(np.float32)
    x = rng.normal(size=(8, 5, 4)).astype(np.float32)

    def one_round(w, x):
        local = lambda w, x: -0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w + fx.reduce_mean(fx.client_map(local, w, fx.Clients(x)))

    state = jax.device_put(w, NamedSharding(mesh, P(None, "model")))
    data = jax.device_put(x, NamedSharding(mesh, P("clients")))
    return one_round, (w, x), (state, data), mesh


@pytest.mark.parametrize("types", MIXED)
def test_server_state_keeps_its_sharding(types):
    one_round, arrays, (state, data), mesh = sharded_round(types)
    alone = jax.jit(one_round)(*arrays)
    with jax.set_mesh(mesh):
        after = jax.jit(one_round)(state, data)
    assert after.sharding.is_equivalent_to(state.sharding, 2)
    np.testing.assert_allclose(after, alone, rtol=1e-5, atol=1e-6)


OLD = pytest.mark.xfail(
    jax.__version_info__ < (0, 11), reason="JAX 0.10 lets XLA gather an explicit model axis"
)
GATHERS = pytest.mark.xfail(reason="XLA gathers an explicit model axis beside an automatic one")


@pytest.mark.parametrize(
    "types",
    [
        pytest.param((AUTO, AUTO), id="auto"),
        pytest.param((EXPLICIT, EXPLICIT), id="explicit", marks=OLD),
        pytest.param((AUTO, EXPLICIT), id="clients-auto", marks=GATHERS),
        pytest.param((EXPLICIT, AUTO), id="clients-explicit"),
    ],
)
def test_the_state_is_not_gathered_on_the_way(types):
    one_round, _, placed, mesh = sharded_round(types)
    with jax.set_mesh(mesh):
        assert "all-gather" not in collectives(one_round, *placed)


@axis_type
@pytest.mark.parametrize("spec", [P(), P("clients"), P(None, "model"), P("model")])
def test_inputs_may_be_sharded_already(types, spec):
    w, x, weights = problem(8)
    x = np.concatenate([x, x[:, :1]], axis=1)  # six rows, so that "model" divides them
    mesh = mesh_of((4, 2), ("clients", "model"), types)
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, NamedSharding(mesh, spec))
        found = jax.jit(everything)(w, placed, weights)
    for f, e in zip(found, by_hand(w, x, weights), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)


def test_a_program_inside_a_client_function():
    """A client that is itself a cohort: inside, the mesh axis is spent and all runs locally."""
    pods = np.arange(24, dtype=np.float32).reshape(8, 3)
    inner = lambda values: fx.reduce_max(fx.Clients(values))
    with jax.set_mesh(mesh_of()):
        result = jax.jit(lambda p: fx.reduce_mean(fx.client_map(inner, fx.Clients(p))))(pods)
    np.testing.assert_allclose(result, pods.max(1).mean())


def test_loops_that_start_from_constants_and_closures():
    w, x, _ = problem(6)

    def program(w, x):
        scale = jnp.sum(w) * 0 + 2.0  # a traced server value that the client closes over

        def local(x):
            body = lambda carry: (carry[0] + 1, carry[1] + scale * jnp.sum(x))
            start = (jnp.zeros((), jnp.int32), jnp.zeros(()))
            return jax.lax.while_loop(lambda carry: carry[0] < 3, body, start)[1]

        return fx.reduce_sum(fx.client_map(local, fx.Clients(x)))

    with jax.set_mesh(mesh_of()):
        np.testing.assert_allclose(jax.jit(program)(w, x), 6 * x.sum(), rtol=1e-5)
