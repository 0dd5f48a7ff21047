"""JAX's transformations, control flow and optimizers on a mesh: as without one, and as NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federated.backends.meshes import (
    ALL,
    assert_close,
    make_mesh,
    np_weighted_loss,
    on_mesh,
    regression,
    to_jax,
    weighted_loss,
)

import fedeqx as fx

pytestmark = pytest.mark.slow

MESHES = ("clients=4", "clients=2! model=2")
each_mesh = pytest.mark.parametrize("axes", MESHES)
CLIENTS = 6


@pytest.fixture(params=MESHES)
def mesh(request):
    with jax.set_mesh(make_mesh(request.param)) as mesh:
        yield mesh


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(CLIENTS, 3)).astype(np.float32)


def sine_loss(w, x):
    """sum_j sin(w_j x_ij), mean over clients; every derivative is known by hand."""
    return fx.reduce_mean(fx.client_map(lambda w, x: jnp.sum(jnp.sin(w * x)), w, fx.Clients(x)))


W = np.array([0.3, -0.7, 1.1], np.float32)


def test_forward_and_reverse_first_and_second_derivatives(mesh, data):
    tangent = np.array([1.0, 2.0, -1.0], np.float32)
    slope = (data * np.cos(W * data)).mean(0)
    curvature = np.diag((-(data**2) * np.sin(W * data)).mean(0))

    @jax.jit
    def derivatives(w, x):
        value, pushed = jax.jvp(lambda w: sine_loss(w, x), (w,), (jnp.asarray(tangent),))
        _, linear = jax.linearize(lambda w: sine_loss(w, x), w)
        return {
            "value": value,
            "jvp": pushed,
            "linearize": linear(jnp.asarray(tangent)),
            "jacfwd": jax.jacfwd(sine_loss)(w, x),
            "jacrev": jax.jacrev(sine_loss)(w, x),
            "hessian": jax.hessian(sine_loss)(w, x),
            "reverse twice": jax.jacrev(jax.jacrev(sine_loss))(w, x),
        }

    expected = {
        "value": np.sin(W * data).sum(1).mean(),
        "jvp": slope @ tangent,
        "linearize": slope @ tangent,
        "jacfwd": slope,
        "jacrev": slope,
        "hessian": curvature,
        "reverse twice": curvature,
    }
    assert_close(derivatives(W, data), expected)


def test_hessian_with_respect_to_client_values(mesh, data):
    """Mixed second derivatives too: the server's value and one client's."""
    found = jax.jit(jax.hessian(sine_loss, argnums=(0, 1)))(W, data)
    mixed = (np.cos(W * data) - W * data * np.sin(W * data)) / CLIENTS
    own = -(W**2) * np.sin(W * data) / CLIENTS
    expected_mixed, expected_own = np.zeros((3, CLIENTS, 3)), np.zeros((CLIENTS, 3, CLIENTS, 3))
    for i in range(CLIENTS):
        for j in range(3):
            expected_mixed[j, i, j] = mixed[i, j]
            expected_own[i, j, i, j] = own[i, j]
    assert_close(found[0][1], expected_mixed)
    assert_close(found[1][0], expected_mixed.transpose(1, 2, 0))
    assert_close(found[1][1], expected_own)


def test_eager_derivatives(mesh, data):
    value = jax.vmap(jax.grad(sine_loss), (0, None))(jnp.stack([W, 2 * W]), jnp.asarray(data))
    expected = [(data * np.cos(w * data)).mean(0) for w in (W, 2 * W)]
    assert_close(value, np.stack(expected))


@pytest.mark.parametrize("where", ["server", "clients", "both"])
def test_vmap(mesh, data, where):
    """Of values and gradients, over an axis of the server's value, of the clients', of both."""
    ws, xs = np.stack([W, W + 1]), np.stack([data, data[::-1] * 2], axis=1)
    axes = {"server": (0, None), "clients": (None, 1), "both": (0, 1)}[where]
    w, x = (ws if axes[0] == 0 else W), (xs if axes[1] == 1 else data)
    found = jax.jit(jax.vmap(jax.value_and_grad(sine_loss, argnums=(0, 1)), axes))(w, x)
    for i in range(2):
        one_w = ws[i] if axes[0] == 0 else W
        one_x = xs[:, i] if axes[1] == 1 else data
        expected = (
            np.sin(one_w * one_x).sum(1).mean(),
            (
                (one_x * np.cos(one_w * one_x)).mean(0),
                one_w * np.cos(one_w * one_x) / CLIENTS,
            ),
        )
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], found), expected)


def test_vmap_of_every_verb(mesh, data):
    xs = jnp.stack([jnp.asarray(data), jnp.asarray(data) * -3], axis=1)

    def program(x, w):
        x = fx.Clients(x)
        sent = fx.broadcast(jnp.sum(w), like=x)
        moved = fx.client_map(lambda a, b: a + b, x, sent)
        return fx.reduce_max(moved), fx.reduce_min(moved), fx.reduce_sum(moved), moved

    found = jax.jit(jax.vmap(program, (1, None)))(xs, jnp.asarray(W))
    for i in range(2):
        moved = np.asarray(xs[:, i]) + W.sum()
        expected = moved.max(0), moved.min(0), moved.sum(0), moved
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], found), expected, rtol=1e-4)


def test_checkpoint_and_custom_derivatives(mesh, data):
    """Inside the client function; the custom rule doubles the gradient, so that it shows."""

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2 * ct * jnp.cos(x),))

    def program(w, x):
        one = jax.checkpoint(lambda w, x: jnp.sum(sine(w * x)))
        return fx.reduce_mean(fx.client_map(one, w, fx.Clients(x)))

    whole = jax.checkpoint(program)
    expected = 2 * (data * np.cos(W * data)).mean(0)
    found = jax.jit(lambda w, x: (jax.grad(program)(w, x), jax.grad(whole)(w, x)))(W, data)
    assert_close(found, (expected, expected))


def test_loops_in_a_client_that_start_from_constants(mesh, data):
    """While, fori and scan, with carries that at first do not vary over the clients."""

    def one(w, x):
        def halve(carry):
            count, value = carry
            return count + 1, value / 2

        count, rest = jax.lax.while_loop(
            lambda carry: carry[1] > 0.5, halve, (0, jnp.abs(x[0]) * 0 + 8.0)
        )
        total = jax.lax.fori_loop(0, 3, lambda i, acc: acc + w[i] * x[i], jnp.zeros(()))
        last, partial = jax.lax.scan(lambda acc, v: (acc + v[0] * v[1], acc), jnp.zeros(()), (w, x))
        branch = jax.lax.cond(total > 0, lambda: jnp.ones(()), lambda: jnp.zeros(()))
        return total + last, partial, count, rest, branch

    @jax.jit
    def program(w, x):
        mapped = fx.client_map(one, w, fx.Clients(x))
        return mapped, jax.grad(
            lambda w: fx.reduce_sum(
                fx.client_map(
                    lambda w, x: jax.lax.scan(
                        lambda acc, v: (acc + v[0] * v[1], None), jnp.zeros(()), (w, x)
                    )[0],
                    w,
                    fx.Clients(x),
                )
            )
        )(w)

    mapped, gradient = program(W, data)
    dots = data @ W
    partial = np.cumsum(data * W, axis=1) - data * W
    steps, rest = np.full(CLIENTS, 4), np.full(CLIENTS, 0.5)
    assert_close(mapped.value, (2 * dots, partial, steps, rest, dots > 0))
    assert_close(gradient, data.sum(0))


@pytest.mark.parametrize("trips", [[1, 5, 2, 0, 3, 4]])
def test_while_loops_of_different_lengths(mesh, trips):
    """Each client leaves its loop at its own time."""
    double = lambda n: jax.lax.fori_loop(0, n, lambda _, v: v * 2, jnp.float32(1))
    found = jax.jit(lambda n: fx.client_map(double, fx.Clients(n)))(np.array(trips, np.int32))
    assert_close(found.value, 2.0 ** np.array(trips))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_optimizers_in_a_client(mesh, data, name):
    """Three local steps on 0.5 |w - x|^2, with the optimizer's state made in the client."""
    optimizer = {
        "sgd": optax.sgd(0.1),
        "momentum": optax.sgd(0.1, momentum=0.9),
        "adam": optax.adam(0.1, b1=0.9, b2=0.99),
    }[name]

    def work(w, x):
        def step(carry, _):
            w, state = carry
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(w - x, state, w)
            return (w + updates, state), None

        return jax.lax.scan(step, (w, optimizer.init(w)), None, length=3)[0][0]

    found = jax.jit(lambda w, x: fx.reduce_mean(fx.client_map(work, w, fx.Clients(x))))(W, data)
    w, first, second = np.tile(W.astype(np.float64), (CLIENTS, 1)), 0.0, 0.0
    for t in range(1, 4):
        gradient = w - data
        if name == "adam":
            first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
            w -= 0.1 * first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.99**t)) + 1e-8)
        else:
            first = gradient + (0.9 if name == "momentum" else 0.0) * first
            w -= 0.1 * first
    assert_close(found, w.mean(0))


