"""stream: memory by the chunk and not by the cohort, control flow kept, cohorts on the host."""

import contextlib
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federated.backends.meshes import WAYS, make_mesh, on_mesh
from jaxtyping import Array, Float

import fedeqx as fx

Vector = Float[Array, "features"]


def local_loss(w, x):
    return jnp.sum(jnp.sin(x * w) ** 2)


@fx.program
def mean_loss(w: fx.Server[Vector], x: fx.Clients[Vector]) -> fx.Server[Float[Array, ""]]:
    return fx.reduce_mean(fx.client_map(local_loss, w, x))


def cohort(clients, features=3):
    rng = np.random.default_rng(clients)
    return fx.Clients(jnp.asarray(rng.normal(size=(clients, features)), jnp.float32))


def np_mean_loss(w, x):
    losses = [np.sum(np.sin(row * w) ** 2) for row in np.asarray(x.value, np.float64)]
    slopes = [np.sin(2 * row * w) * row for row in np.asarray(x.value, np.float64)]
    return np.mean(losses), np.mean(slopes, axis=0)


W = jnp.array([0.5, -1.0, 2.0])


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 7, 8, None])
@pytest.mark.parametrize("clients", [1, 2, 7])
def test_any_chunk_of_any_cohort(clients, at_once):
    x = cohort(clients)
    loss, slope = np_mean_loss(np.asarray(W, np.float64), x)
    inside = fx.stream(jax.value_and_grad(mean_loss), at_once=at_once)(W, x)
    around = jax.value_and_grad(fx.stream(mean_loss, at_once=at_once))(W, x)
    for found in (inside, around):
        np.testing.assert_allclose(found[0], loss, rtol=1e-5)
        np.testing.assert_allclose(found[1], slope, rtol=1e-4, atol=1e-6)


def test_every_transformation():
    x = cohort(5)
    streamed = fx.stream(mean_loss, at_once=2)
    for transform in (
        jax.jacfwd,
        jax.jacrev,
        jax.hessian,
        lambda fn: lambda w, x: jax.vmap(jax.grad(fn), (0, None))(jnp.stack([w, 2 * w]), x),
        lambda fn: lambda w, x: jax.jvp(lambda w: fn(w, x), (w,), (w,)),
        lambda fn: lambda w, x: jax.linearize(lambda w: fn(w, x), w)[1](w),
        lambda fn: lambda w, x: jax.grad(lambda v: jax.checkpoint(fn)(v, x))(w),
    ):
        found = jax.jit(transform(streamed))(W, x)
        expected = transform(mean_loss)(W, x)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_closed_over_values_are_differentiated():
    x = cohort(5)
    fn = lambda w: fx.stream(lambda x: mean_loss(2 * w, x), at_once=2)(x)
    expected = jax.grad(lambda w: mean_loss(2 * w, x))(W)
    np.testing.assert_allclose(jax.jit(jax.grad(fn))(W), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(fn)(W), expected, rtol=1e-5)


def temporaries(fn, *args):
    memory = jax.jit(fn).lower(*args).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize("way", ["inside", "around", "of a hypergradient"])
def test_memory_does_not_depend_on_the_cohort(way):
    """Of clients that each work on 1 MiB, and of which 64 would need 64 MiB and more."""

    def work(w, x):
        start = jnp.outer(jnp.linspace(-1, 1, 512), jnp.tile(x[:3] * w, 16))
        matrix = jnp.sin(jnp.arange(48.0 * 48)).reshape(48, 48)
        layer = lambda hidden, _: (jnp.tanh(hidden @ matrix), None)
        return jnp.mean(jax.lax.scan(layer, start, None, length=10)[0] ** 2)

    loss = lambda w, x: fx.reduce_mean(fx.client_map(work, w, x))

    def after_a_round(rate, w, x):
        update = fx.reduce_mean(fx.client_map(jax.grad(work), w, x))
        return loss(w - rate * update, x)

    gradient = {
        "inside": fx.stream(jax.grad(loss), at_once=2),
        "around": jax.grad(fx.stream(loss, at_once=2)),
        "of a hypergradient": lambda w, x: fx.stream(
            jax.grad(after_a_round, argnums=(0, 1)), at_once=2
        )(jnp.float32(0.1), w, x),
    }[way]
    small, large = (temporaries(gradient, W, cohort(clients, 4)) for clients in (4, 64))
    assert large < 1.2 * small
    assert temporaries(jax.grad(loss), W, cohort(64, 4)) > 4 * large  # what it is without


