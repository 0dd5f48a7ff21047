import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn.helpers import (
    VOCAB,
    apply,
    assert_close,
    config,
    quick_jit,
    random_batch,
    random_like,
    random_model,
    skeleton,
    value_and_grad,
    with_config,
)

from fedeqx.nn import Transformer, next_token_loss
from fedeqx.nn._transformer import _rotate

_VARIANTS = [
    {},
    {"mlp": "swiglu", "num_kv_heads": 2, "tie_embedding": False, "remat": "full"},
    {"compute_dtype": "bfloat16", "remat": "none"},
]


def _tokens(size, seed=0):
    return random_batch((size,), seed)["tokens"]


@pytest.mark.parametrize("overrides", _VARIANTS)
def test_no_token_changes_an_earlier_row(overrides):
    model = random_model(**overrides)
    tokens = _tokens(8)
    logits = np.asarray(apply(model, tokens))
    for t in range(8):
        changed = np.asarray(apply(model, tokens.at[t].set((tokens[t] + 1) % VOCAB)))
        np.testing.assert_array_equal(changed[:t], logits[:t])
        assert all(np.any(changed[row] != logits[row]) for row in range(t, 8))


def test_rotated_scores_depend_on_the_distance_alone(getkey):
    query, key = jax.random.normal(getkey(), (2, 1, 1, 8))
    turned_query = _rotate(jnp.tile(query, (40, 1, 1)), 10_000.0)[:, 0]
    turned_key = _rotate(jnp.tile(key, (40, 1, 1)), 10_000.0)[:, 0]
    score = np.asarray(turned_query @ turned_key.T)
    for distance in range(-39, 40):
        diagonal = np.diagonal(score, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert np.ptp(score[0]) > 0.1


def test_the_order_of_earlier_tokens_matters():
    # One block without positions would see them as a set.
    model = random_model(depth=1)
    one, other = (apply(model, jnp.array(x)) for x in ([1, 2, 3], [2, 1, 3]))
    assert np.max(np.abs(one[-1] - other[-1])) > 1e-3


def test_grouped_queries_are_repeated_key_and_value_heads():
    grouped = random_model(num_kv_heads=2)

    def repeat(matrix):  # [depth, 2 heads * 4, width] -> [depth, 4 heads * 4, width]
        heads = matrix.reshape(3, 2, 4, 16)
        return jnp.repeat(heads, 2, axis=1).reshape(3, 16, 16)

    kv = lambda m: (m.blocks.key, m.blocks.value)
    full = with_config(eqx.tree_at(kv, grouped, [repeat(x) for x in kv(grouped)]))
    found, expected = apply(grouped, _tokens(9)), apply(full, _tokens(9))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_tied_embedding_is_one_parameter_with_two_uses():
    tied = random_model()
    assert tied.head is None
    structure = jax.tree.structure(skeleton(tie_embedding=False))
    untied = jax.tree.unflatten(structure, [*jax.tree.leaves(tied), tied.embedding])
    batch = random_batch((2, 7))
    loss, grads = value_and_grad(tied, batch)
    untied_loss, untied_grads = value_and_grad(untied, batch)
    np.testing.assert_allclose(loss, untied_loss, rtol=1e-6)
    both = untied_grads.embedding + untied_grads.head
    np.testing.assert_allclose(grads.embedding, both, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("remat", ["none", "matmuls", "full"])
def test_the_scan_is_a_loop_over_blocks(remat):
    model, tokens = random_model(remat=remat, mlp="swiglu"), _tokens(6)

    def looped(model):
        x = model.embedding[tokens]
        for i in range(3):
            x = jax.tree.map(lambda leaf, i=i: leaf[i], model.blocks)(x)
        x = x * (jnp.mean(x**2, axis=1, keepdims=True) + 1e-6) ** -0.5 * model.final_norm[None]
        return jnp.sum(jnp.sin(x @ model.embedding.T))

    scanned = lambda model: jnp.sum(jnp.sin(model(tokens)))
    expected = quick_jit(jax.value_and_grad(looped))(model)
    found = quick_jit(jax.value_and_grad(scanned))(model)
    assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_remat_keeps_less_for_the_backward_pass():
    batch = random_batch((8, 65))
    sizes = []
    for remat in ("none", "matmuls", "full"):
        model = skeleton(width=64, mlp_width=256, depth=8, remat=remat)
        memory = jax.jit(jax.grad(next_token_loss)).lower(model, batch).compile().memory_analysis()
        assert memory is not None
        sizes.append(memory.temp_size_in_bytes)
    assert sizes[0] > 1.3 * sizes[1] > 1.3**2 * sizes[2]


def test_bfloat16_is_for_matrix_products_alone():
    model, tokens = random_model(compute_dtype="bfloat16", mlp="swiglu"), _tokens(7)
    logits = apply(model, tokens)
    assert logits.dtype == jnp.float32
    result = value_and_grad(model, random_batch((2, 7)))
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype("float32")}

    error = np.abs(apply(with_config(model, mlp="swiglu"), tokens) - logits)
    assert 0 < error.max() < 0.05 * np.abs(logits).max()

    lines = str(jax.make_jaxpr(model)(tokens)).splitlines()
    products = [line for line in lines if "dot_general[" in line]
    # Query, key, value, mixing, output, gate, up, down; scores and logits accumulate in float32.
    assert sum(":bf16[" in line for line in products) == 8
    assert sum(":f32[" in line for line in products) == 2
    for name in (" exp ", " rsqrt ", " reduce_sum["):
        found = [line for line in lines if name in line]
        assert found
        assert not any("bf16" in line for line in found)


def _problem():
    """A loss, a direction, and the derivative of a function of a model along that direction."""
    model = random_model(mlp="swiglu", num_kv_heads=2, tie_embedding=False)
    direction = random_like(model, seed=1)
    batch = random_batch((3, 9))
    loss = lambda model: next_token_loss(model, batch)
    along = lambda x: sum(jax.tree.leaves(jax.tree.map(jnp.vdot, x, direction)))

    def difference(fn, step=1e-3):
        # Five points: in float32 the step cannot be small enough for three.
        fn = quick_jit(fn)
        move = lambda step: fn(jax.tree.map(lambda x, d: x + step * d, model, direction))
        wide = move(2 * step) - move(-2 * step)
        return (8 * (move(step) - move(-step)) - wide) / (12 * step)

    forward = lambda fn: quick_jit(lambda model: jax.jvp(fn, (model,), (direction,))[1])
    return model, loss, along, difference, forward


def test_derivatives_agree_with_finite_differences():
    model, loss, along, difference, forward = _problem()
    slope = quick_jit(lambda model: along(jax.grad(loss)(model)))
    expected = difference(loss)
    np.testing.assert_allclose(slope(model), expected, rtol=5e-3)
    np.testing.assert_allclose(forward(loss)(model), expected, rtol=5e-3)


@pytest.mark.slow
def test_second_derivatives_agree_with_finite_differences():
    model, loss, along, difference, forward = _problem()
    slope = lambda model: along(jax.grad(loss)(model))
    expected = difference(slope)
    np.testing.assert_allclose(forward(slope)(model), expected, rtol=5e-3)
    reverse_over_reverse = quick_jit(lambda model: along(jax.grad(slope)(model)))
    np.testing.assert_allclose(reverse_over_reverse(model), expected, rtol=5e-3)


def test_each_client_has_its_own_parameters_and_gradient():
    models, batches = random_model(stack=(3,)), random_batch((3, 2, 7))
    together = quick_jit(jax.vmap(jax.value_and_grad(next_token_loss)))(models, batches)
    for i in range(3):
        model, batch, expected = jax.tree.map(lambda x, i=i: x[i], (models, batches, together))
        assert_close(value_and_grad(model, batch), expected, rtol=1e-4, atol=1e-5)


def test_one_trace_serves_every_call(getkey):
    traces = 0

    @jax.jit
    def loss(model, batch):
        nonlocal traces
        traces += 1
        return next_token_loss(model, batch)

    loss(Transformer(config(), key=getkey()), random_batch((2, 7)))
    loss(Transformer(config(), key=getkey()), random_batch((2, 7), seed=1))
    loss(random_model(), random_batch((2, 7), seed=2))
    assert traces == 1
