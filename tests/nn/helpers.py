"""Small models with parameters from NumPy: nothing is compiled to make them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedeqx.nn import Transformer, TransformerConfig, next_token_loss

VOCAB = 11

# These programs run for microseconds; LLVM's optimizations would take two thirds of a test.
quick_jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)

apply = quick_jit(lambda model, x: model(x))
value_and_grad = quick_jit(jax.value_and_grad(next_token_loss))


def config(**overrides) -> TransformerConfig:
    sizes = {"vocab_size": VOCAB, "width": 16, "depth": 3, "num_heads": 4, "mlp_width": 24}
    return TransformerConfig(**{**sizes, "num_kv_heads": 4, **overrides})


def skeleton(**overrides) -> Transformer:
    """A model of shapes and dtypes alone."""
    return eqx.filter_eval_shape(Transformer, config(**overrides), key=jax.random.key(0))


def random_like(tree, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    draw = lambda x: jnp.asarray(scale * rng.normal(size=x.shape).astype(x.dtype))
    return jax.tree.map(draw, tree)


def random_model(seed=0, stack=(), **overrides) -> Transformer:
    """A model all of whose parameters matter: no norm scale is one, and logits are of order one.

    With `stack`, the leaves have these leading axes: a model for each client.
    """
    shapes = skeleton(**overrides)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*stack, *x.shape), x.dtype), shapes)
    model = random_like(shapes, seed, scale=0.3)
    norms = lambda m: (m.blocks.attention_norm, m.blocks.mlp_norm, m.final_norm)
    return eqx.tree_at(norms, model, [1 + norm for norm in norms(model)])


def with_config(model, **overrides) -> Transformer:
    """The same parameters, in the order of the fields, under another config."""
    structure = jax.tree.structure(skeleton(**overrides))
    return jax.tree.unflatten(structure, jax.tree.leaves(model))


def random_batch(shape, seed=0):
    """Tokens of this shape, all of whose targets are real."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, shape, np.int32)
    return {"tokens": jnp.asarray(tokens), "mask": jnp.ones((*shape[:-1], shape[-1] - 1), bool)}


def assert_close(x, y, **tolerance):
    assert jax.tree.structure(x) == jax.tree.structure(y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), x, y)
