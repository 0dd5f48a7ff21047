"""One device: clients are an array axis, mapped by `vmap`.

While a plan is made, a cohort of one client is not mapped at all: what is traced then is what one
client runs.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

_ONE_CLIENT = "fedeqx.client"
# `None`, `"plan"`, or `"client"` within a client's computation in a plan. A context of JAX's own:
# a function that is jitted inside of a program is traced anew for a plan.
_tracing = jax.make_user_context(None)
KINDS = {
    # In the dtype that it is given, which `jnp.sum` widens where 64 bits are enabled.
    "sum": functools.partial(jnp.sum, promote_integers=False),
    "max": jnp.max,
    "min": jnp.min,
}


def accumulator_dtype(kind: str, dtype: Any) -> Any:
    """The dtype in which a reduction accumulates and that it returns.

    Sums of floats below 32 bits run in float32, and sums of small integers and booleans in 32-bit
    integers, as NumPy does, so that a large cohort neither loses digits nor overflows.
    """
    if kind != "sum":
        return dtype
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)
    # By size and not by `promote_types`, which strict promotion forbids.
    wide = jnp.dtype(jnp.uint32 if jnp.issubdtype(dtype, jnp.unsignedinteger) else jnp.int32)
    return dtype if jnp.dtype(dtype).itemsize >= wide.itemsize else wide


def broadcast(xs: Sequence[Array], size: int) -> list[Array]:
    return [jnp.broadcast_to(x, (size, *x.shape)) for x in xs]


def reduce(xs: Sequence[Array], kind: str) -> list[Array]:
    return [KINDS[kind](x.astype(accumulator_dtype(kind, x.dtype)), axis=0) for x in xs]


def map_clients(fn: Callable[..., Sequence[Array]], xs: Sequence[Array]) -> Sequence[Array]:
    if planning() and all(x.shape[0] == 1 for x in xs):
        with _tracing("client"):
            outs = fn(*(jax.lax.squeeze(x, [0]) for x in xs))
            return [jax.lax.expand_dims(jnp.asarray(out), [0]) for out in outs]
    return jax.vmap(fn, axis_name=_ONE_CLIENT)(*xs)


def plan_scope() -> contextlib.AbstractContextManager[Any]:
    """Until the block ends, programs are traced to be planned: without a mesh, client by client."""
    return _tracing("plan")


def planning() -> bool:
    return _tracing.value == "plan"


def on_one_client() -> bool:
    """Whether what is being traced runs on ONE client, by the name of the enclosing `vmap`, which
    `jit` keeps its traces apart by. The backward rule of a `custom_vjp` does not see that name."""
    if _tracing.value == "client":
        return True
    try:
        jax.lax.axis_size(_ONE_CLIENT)
    except NameError:
        return False
    return True
