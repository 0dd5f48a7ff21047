"""Cohorts that the mesh axis does not divide: the padding is out of sight, in every way to look."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federated.backends.meshes import (
    assert_close,
    jit_value_and_gradients,
    make_mesh,
    np_weighted_loss,
    on_mesh,
    regression,
    to_jax,
    weighted_loss,
)

import fedeqx as fx

AUTO, EXPLICIT = "clients=4", "clients=4!"
each_type = pytest.mark.parametrize("axes", [AUTO, EXPLICIT], ids=["auto", "explicit"])
each_mode = pytest.mark.parametrize("mode", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
uneven = pytest.mark.parametrize("clients", [6, 9])
each_run = pytest.mark.parametrize(
    ("mode", "clients"), [(lambda fn: fn, 7), (jax.jit, 6), (jax.jit, 9)]
)


@pytest.fixture(params=[AUTO, EXPLICIT], ids=["auto", "explicit"])
def mesh(request):
    with jax.set_mesh(make_mesh(request.param)) as mesh:
        yield mesh


def numbers(clients: int, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, clients])
    return rng.normal(size=(clients, *shape)).astype(np.float32)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("clients", [1, 6, 7, 8, 9])
def test_value_and_gradients(devices, clients):
    """With respect to server values, client values and weights, on automatic axes."""
    arguments = regression(clients)
    run = on_mesh(weighted_loss, make_mesh(f"clients={devices}"), transform=jit_value_and_gradients)
    assert_close(run(*arguments), np_weighted_loss(*arguments))


@pytest.mark.parametrize(("devices", "clients"), [(1, 7), (2, 7), (4, 1), (4, 7), (4, 8), (8, 9)])
def test_value_and_gradients_on_explicit_axes(devices, clients):
    arguments = regression(clients)
    mesh = make_mesh(f"clients={devices}!")
    run = on_mesh(weighted_loss, mesh, transform=jit_value_and_gradients)
    assert_close(run(*arguments), np_weighted_loss(*arguments))


@each_mode
@pytest.mark.parametrize("clients", [1, 7])
def test_what_a_program_sees_and_returns(mesh, mode, clients):
    """Size, shapes, single clients and whole arrays, of what each verb returns."""
    x = numbers(clients, 3)
    seen = []

    def program(scale, x):
        sent = fx.broadcast(scale, like=x)
        mapped = fx.client_map(lambda s, x: s * x, sent, x)
        for value in (x, sent, mapped):
            seen.append((value.size, value.value.shape[0], len(list(value))))
        each = list(mapped)
        return sent, mapped, each[-1], jnp.stack(each), jnp.sort(mapped.value, axis=0)

    sent, mapped, last, stacked, ranked = mode(program)(jnp.float32(2.0), fx.Clients(x))
    assert seen == [(clients, clients, clients)] * 3
    assert isinstance(sent, fx.Clients)
    assert isinstance(mapped, fx.Clients)
    assert_close(sent.value, np.full(clients, 2.0))
    assert_close(mapped.value, 2 * x)
    assert_close(last, 2 * x[-1])
    assert_close(stacked, 2 * x)
    assert_close(ranked, np.sort(2 * x, axis=0))


@each_run
def test_work_on_the_stacked_array_between_operations(mesh, mode, clients):
    """A program may take `.value`, do what NumPy would, and wrap the result again."""
    x = numbers(clients, 3)

    def program(x):
        mapped = fx.client_map(jnp.exp, x).value
        shifted = fx.Clients(mapped[::-1] - mapped.mean())
        later = fx.client_map(lambda a, b: a * b, shifted, x)
        return fx.reduce_sum(later), fx.reduce_max(shifted)

    e = np.exp(x.astype(np.float64))
    shifted = e[::-1] - e.mean()
    expected = (shifted * x).sum(0), shifted.max(0)
    assert_close(mode(program)(fx.Clients(x)), expected, rtol=1e-4)


@each_run
def test_extremes_and_counts(mesh, mode, clients):
    """Of floats, integers, booleans, where padding by zeros or by ones would show."""
    floats = np.abs(numbers(clients, 2)) + 1
    ints = np.arange(clients, dtype=np.int32) + 5
    some = np.arange(clients) == 1

    def program(floats, ints, some):
        return {
            "max": [fx.reduce_max(fx.Clients(v)) for v in (floats, -floats, ints, -ints, some)],
            "min": [fx.reduce_min(fx.Clients(v)) for v in (floats, -floats, ints, -ints, ~some)],
            "sum": [fx.reduce_sum(fx.Clients(v)) for v in (floats, ints, some, ~some)],
            "mean": [fx.reduce_mean(fx.Clients(v)) for v in (floats, ints, some, ~some)],
            "size": fx.cohort_size(fx.Clients(floats)),
        }

    expected: dict[str, Any] = {
        "max": [floats.max(0), -floats.min(0), clients + 4, -5, True],
        "min": [floats.min(0), -floats.max(0), 5, -(clients + 4), False],
        "sum": [floats.sum(0), ints.sum(), 1, clients - 1],
        "mean": [floats.mean(0), ints.mean(), 1 / clients, 1 - 1 / clients],
        "size": clients,
    }
    found = mode(program)(floats, ints, some)
    assert found["max"][2].dtype == jnp.int32
    assert found["min"][4].dtype == jnp.bool_
    assert found["sum"][2].dtype == jnp.int32
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "float16", "bfloat16"])
def test_narrow_numbers(mesh, dtype):
    """Their limits are the identities of max and min; narrow sums are wide."""
    values = jnp.asarray([100, 90, 80, 70, 60, 120, 110], jnp.dtype(dtype))

    @jax.jit
    def program(x):
        reduced = fx.reduce_max(x), fx.reduce_min(x), fx.reduce_sum(x), fx.reduce_mean(x)
        return *reduced, fx.client_map(lambda v: v, x)

    *reduced, same = program(fx.Clients(values))
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    wide = dtype if floating else ("uint32" if dtype.startswith("u") else "int32")
    mean = dtype if floating else "float32"
    assert [str(r.dtype) for r in reduced] == [dtype, dtype, wide, mean]
    assert_close(reduced, (120, 60, 630, 90), rtol=4e-3 if floating else 1e-6)
    assert_close(same.value, values)


@each_mode
def test_bfloat16_sums_run_in_float32(mesh, mode):
    """256 + 1 has no bfloat16: summed in that dtype, the small ones would all be lost."""
    values = fx.Clients(jnp.asarray([256, 1, 1, 1, 1, 1, 1], jnp.bfloat16))
    total = mode(fx.reduce_sum)(values)
    assert total.dtype == jnp.bfloat16
    assert float(total) == 262


@each_mode
def test_keys(mesh, mode):
    """A key that the server folds and sends, and keys that clients hold."""
    mine = jax.random.split(jax.random.key(1), 7)
    shared = jax.random.key(2)
    one = lambda shared, key: (
        jax.random.uniform(jax.random.fold_in(key, 1), (2,)) + (jax.random.uniform(shared))
    )

    def program(shared, mine):
        drawn = fx.client_map(one, shared, mine)
        split = fx.client_map(lambda key: jax.random.split(key), mine)
        return drawn, split, fx.broadcast(shared, like=mine), fx.reduce_sum(drawn)

    drawn, split, sent, total = mode(program)(shared, fx.Clients(mine))
    expected = np.stack([np.asarray(one(shared, key)) for key in mine])
    assert_close(drawn.value, expected)
    assert_close(total, expected.sum(0))
    assert split.value.shape == (7, 2)
    assert split.value.dtype == mine.dtype
    data = np.asarray(jax.random.key_data(sent.value))
    np.testing.assert_array_equal(data, np.stack([jax.random.key_data(shared)] * 7))


@each_mode
def test_leaves_without_elements_scalars_and_none(mesh, mode):
    x = {"empty": np.zeros((7, 0, 2), np.float32), "scalar": numbers(7), "none": None}

    def program(x):
        mapped = fx.client_map(lambda x: {**x, "scalar": x["scalar"] * 2}, fx.Clients(x))
        return mapped, fx.reduce_mean(mapped)

    mapped, mean = mode(program)(x)
    assert mapped.value["empty"].shape == (7, 0, 2)
    assert mean["empty"].shape == (0, 2)
    assert mean["none"] is None
    assert_close(mean["scalar"], 2 * x["scalar"].mean())


@each_type
@uneven
def test_derivatives_of_an_extreme_that_the_last_client_shares(axes, clients):
    """The last client is the one that is repeated; its copies must not take a part of a tie."""
    x = np.zeros((clients, 2), np.float32)
    x[[1, -1], 0] = 3.0
    x[-1, 1] = -4.0
    value = lambda x: (
        jnp.sum(fx.reduce_max(fx.Clients(x)) * 6.0) + jnp.sum(fx.reduce_min(fx.Clients(x)) * 5.0)
    )
    run = on_mesh(value, make_mesh(axes), transform=lambda fn: jax.jit(jax.grad(fn)))
    expected = np.zeros((clients, 2))
    expected[[1, -1], 0] = 3.0  # 6, shared by two
    others = [i for i in range(clients) if i not in (1, clients - 1)]
    expected[others, 0] = 5.0 / len(others)
    expected[:-1, 1] = 6.0 / (clients - 1)
    expected[-1, 1] = 5.0
    assert_close(run(jnp.asarray(x)), expected)


@each_type
def test_gradient_of_an_unreduced_result(axes):
    """The cotangent comes in with the length of the cohort and leaves with it."""
    x = numbers(7, 3)

    def program(w, x):
        out = fx.client_map(lambda w, x: jnp.sin(w * x), w, fx.Clients(x)).value
        return jnp.sum(out * jnp.arange(7.0)[:, None])

    run = on_mesh(program, make_mesh(axes), transform=lambda fn: jax.jit(jax.grad(fn, (0, 1))))
    w = np.float32(0.7)
    slope = np.cos(w * x) * np.arange(7.0)[:, None]
    assert_close(run(w, x), ((slope * x).sum(), slope * w))


@each_type
@pytest.mark.parametrize("last", [True, False])
def test_nan_of_a_weightless_client(axes, last):
    """Of the last client too, which the padding repeats; in its data, its loss, its gradient."""
    w, b, x, y, weights = regression(7)
    out = -1 if last else 2
    x.value[out] = np.nan
    weights.value[out] = 0.0

    def program(w, b, x, y, weights):
        losses = fx.client_map(
            lambda w, b, x, y: jnp.mean((x @ w + b - y) ** 2), w, b, x, y, weights=weights
        )
        return fx.reduce_mean(losses, weights=weights)

    run = on_mesh(program, make_mesh(axes), transform=jit_value_and_gradients)
    value, (dw, db, dx, dy, dweights) = run(w, b, x, y, weights)
    keep = np.arange(7) != out % 7
    kept = (w, b, *(fx.Clients(c.value[keep]) for c in (x, y, weights)))
    expected, (ew, eb, ex, ey, eweights) = np_weighted_loss(*kept)
    assert_close((value, dw, db), (expected, ew, eb))
    for found, other in ((dx, ex), (dy, ey), (dweights, eweights)):
        assert_close(found.value[keep], other)
    assert not dx.value[out].any()
    assert not dy.value[out].any()


@each_mode
def test_all_weights_zero(mesh, mode):
    x = fx.Clients(np.full((7, 2), np.nan, np.float32))
    weights = fx.Clients(np.zeros(7, np.float32))
    assert_close(mode(fx.reduce_mean)(x, weights), np.zeros(2))


@each_mode
def test_nan_of_a_client_that_counts_is_not_hidden(mesh, mode):
    """An unweighted reduction hides no NaN of any device, and adds none; infinities are numbers."""

    def program(x):
        x = fx.Clients(x)
        return fx.reduce_sum(x), fx.reduce_mean(x), fx.reduce_max(x), fx.reduce_min(x)

    x = np.arange(-3, 4, dtype=np.float32)[:, None] * np.ones(9, np.float32)
    x[np.arange(7), np.arange(7)] = np.nan  # column i: client i
    x[3, 7] = -np.inf
    x[5, 8] = np.inf
    for found in mode(program)(x):
        np.testing.assert_array_equal(np.isnan(found), [True] * 7 + [False] * 2)
    top, bottom = mode(program)(x)[2:]
    assert_close(top[7:], np.array([3.0, np.inf]))
    assert_close(bottom[7:], np.array([-np.inf, -3.0]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_extremes_of_every_sign_in_every_float(mesh, dtype):
    x = jnp.asarray([[-2.5, -0.0], [1e-3, 0.0], [-np.inf, -7.0], [4.0, -1e-3]], jnp.dtype(dtype))
    for values in (x, -x):
        top, bottom = jax.jit(lambda x: (fx.reduce_max(x), fx.reduce_min(x)))(fx.Clients(values))
        assert top.dtype == bottom.dtype == values.dtype
        expected = np.asarray(values, np.float32)
        assert_close((top, bottom), (expected.max(0), expected.min(0)))


@each_mode
def test_client_functions_meet_only_real_data(mesh, mode):
    """A padding client repeats a real one, so a function that fails on zeros does not meet any."""
    x = np.arange(1, 8, dtype=np.float32)
    seen: list[float] = []

    def one(x):
        jax.debug.callback(lambda x: seen.extend(np.ravel(x).tolist()), x)
        return 1 / x

    found = mode(lambda x: fx.client_map(one, x))(fx.Clients(x))
    jax.effects_barrier()
    assert_close(found.value, 1 / x)
    assert set(seen) == set(x.tolist())


def test_two_meshes_of_the_same_devices_in_turn():
    """The padded value is one for eight rows; it must not be taken for one of twelve."""
    x = fx.Clients(numbers(9, 2))
    devices = jax.devices()
    four, eight = make_mesh("clients=4 model=2", devices), make_mesh("clients=8", devices)
    doubled = on_mesh(lambda x: fx.client_map(lambda x: 2 * x, x), four)(x)
    assert_close(on_mesh(fx.reduce_sum, eight)(doubled), 2 * x.value.sum(0), rtol=1e-4)
    assert_close(fx.reduce_sum(doubled), 2 * x.value.sum(0), rtol=1e-4)


def test_nothing_outlives_the_trace(mesh):
    """What is remembered of a cut value is forgotten with it: no tracer leaks, no array stays."""
    x = fx.Clients(jnp.asarray(numbers(7, 2)))

    def program(x):
        return fx.reduce_sum(fx.client_map(lambda v: v * v, x))

    with jax.checking_leaks():
        jax.jit(jax.grad(lambda x: jnp.sum(program(x))))(x)
    doubled = fx.client_map(lambda v: 2 * v, x)
    gc.collect()
    before = len(jax.live_arrays())
    del doubled
    gc.collect()
    assert len(jax.live_arrays()) <= before - 2, "the cut value and the padded one"


def test_many_values_in_turn_are_not_mixed_up(mesh):
    """Identities are reused once a value is gone; a remembered one must not stand for the next."""
    double = jax.jit(lambda x: fx.client_map(lambda v: 2 * v, x))
    total = jax.jit(lambda x: fx.reduce_sum(x))
    for i in range(20):
        x = fx.Clients(np.full((7, 2), i, np.float32))
        assert_close(total(fx.Clients(double(x).value + 1.0)), np.full(2, 7 * (2 * i + 1)))


def test_gradients_with_respect_to_weights_alone(mesh):
    """Integer examples, float weights."""
    counts = np.arange(1, 8, dtype=np.int32)
    weights = np.abs(numbers(7)) + 0.5
    mean = lambda weights: fx.reduce_mean(fx.Clients(counts), weights=fx.Clients(weights))
    found = jax.jit(jax.grad(mean))(jnp.asarray(weights))
    expected = (counts - np.average(counts, weights=weights)) / weights.sum()
    assert_close(found, expected)


def test_eager_results_are_those_of_jit_with_dtype(mesh):
    """`eval_shape` too, which knows nothing of padding either."""
    arguments = to_jax(regression(7))
    program = lambda *args: (weighted_loss(*args), fx.client_map(lambda x: x.sum(0), args[2]))
    eager, compiled = program(*arguments), jax.jit(program)(*arguments)
    shape = jax.eval_shape(program, *arguments)
    describe = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert describe(eager) == describe(compiled) == describe(shape)
    assert_close(eager, compiled)
