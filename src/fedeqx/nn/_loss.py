"""The loss of a language model on one client's batch."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

_LanguageModel = Callable[[Int[Array, " seq"]], Float[Array, "seq vocab"]]
_Batch = Mapping[str, Array | np.ndarray]


def next_token_nll(
    model: _LanguageModel, batch: _Batch
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The negative log-likelihood of a batch's next tokens, as a sum and a count.

    Sums and counts of several batches add up; a mean of means would weigh short batches too high.

    **Arguments:**

    - `model`: maps the tokens of one sequence to logits.
    - `batch`: `"tokens"`, integers of shape `[batch, seq + 1]`, and `"mask"`, bools of shape
        `[batch, seq]`: whether `tokens[:, 1:]` is there a real target rather than padding. Other
        entries are ignored. Padding must hold valid token ids too.

    **Returns:** the sum over the real targets in nats, and their number, as float32. Raises a
    `ValueError` if the two shapes do not fit.

    ```python
    >>> model = Transformer(TransformerConfig.preset("tiny"), key=jax.random.key(0))
    >>> batch = {"tokens": jnp.zeros((8, 65), int), "mask": jnp.ones((8, 64), bool)}
    >>> nll, count = next_token_nll(model, batch)
    >>> count
    Array(512., dtype=float32)

    ```
    """
    tokens, mask = jnp.asarray(batch["tokens"]), jnp.asarray(batch["mask"])
    if tokens.ndim != 2 or mask.shape != (tokens.shape[0], tokens.shape[1] - 1):
        raise ValueError(
            f"`tokens` has shape {tokens.shape} and `mask` {mask.shape}; give tokens "
            "[batch, seq + 1], and a mask [batch, seq] of which targets count."
        )
    logits = jax.vmap(model)(tokens[:, :-1])
    # A select over the vocabulary, not a gather: it fuses with the softmax, forward and backward.
    ids = jax.lax.broadcasted_iota(tokens.dtype, logits.shape, 2)
    target_logit = jnp.sum(jnp.where(ids == tokens[:, 1:, None], logits, 0.0), axis=-1)
    nll = jax.nn.logsumexp(logits, axis=-1) - target_logit
    return jnp.sum(jnp.where(mask, nll, 0.0)), jnp.sum(mask, dtype=jnp.float32)


def next_token_loss(model: _LanguageModel, batch: _Batch) -> Float[Array, ""]:
    """The mean cross entropy of a batch's next tokens, in nats per real token.

    **Arguments:**

    - `model`, `batch`: as for [`fedeqx.nn.next_token_nll`][].

    **Returns:** the mean over the real targets; 0, with a zero gradient, if there is none.
    """
    nll, count = next_token_nll(model, batch)
    return nll / jnp.maximum(count, 1.0)
