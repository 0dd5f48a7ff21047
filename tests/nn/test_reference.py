"""The transformer against NumPy in float64, written from the papers with explicit loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn.helpers import VOCAB, apply, random_batch, random_model


def _norm(x, scale, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def _rotate(x, theta):
    """Pair (i, i + size / 2) as a complex number, times e^(i * position * theta^(-2i / size))."""
    out, size = np.empty_like(x), x.shape[1]
    for position in range(x.shape[0]):
        for i in range(size // 2):
            angle = position * theta ** (-2 * i / size)
            z = complex(x[position, i], x[position, i + size // 2])
            z *= complex(math.cos(angle), math.sin(angle))
            out[position, i], out[position, i + size // 2] = z.real, z.imag
    return out


def _attend(query, key, value):
    out = np.zeros_like(query)
    for t in range(query.shape[0]):
        score = key[: t + 1] @ query[t] / math.sqrt(query.shape[1])
        weight = np.exp(score - score.max())
        out[t] = weight / weight.sum() @ value[: t + 1]
    return out


def _gelu(x):  # the tanh form of GPT-2
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _transformer(model, tokens):
    config = model.config
    size = config.width // config.num_heads
    group = config.num_heads // config.num_kv_heads
    f64 = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)
    x = f64.embedding[tokens]
    for i in range(config.depth):
        w = jax.tree.map(lambda leaf, i=i: leaf[i], f64.blocks)
        h = _norm(x, w.attention_norm, config.norm_eps)
        query, key, value = h @ w.query.T, h @ w.key.T, h @ w.value.T
        heads = []
        for head in range(config.num_heads):
            q = slice(head * size, (head + 1) * size)
            kv = slice(head // group * size, (head // group + 1) * size)
            turned = _rotate(query[:, q], config.rope_theta), _rotate(key[:, kv], config.rope_theta)
            heads.append(_attend(*turned, value[:, kv]))
        x = x + np.concatenate(heads, axis=1) @ w.output.T
        h = _norm(x, w.mlp_norm, config.norm_eps)
        up = h @ w.up.T
        if config.mlp == "gelu":
            hidden = _gelu(up)
        else:
            gate = h @ w.gate.T
            hidden = gate / (1 + np.exp(-gate)) * up
        x = x + hidden @ w.down.T
    head = f64.embedding if f64.head is None else f64.head
    return _norm(x, f64.final_norm, config.norm_eps) @ head.T


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"mlp": "swiglu", "tie_embedding": False},
        {"num_kv_heads": 2, "rope_theta": 100.0},
        {"num_kv_heads": 1, "norm_eps": 0.1},
    ],
)
def test_agrees_with_numpy(overrides):
    model = random_model(**overrides)
    tokens = random_batch((9,))["tokens"]
    expected = _transformer(model, np.asarray(tokens))
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(apply(model, tokens), expected, rtol=1e-5, atol=1e-5)


def test_an_id_outside_the_vocabulary_is_not_passed_over():
    model = random_model()
    assert jnp.isfinite(apply(model, jnp.array([3, VOCAB - 1, 3]))).all()
    assert jnp.isnan(apply(model, jnp.array([3, VOCAB, 3]))).all()