def test_closures_over_traced_and_constant_values(mesh, data):
    """Of an outer jit, of grad, of vmap, of a scan; NumPy and JAX constants; an outer `Clients`."""
    constant, array = np.float32(2.0), jnp.arange(3.0)

    def program(w, x):
        squared = w * w  # traced by grad and vmap
        one = lambda x: jnp.sum(squared * x) * constant + jnp.sum(array)
        return fx.reduce_mean(fx.client_map(one, fx.Clients(x)))

    def loop(w, x):
        return jax.lax.scan(lambda total, w: (total + program(w, x), None), jnp.zeros(()), w)[0]

    ws = jnp.stack([W, W + 1])
    found = jax.jit(
        lambda ws, x: (
            jax.vmap(jax.value_and_grad(program), (0, None))(ws, x),
            jax.value_and_grad(loop)(ws, x),
        )
    )(ws, data)
    values = np.array([(2 * (w * w * data).sum(1) + 3).mean() for w in np.asarray(ws)])
    gradients = np.stack([4 * w * data.mean(0) for w in np.asarray(ws)])
    assert_close(found, ((values, gradients), (values.sum(), gradients)))


def test_an_eager_closure_over_values_on_the_mesh(mesh, data):
    """Arrays that are no tracers, computed on the mesh before, in the client function's closure."""
    sharded = jax.jit(lambda w: w * 1)(jnp.asarray(W))
    total = fx.reduce_sum(fx.Clients(data))
    one = lambda x: jnp.sum(sharded * x + total)
    expected = (W * data + data.sum(0)).sum(1)
    assert_close(fx.client_map(one, fx.Clients(data)).value, expected, rtol=1e-4)
    found = jax.jit(lambda x: fx.client_map(one, x))(fx.Clients(data))
    assert_close(found.value, expected, rtol=1e-4)