def test_one_at_a_time_is_not_mapped():
    """A client's `cond` stays one, where `vmap` would run both branches."""

    def branching(x):
        return jax.lax.cond(x[0] > 0, jnp.sum, lambda x: jnp.sum(jnp.exp(x)), x)

    fn = lambda x: fx.reduce_sum(fx.client_map(branching, x))

    def conds(at_once):
        return str(jax.make_jaxpr(fx.stream(fn, at_once=at_once))(cohort(6))).count(" cond[")

    assert conds(1) == 1
    assert conds(2) == 0
    np.testing.assert_allclose(fx.stream(fn, at_once=1)(cohort(6)), fn(cohort(6)), rtol=1e-6)


def test_sums_accumulate_in_float32():
    """4,096 ones in bfloat16, one at a time: added up in bfloat16 they would stop at 256."""
    ones = fx.Clients(jnp.ones((4096,), jnp.bfloat16))
    total = fx.stream(fx.reduce_sum, at_once=1)(ones)
    assert total.dtype == jnp.bfloat16
    assert float(total) == 4096


def test_a_weightless_client_contributes_nothing():
    x = fx.Clients(jnp.array([[1.0, 2.0, 3.0], [jnp.nan, jnp.inf, 0.0], [3.0, 1.0, 2.0]]))
    weights = fx.Clients(jnp.array([1.0, 0.0, 2.0]))

    def loss(w, x, weights):
        return fx.reduce_mean(fx.client_map(local_loss, w, x, weights=weights), weights=weights)

    kept = fx.Clients(x.value[np.array([0, 2])]), fx.Clients(jnp.array([1.0, 2.0]))
    expected = jax.value_and_grad(loss)(W, *kept)
    for at_once in (1, 2):
        found = fx.stream(jax.value_and_grad(loss), at_once=at_once)(W, x, weights)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


def test_results_at_the_clients_keep_their_order():
    x = cohort(7)
    streamed = fx.stream(lambda w, x: fx.client_map(jnp.multiply, w, x), at_once=3)
    np.testing.assert_allclose(streamed(W, x).value, np.asarray(W) * np.asarray(x.value), rtol=1e-6)


def test_clients_that_share_a_maximum_share_its_derivative():
    x = fx.Clients(jnp.array([2.0, 5.0, 5.0, 1.0, 5.0]))
    fn = lambda x: fx.reduce_max(fx.client_map(lambda x: 2 * x, x))
    for at_once in (1, 2, 5):
        gradient = jax.grad(fx.stream(fn, at_once=at_once))(x).value
        np.testing.assert_allclose(gradient, np.array([0, 2, 2, 0, 2]) / 3, rtol=1e-6)


@pytest.mark.parametrize("axes", ["clients=4", "clients=4!", "clients=2 model=2", "clients=8"])
@pytest.mark.parametrize("clients", [3, 8, 9])
def test_on_a_mesh_each_device_streams_its_own(axes, clients):
    x = cohort(clients)
    loss, slope = np_mean_loss(np.asarray(W, np.float64), x)
    for fn in (
        fx.stream(jax.value_and_grad(mean_loss), at_once=2),
        jax.value_and_grad(fx.stream(mean_loss, at_once=1)),
    ):
        with jax.set_mesh(make_mesh(axes)):
            found = jax.jit(fn)(W, x)
        np.testing.assert_allclose(found[0], loss, rtol=1e-5)
        np.testing.assert_allclose(found[1], slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_one_collective_ends_a_round(way):
    transform = lambda fn: fx.stream(jax.value_and_grad(fn), at_once=1)
    fn = on_mesh(mean_loss, make_mesh("clients=4"), way, lambda fn: jax.jit(transform(fn)).lower)
    text = fn(W, cohort(8)).compile().as_text()
    collectives = [
        name
        for name in ("all-reduce(", "all-gather(", "all-to-all(", "collective-permute(")
        for _ in range(text.count(f" {name}"))
    ]
    assert collectives == ["all-reduce("]


def test_a_model_axis_inside_of_a_streamed_client():
    mesh = make_mesh("clients=2 model=2")
    spec = jax.sharding.PartitionSpec("model")

    def work(w, x):
        return jnp.sum(jax.lax.with_sharding_constraint(x * w, spec) ** 2)

    fn = lambda w, x: fx.reduce_mean(fx.client_map(work, w, x))
    x, w = cohort(5, 4), jnp.arange(4.0)
    with jax.set_mesh(mesh):
        found = jax.jit(fx.stream(jax.value_and_grad(fn), at_once=2))(w, x)
    value = np.asarray(x.value, np.float64)
    np.testing.assert_allclose(
        found[0], np.mean(np.sum((value * np.asarray(w)) ** 2, 1)), rtol=1e-5
    )
    np.testing.assert_allclose(found[1], np.mean(2 * value**2 * np.asarray(w), 0), rtol=1e-5)


def test_a_stream_within_a_plan_is_the_program():
    x = cohort(5)
    plan = fx.plan(jax.value_and_grad(fx.stream(mean_loss, at_once=2)), W, x)
    assert len(plan.rounds) == 1
    inner = fx.stream(jax.grad(fx.stream(mean_loss, at_once=1)), at_once=2)
    np.testing.assert_allclose(inner(W, x), jax.grad(mean_loss)(W, x), rtol=1e-5)


def test_an_eager_stream_compiles_once():
    count = []

    def counted(w, x):
        count.append(1)
        return local_loss(w, x)

    streamed = fx.stream(lambda w, x: fx.reduce_mean(fx.client_map(counted, w, x)), at_once=2)
    streamed(W, cohort(5))
    before = len(count)
    streamed(2 * W, cohort(5))
    assert len(count) == before


# On the host.


def chunks_of(x, sizes):
    edges = np.cumsum([0, *sizes])
    return [fx.Clients(x.value[a:b]) for a, b in itertools.pairwise(edges)]


def loss_after_a_round(w, x):
    update = fx.reduce_mean(fx.client_map(jax.grad(local_loss), w, x))
    return mean_loss(w - 0.1 * update, x)


@pytest.mark.parametrize("mesh", [None, "clients=2"])
@pytest.mark.parametrize("sizes", [(7,), (3, 3, 1), (1, 2, 4)])
def test_a_cohort_on_the_host_is_the_cohort(sizes, mesh):
    x = cohort(7)
    host: Any = fx.HostClients(chunks_of(x, sizes), size=7)
    expected = jax.value_and_grad(loss_after_a_round)(W, x)  # three rounds through the chunks
    with jax.set_mesh(make_mesh(mesh)) if mesh else contextlib.nullcontext():
        found = fx.stream(jax.value_and_grad(loss_after_a_round), at_once=2)(W, host)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)


