"""Client work: what one client does with the model in one round."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, Key, Num, PyTree, UInt32

from ._masking import run_where
from ._optimizer import Optimizer, Params, require_optimizer

Loss = Callable[[Any, Any, Any], Float[Array, ""]]
"""`loss(model, batch, key) -> scalar`: the mean loss of a batch, 0 for one that is all padding."""


class ClientData(NamedTuple):
    """What one client trains on in one round.

    - `batches`: a PyTree whose array leaves have a leading axis of local steps.
    - `step_mask`: which of these steps are real; the rest is padding, and is skipped.
    - `num_examples`: how many examples the client trains on, its weight in a weighted mean.
    - `seed`: the client's own number, from its group id: with the round's key it makes its key.
    """

    batches: PyTree
    step_mask: Bool[Array, " steps"]
    num_examples: Num[Array, ""]
    seed: UInt32[Array, ""]


class ClientReport(NamedTuple):
    """What a client tells of its work.

    - `loss`: the training loss, mean over its real steps, each measured before the step.
    - `steps`: how many real steps it took.
    """

    loss: Float[Array, ""]
    steps: Float[Array, ""]


class AbstractClientWork(eqx.Module):
    """One client's part of a round."""

    @abc.abstractmethod
    def run(
        self, model: PyTree, data: ClientData, *, round: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[Params, ClientReport]:
        """Returns the update that the client proposes to the model's parameters, and a report.

        **Arguments:**

        - `model`: the server's model.
        - `data`: this client's data.
        - `round`: how many rounds came before; schedules count from it.
        - `key`: this client's key for this round.
        """


@final
class LocalSGD(AbstractClientWork):
    """Local steps of any Optax optimizer; the update is the new parameters less the old.

    The client work of FedAvg (arXiv 1602.05629). The optimizer's state is made anew in each round;
    its schedules go on from round to round, counting `steps` local steps a round.

    **Arguments:**

    - `loss`: `loss(model, batch, key)`, the mean loss of one batch.
    - `optimizer`: the client optimizer.
    """

    loss: Loss = eqx.field(static=True)
    optimizer: Optimizer

    def __check_init__(self):
        require_optimizer("LocalSGD", self.optimizer)

    def run(
        self, model: PyTree, data: ClientData, *, round: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[Params, ClientReport]:
        start, static = eqx.partition(model, eqx.is_inexact_array)
        num_steps = data.step_mask.shape[0]

        def local_step(optimizer, carry, i, value_and_grad):
            params, state = carry
            value, grads = value_and_grad(params)
            return value, optimizer.update(grads, state, params, round * num_steps + i)

        carry = (start, self.optimizer.init(start))
        (params, _), report = _over_steps(
            self.loss, static, data, key, local_step, self.optimizer, carry
        )
        return jtu.tree_map(lambda new, old: new - old, params, start), report


@final
class LocalGradient(AbstractClientWork):
    """The gradient at the server's model, mean over the steps' batches; the update is its negative.

    The client work of FedSGD (arXiv 1602.05629).

    **Arguments:**

    - `loss`: `loss(model, batch, key)`, the mean loss of one batch.
    """

    loss: Loss = eqx.field(static=True)

    def run(
        self, model: PyTree, data: ClientData, *, round: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[Params, ClientReport]:
        del round
        params, static = eqx.partition(model, eqx.is_inexact_array)

        def one_batch(params, total, i, value_and_grad):
            del i
            value, grads = value_and_grad(params)
            return value, jtu.tree_map(jnp.add, total, grads)

        zeros = jtu.tree_map(jnp.zeros_like, params)
        total, report = _over_steps(self.loss, static, data, key, one_batch, params, zeros)
        divisor = jnp.maximum(report.steps, 1)
        return jtu.tree_map(lambda t: -t / divisor.astype(t.dtype), total), report


def _over_steps(
    loss, static, data: ClientData, key, step, fixed, carry
) -> tuple[Any, ClientReport]:
    """Scans `step(fixed, carry, i, value_and_grad) -> (loss, carry)` over a client's real steps."""
    num_steps = data.step_mask.shape[0]
    for path, leaf in jtu.tree_leaves_with_path(data.batches):
        if jnp.shape(leaf)[:1] != (num_steps,):
            raise ValueError(
                f"The leading axis of every leaf of `batches` counts the local steps, and the "
                f"client's step_mask says {num_steps}, but batches{jtu.keystr(path)} has the shape "
                f"{list(jnp.shape(leaf))}. Give both the same number of steps."
            )

    def body(carry, inputs):
        i, batch, is_real = inputs

        def one_step(fixed, carry, batch):
            def batch_loss(params: Params) -> Float[Array, ""]:
                return loss(eqx.combine(params, static), batch, jax.random.fold_in(key, i))

            inner, total = carry
            value, inner = step(fixed, inner, i, jax.value_and_grad(batch_loss))
            return inner, total + value.astype(total.dtype)

        return run_where(is_real, one_step, fixed, carry, batch, otherwise=carry), None

    # The losses are summed in the carry, not stacked: JAX 0.10 cannot transpose a scan, inside of a
    # `jit`, that has a stacked output which nothing uses, and often nothing uses the report.
    steps = (jnp.arange(num_steps, dtype=jnp.int32), data.batches, data.step_mask)
    (carry, total), _ = jax.lax.scan(body, (carry, jnp.zeros((), jnp.result_type(float))), steps)
    count = jnp.sum(data.step_mask, dtype=total.dtype)
    return carry, ClientReport(total / jnp.maximum(count, 1), count)