def test_scan_over_rounds(mesh, data):
    """Each a program; the model is carried. Its gradient is that of NumPy's loop."""

    def one_round(w, _):
        update = fx.reduce_mean(fx.client_map(lambda w, x: 0.5 * (x - w), w, fx.Clients(data)))
        return w + update, fx.reduce_max(fx.Clients(data))

    run = lambda w: jax.lax.scan(one_round, w, None, length=3)
    w, tops = jax.jit(run)(jnp.asarray(W))
    assert_close(w, W / 8 + data.mean(0) * 7 / 8)
    assert_close(tops, np.tile(data.max(0), (3, 1)))
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(run(w)[0] ** 2)))(jnp.asarray(W))
    assert_close(gradient, 2 * (W / 8 + data.mean(0) * 7 / 8) / 8)


def test_hypergradient_through_two_rounds(mesh, data):
    """Of the loss after two rounds with respect to the client learning rate."""

    def after(rate, w, x):
        for _ in range(2):
            step = lambda w, x, rate: rate * (x - w)
            w = w + fx.reduce_mean(fx.client_map(step, w, fx.Clients(x), rate))
        fit = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)
        return fx.reduce_mean(fx.client_map(fit, w, fx.Clients(x)))

    rate, mean = 0.3, data.mean(0).astype(np.float64)
    distance = W - mean  # after two rounds: (1 - rate)^2 of it
    expected = np.sum(distance**2) * (1 - rate) ** 2 * -2 * (1 - rate)
    assert_close(jax.jit(jax.grad(after))(jnp.float32(rate), W, data), expected)


@each_mesh
def test_gradients_are_those_without_a_mesh(axes):
    """Dtypes and weak types too, and the structure of every argument's gradient."""
    arguments = to_jax(regression(CLIENTS))
    gradient = jax.grad(weighted_loss, ALL)
    alone = jax.jit(gradient)(*arguments)
    found = on_mesh(weighted_loss, make_mesh(axes), transform=lambda _: jax.jit(gradient))(
        *arguments
    )
    describe = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
    assert describe(found) == describe(alone)
    assert_close(found, alone)
    assert_close(found, np_weighted_loss(*regression(CLIENTS))[1])
