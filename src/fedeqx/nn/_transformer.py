"""A decoder-only transformer on one sequence."""

import math
from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int, PRNGKeyArray, PyTree

from ._config import Remat, TransformerConfig


@final
class Transformer(eqx.Module):
    """A pre-norm decoder-only transformer with rotary positions, on one sequence.

    RMSNorm, no biases, grouped-query attention. All blocks are one PyTree with a leading axis of
    `depth`, and a scan runs through it: compile time does not grow with depth. Matrices are
    `[out, in]`, as in Equinox. Parameters are float32.

    **Arguments:**

    - `config`: the shape.
    - `key`: PRNG key of the initial parameters.

    ```python
    >>> model = Transformer(TransformerConfig.preset("tiny"), key=jax.random.key(0))
    >>> model(jnp.arange(64)).shape
    (64, 257)

    ```
    """

    embedding: Float32[Array, "vocab width"]
    blocks: "_Block"
    final_norm: Float32[Array, " width"]
    head: Float32[Array, "vocab width"] | None
    config: TransformerConfig = eqx.field(static=True)

    def __init__(self, config: TransformerConfig, *, key: PRNGKeyArray) -> None:
        embedding_key, blocks_key, head_key = jax.random.split(key, 3)
        shape = (config.vocab_size, config.width)
        self.embedding = _normal(embedding_key, shape, _EMBEDDING_SCALE)
        block_keys = jax.random.split(blocks_key, config.depth)
        self.blocks = eqx.filter_vmap(lambda k: _Block(config, key=k))(block_keys)
        self.final_norm = jnp.ones(config.width, jnp.float32)
        tied = config.tie_embedding
        self.head = None if tied else _normal(head_key, shape, _EMBEDDING_SCALE)
        self.config = config

    def __call__(self, tokens: Int[Array, " seq"]) -> Float32[Array, "seq vocab"]:
        """The logits of the token that follows each token.

        **Arguments:**

        - `tokens`: one sequence of token ids, of any length.

        **Returns:** logits; row `t` depends on tokens `0..t` only. With an id outside the
        vocabulary they are NaN.
        """
        dtype = jnp.dtype(self.config.compute_dtype)
        x = _look_up(self.embedding, tokens).astype(dtype)
        apply = _rematerialize(lambda x, block: (block(x), None), self.config.remat)
        x, _ = jax.lax.scan(apply, _vary_like(x, self.blocks), self.blocks)
        x = _rms_norm(x, self.final_norm, self.config.norm_eps)
        head = self.embedding if self.head is None else self.head
        return _project(x, head, jnp.float32)


@final
class _Block(eqx.Module):
    attention_norm: Float[Array, "*depth width"]
    query: Float[Array, "*depth width width"]
    key: Float[Array, "*depth kv_width width"]
    value: Float[Array, "*depth kv_width width"]
    output: Float[Array, "*depth width width"]
    mlp_norm: Float[Array, "*depth width"]
    gate: Float[Array, "*depth mlp_width width"] | None
    up: Float[Array, "*depth mlp_width width"]
    down: Float[Array, "*depth width mlp_width"]
    config: TransformerConfig = eqx.field(static=True)

    def __init__(self, config: TransformerConfig, *, key: PRNGKeyArray) -> None:
        width, mlp_width = config.width, config.mlp_width
        kv_width = config.num_kv_heads * config.head_size
        keys = jax.random.split(key, 7)

        def matrix(key: PRNGKeyArray, rows: int, columns: int, scale: float = 1.0) -> Array:
            return _normal(key, (rows, columns), scale / math.sqrt(columns))

        # What is added to the residual stream starts small, so that its sum over the 2 * depth
        # additions has unit variance (GPT-2).
        residual = 1 / math.sqrt(2 * config.depth)
        self.attention_norm = jnp.ones(width, jnp.float32)
        self.query = matrix(keys[0], width, width)
        self.key = matrix(keys[1], kv_width, width)
        self.value = matrix(keys[2], kv_width, width)
        self.output = matrix(keys[3], width, width, residual)
        self.mlp_norm = jnp.ones(width, jnp.float32)
        self.gate = matrix(keys[4], mlp_width, width) if config.mlp == "swiglu" else None
        self.up = matrix(keys[5], mlp_width, width)
        self.down = matrix(keys[6], width, mlp_width, residual)
        self.config = config

    def __call__(self, x: Float[Array, "seq width"]) -> Float[Array, "seq width"]:
        x = x + self._attention(_rms_norm(x, self.attention_norm, self.config.norm_eps))
        return x + self._mlp(_rms_norm(x, self.mlp_norm, self.config.norm_eps))

    def _attention(self, x: Float[Array, "seq width"]) -> Float[Array, "seq width"]:
        seq, size, kv_heads = x.shape[0], self.config.head_size, self.config.num_kv_heads
        query = _rotate(_project(x, self.query).reshape(seq, -1, size), self.config.rope_theta)
        key = _rotate(_project(x, self.key).reshape(seq, -1, size), self.config.rope_theta)
        value = _project(x, self.value).reshape(seq, -1, size)
        # By hand: `jax.nn.dot_product_attention` is no faster here, and refuses bfloat16 under
        # strict dtype promotion. Neighbouring query heads share a key and value head.
        score = jnp.einsum(
            "skgd,tkd->kgst",
            query.reshape(seq, kv_heads, -1, size),
            key,
            preferred_element_type=jnp.float32,
        )
        causal = jnp.tri(seq, dtype=bool)[None, None]
        # Each row has at least its diagonal, so -inf gives no NaN.
        weight = jax.nn.softmax(jnp.where(causal, score / math.sqrt(size), -jnp.inf), axis=-1)
        mixed = jnp.einsum("kgst,tkd->skgd", weight.astype(x.dtype), value)
        return _project(mixed.reshape(seq, -1), self.output)

    def _mlp(self, x: Float[Array, "seq width"]) -> Float[Array, "seq width"]:
        # XLA for CPU would compute the activation's derivative again inside the transpose that
        # the gradient of `up` needs, with strided reads.
        up = jax.lax.optimization_barrier(_project(x, self.up))
        if self.gate is None:
            hidden = jax.nn.gelu(up)
        else:
            hidden = jax.nn.silu(jax.lax.optimization_barrier(_project(x, self.gate))) * up
        return _project(hidden, self.down)


