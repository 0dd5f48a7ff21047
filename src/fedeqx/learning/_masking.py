"""Computations that may not count: a step of padding, a round that no client takes part in."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

T = TypeVar("T")


def run_where(condition: Bool[Array, ""], fn: Callable[..., T], *args: Any, otherwise: T) -> T:
    """`fn(*args)` where the condition holds, else `otherwise`, a tree of the same structure.

    Where it does not hold, nothing of `fn` gets out, to a value or to a derivative, NaN included.
    To select among the results is not enough, since `0 * NaN` is left in the backward pass: it must
    end where the arguments come in, and so `fn` may close over nothing that is differentiated.
    """

    def cut(x: Any) -> Any:
        # The value is `x` either way, so that forward this costs nothing.
        return jnp.where(condition, x, jax.lax.stop_gradient(x)) if eqx.is_inexact_array(x) else x

    def select(new: Any, old: Any) -> Any:
        return jnp.where(condition, new, old) if eqx.is_array(new) else new

    return jtu.tree_map(select, fn(*jtu.tree_map(cut, args)), otherwise)
