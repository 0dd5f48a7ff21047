import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn.helpers import assert_close, quick_jit, random_batch, random_model, value_and_grad

from fedeqx.nn import Transformer, TransformerConfig, next_token_loss, next_token_nll


def _reference(table, tokens, mask):
    """Sum and count, one target at a time, of the model that looks logits up in a table."""
    total, count = 0.0, 0
    for row in range(mask.shape[0]):
        for t in range(mask.shape[1]):
            if mask[row, t]:
                logits = np.asarray(table[tokens[row, t]], np.float64)
                total += math.log(np.exp(logits).sum()) - logits[tokens[row, t + 1]]
                count += 1
    return total, count


def _table_model(table):
    return lambda tokens: table[tokens]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_agrees_with_numpy(dtype, density):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(7, 7)).astype(np.float32) * 3
    tokens = rng.integers(0, 7, (4, 6)).astype(dtype)
    mask = rng.random((4, 5)) < density
    expected, expected_count = _reference(table, tokens, mask)
    batch = {"tokens": tokens, "mask": mask, "weight": np.ones(3)}
    nll, count = quick_jit(lambda t, b: next_token_nll(_table_model(t), b))(table, batch)
    assert (nll.dtype, count.dtype) == (jnp.float32, jnp.float32)
    assert count == expected_count
    np.testing.assert_allclose(nll, expected, rtol=1e-5)
    loss = next_token_loss(_table_model(jnp.asarray(table)), batch)
    np.testing.assert_allclose(loss, expected / max(expected_count, 1), rtol=1e-5)


def test_large_logits_do_not_overflow():
    table = jnp.array([[1e4, 0.0], [0.0, 1e4]])
    batch = {"tokens": jnp.array([[0, 0, 1]]), "mask": jnp.ones((1, 2), bool)}
    np.testing.assert_allclose(next_token_loss(_table_model(table), batch), 5e3)


def test_no_real_target_is_zero_with_a_zero_gradient():
    model = random_model()
    batch = {"tokens": jnp.zeros((2, 5), int), "mask": jnp.zeros((2, 4), bool)}
    loss, grads = value_and_grad(model, batch)
    assert loss == 0
    for leaf in jax.tree.leaves(grads):
        np.testing.assert_array_equal(leaf, 0)


def test_padding_changes_neither_loss_nor_gradient():
    model = random_model()
    tokens = random_batch((3, 9))["tokens"]
    short = {"tokens": tokens[:2, :7], "mask": jnp.ones((2, 6), bool)}
    real = (jnp.arange(3)[:, None] < 2) & (jnp.arange(8)[None] < 6)
    padded = {"tokens": tokens, "mask": real}
    loss, grads = value_and_grad(model, short)
    padded_loss, padded_grads = value_and_grad(model, padded)
    np.testing.assert_allclose(padded_loss, loss, rtol=1e-6)
    assert_close(padded_grads, grads, rtol=1e-4, atol=1e-6)


def test_the_first_predictions_are_nearly_uniform(getkey):
    config = TransformerConfig.preset("tiny")
    batch = {
        "tokens": jax.random.randint(getkey(), (2, 33), 0, 257),
        "mask": np.ones((2, 32), bool),
    }
    loss = quick_jit(lambda key: next_token_loss(Transformer(config, key=key), batch))(getkey())
    assert loss == pytest.approx(math.log(257), abs=0.1)


@pytest.mark.parametrize(
    ("tokens", "mask"), [((2, 5), (2, 5)), ((2, 5), (1, 4)), ((5,), (4,)), ((2, 5), (2, 4, 1))]
)
def test_shapes_that_do_not_fit_are_both_named(tokens, mask):
    batch = {"tokens": np.zeros(tokens, int), "mask": np.ones(mask, bool)}
    with pytest.raises(ValueError, match=r"tokens.*\(.*mask.*\("):
        next_token_loss(_table_model(jnp.zeros((3, 3))), batch)