def _look_up(
    embedding: Float32[Array, "vocab width"], tokens: Int[Array, " seq"]
) -> Float32[Array, "seq width"]:
    """The rows of an embedding; NaN for an id outside the vocabulary."""
    sharding = jax.typeof(tokens).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return embedding.at[tokens].get(mode="fill")
    # A gather alone cannot tell on an explicit mesh whether it follows the indices.
    out = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec, None))
    return embedding.at[tokens].get(mode="fill", out_sharding=out)


def _rematerialize(fn: Callable, remat: Remat) -> Callable:
    if remat == "none":
        return fn
    # Inside a scan nothing can be merged across the two passes, so XLA needs no barrier for it.
    policy = jax.checkpoint_policies.dots_saveable if remat == "matmuls" else None
    return jax.checkpoint(fn, prevent_cse=False, policy=policy)


def _vary_like(x: Array, tree: PyTree[Array]) -> Array:
    """`x`, marked as varying over each manual mesh axis over which a leaf of `tree` varies.

    Inside `shard_map` a scan wants the type of its first carry to be that of the others. With a
    shared embedding and tokens, but blocks of each client's own, it would not be.
    """
    leaves = jax.tree.leaves(tree)
    axes = frozenset().union(*(jax.typeof(leaf).manual_axis_type.varying for leaf in leaves))
    axes -= jax.typeof(x).manual_axis_type.varying
    return jax.lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x


# GPT-2's; small, so that the first predictions are nearly uniform.
_EMBEDDING_SCALE = 0.02


def _normal(key: PRNGKeyArray, shape: tuple[int, ...], scale: float) -> Float32[Array, "..."]:
    return scale * jax.random.normal(key, shape, jnp.float32)


def _project(
    x: Float[Array, "seq in"], weight: Float[Array, "out in"], dtype: DTypeLike | None = None
) -> Float[Array, "seq out"]:
    """`x @ weight.T` in the dtype of `x`, or with a result of another dtype."""
    # Straight from `[out, in]`: its gradient needs no transpose of the result.
    return jax.lax.dot_general(
        x, weight.astype(x.dtype), (((1,), (1,)), ((), ())), preferred_element_type=dtype
    )


def _rms_norm(
    x: Float[Array, "seq width"], scale: Float[Array, " width"], eps: float
) -> Float[Array, "seq width"]:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return (y * scale[None]).astype(x.dtype)


def _rotate(x: Float[Array, "seq heads size"], theta: float) -> Float[Array, "seq heads size"]:
    """Turns the pairs (i, i + size / 2) of each head by an angle proportional to the position."""
    seq, _, size = x.shape
    # NumPy in float64: constants of the program, and right for long sequences.
    frequency = theta ** -(np.arange(size // 2) / (size // 2))
    angle = (np.arange(seq)[:, None] * frequency[None])[:, None]
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
