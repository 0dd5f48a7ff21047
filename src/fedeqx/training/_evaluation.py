"""Evaluation of a model on clients' data, before and after it is fitted to each of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Int, Key, PyTree

from ..federated import Clients, Server, client_map, program, reduce_sum
from ..learning import AbstractClientWork, ClientData

Metric = Callable[[Any, Any], tuple[Float[Array, ""], Float[Array, ""] | Int[Array, ""]]]
"""`metric(model, batch) -> (sum, count)`: a batch's sum over real items, and their number."""


class PersonalizationReport(NamedTuple):
    """One client's metric on its held-out part, mean over the items.

    - `pre`: of the server's model.
    - `post`: of the model after it was tuned on the client's tuning part.
    """

    pre: Float[Array, ""]
    post: Float[Array, ""]


@program
def evaluate(
    model: Server[PyTree], held_out: Clients[PyTree], metric: Metric
) -> Server[Float[Array, ""]]:
    """The mean of a metric over all items of all clients.

    **Arguments:**

    - `model`: what to evaluate.
    - `held_out`: batches; one client's array leaves have a leading axis of batches.
    - `metric`: a sum and a count for one batch.

    **Returns:** a scalar; NaN if no client has any item.
    """
    total, count = reduce_sum(client_map(lambda m, d: _over_batches(metric, m, d), model, held_out))
    return total / count


@program
def personalize(
    model: Server[PyTree],
    tuning: Clients[ClientData],
    held_out: Clients[PyTree],
    *,
    work: AbstractClientWork,
    metric: Metric,
    key: Server[Key[Array, ""]],
) -> Clients[PersonalizationReport]:
    """Fits the model to each client alone, and measures it there before and after.

    Dataset Grouper's experiment (arXiv 2307.09619): what a federated algorithm is worth as
    meta-learning shows in the loss after personalization, client by client.

    **Arguments:**

    - `model`: where every client starts.
    - `tuning`: the part of its data that a client tunes on.
    - `held_out`: the part that it is measured on, as in `evaluate`.
    - `work`: how a client tunes, such as `LocalSGD`.
    - `metric`: a sum and a count for one batch.
    - `key`: with a client's `seed`, the randomness of its tuning.

    **Returns:**

    A report for each client, still at the clients: nothing is shared between them.
    """

    def at_client(work, model, tuning, held_out, key):
        start = jnp.zeros((), jnp.int32)
        key = jax.random.fold_in(key, tuning.seed)
        update, _ = work.run(model, tuning, round=start, key=key)
        tuned = eqx.apply_updates(model, update)
        (pre, count), (post, _) = (_over_batches(metric, m, held_out) for m in (model, tuned))
        return PersonalizationReport(pre / count, post / count)

    return client_map(at_client, work, model, tuning, held_out, key)


def _over_batches(metric: Metric, model: PyTree, batches: PyTree) -> tuple[Array, Array]:
    """The metric's sum and count over the leading axis of `batches`."""

    def add(totals, batch):
        new = metric(model, batch)
        return jtu.tree_map(lambda t, x: t + x.astype(t.dtype), totals, new), None

    zero = jnp.zeros((), jnp.result_type(float))
    return jax.lax.scan(add, (zero, zero), batches)[0]