def test_results_of_clients_on_the_host_are_in_their_order():
    x = cohort(7)
    host = fx.HostClients(chunks_of(x, (3, 3, 1)), size=7)
    fn = fx.stream(lambda w, x: fx.client_map(jnp.multiply, w, x), at_once=2)
    np.testing.assert_allclose(fn(W, host).value, np.asarray(W) * np.asarray(x.value), rtol=1e-6)


def test_a_grain_data_set_gives_the_chunks():
    import grain

    x = cohort(7)
    source = grain.MapDataset.source(list(np.asarray(x.value))).batch(3).map(fx.Clients)
    host: Any = fx.HostClients(source.to_iter_dataset(), size=7)
    loss, slope = np_mean_loss(np.asarray(W, np.float64), x)
    found = fx.stream(jax.value_and_grad(mean_loss), at_once=2)(W, host)
    np.testing.assert_allclose(found[0], loss, rtol=1e-5)
    np.testing.assert_allclose(found[1], slope, rtol=1e-4)


def test_wrong_cohorts_on_the_host_are_refused():
    chunks = chunks_of(cohort(7), (3, 4))
    streamed: Any = fx.stream(mean_loss)
    with pytest.raises(ValueError, match=r"size=8\): its chunks have 7 clients"):
        streamed(W, fx.HostClients(chunks, size=8))
    with pytest.raises(TypeError, match=r"iterated more than once.*list_iterator"):
        fx.HostClients(iter(chunks), size=7)

    class Arrays:
        def __iter__(self):
            yield np.zeros((3, 3))

    with pytest.raises(TypeError, match="chunk 0 is a ndarray"):
        streamed(W, fx.HostClients(Arrays(), size=3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no chunks"):
        streamed(W, fx.HostClients([], size=3))
    with pytest.raises(ValueError, match="size=0"):
        fx.HostClients(chunks, size=0)
    host = fx.HostClients(chunks, size=7)
    with pytest.raises(ValueError, match="cannot be traced"):
        jax.grad(streamed)(W, host)
    with pytest.raises(ValueError, match="one HostClients and no Clients"):
        fx.stream(lambda a, b: fx.reduce_sum(a))(host, chunks[0])
    ragged = [chunks[0], fx.Clients(jnp.zeros((4, 2)))]
    with pytest.raises(fx.PlanError, match=r"planned as float32\[3\] at each client"):
        streamed(W, fx.HostClients(ragged, size=7))


@pytest.mark.parametrize("at_once", [0, -1, 2.0, True, "all"])
def test_at_once_is_a_number_of_clients(at_once):
    with pytest.raises((ValueError, TypeError), match="at_once"):
        fx.stream(mean_loss, at_once=at_once)
