"""The verbs of the language besides client_map: broadcast, the reductions, cohort_size."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.extend.core import Primitive
from jaxtyping import Array, Int

from . import _primitives as prims
from ._client import Weights, as_clients, at_clients, client_map, padded, require_weights
from ._placement import (
    Clients,
    Server,
    as_array,
    cohort_size_of,
    describe,
    find_cohort_size,
    is_array,
    is_clients,
    is_field,
    is_number,
)
from .backends import accumulator_dtype

T = TypeVar("T")


def broadcast(
    tree: Server[T], *, clients: int | None = None, like: Clients[Any] | None = None
) -> Clients[T]:
    """Sends a server value to every client of a cohort.

    **Arguments:**

    - `tree`: any PyTree at the server. A Python number is sent as an array, unless it is a field of
        a module; other leaves that are no arrays pass through unchanged.
    - `clients`: the cohort size, or
    - `like`: a value of the cohort that it should go to. Prefer this: a program that never spells
        the number runs at any cohort size.

    **Returns:**

    `Clients[T]` of that size. Its transpose is `reduce_sum`. Raises a `TypeError` where `tree`
    already holds clients' values, and a `ValueError` unless exactly one of the two is given.

    ```python
    >>> broadcast(jnp.float32(3.0), clients=2).value
    Array([3., 3.], dtype=float32)

    ```
    """
    if (clients is None) == (like is None):
        raise ValueError("broadcast needs either `clients=n` or `like=x`, and not both.")
    for path, leaf in jtu.tree_leaves_with_path(tree, is_leaf=is_clients):
        if is_clients(leaf):
            raise TypeError(
                f"broadcast sends server values, but tree{jtu.keystr(path)} is placed at the "
                "clients already; use it as it is, or reduce it first."
            )
    size = _require_clients("broadcast(like=...)", like).size if like is not None else clients
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"broadcast needs a cohort of at least one client, but clients={size!r}.")
    values = jtu.tree_map_with_path(
        lambda path, leaf: jnp.asarray(leaf) if is_number(leaf) and not is_field(path) else leaf,
        tree,
    )
    return as_clients(at_clients(values, size), size)


def cohort_size(x: Clients[Any]) -> Server[Int[Array, ""]]:
    """How many clients hold `x`, as an array of the program.

    Unlike `x.size`, a Python number fixed while tracing, this stays right when a traced program
    is run at another cohort size.

    **Returns:** an int32 scalar at the server.
    """
    return prims.fed_size(_require_clients("cohort_size", x).size)


def reduce_sum(x: Clients[T]) -> Server[T]:
    """Sums a value over the clients.

    **Arguments:**

    - `x`: numbers of any kind. Leaves that are no arrays pass through unchanged.

    **Returns:**

    One client's tree at the server. Floats keep their dtype and, below 32 bits, accumulate in
    float32; booleans and integers below 32 bits become 32-bit integers. Its transpose is
    `broadcast`. Raises a `TypeError` that names a leaf that cannot be summed (a PRNG key).
    """
    arrays, rebuild = _numbers("reduce_sum", x)
    sums = _reduce(prims.fed_sum_p, arrays)
    return rebuild(
        s.astype(a.dtype) if jnp.issubdtype(a.dtype, jnp.inexact) else s
        for s, a in zip(sums, arrays, strict=True)
    )


def reduce_mean(x: Clients[T], weights: Weights | None = None) -> Server[T]:
    """The mean of a value over the clients, weighted if weights are given.

    **Arguments:**

    - `x`: numbers of any kind. Leaves that are no arrays pass through unchanged.
    - `weights`: one real number for each client, such as its number of examples. A client of
        weight 0 contributes nothing to the mean or to any derivative, whatever its value is, NaN
        included.

    **Returns:**

    One client's tree at the server: `sum_i w_i x_i / sum_i w_i`, all of it in one reduction, and 0
    if the weights sum to 0. Floats keep their dtype and accumulate in at least float32; the mean
    of integers and booleans is a float. Raises a `TypeError` that names a leaf that has no mean.

    ```python
    >>> reduce_mean(Clients(jnp.array([1, 2, 6])), weights=Clients(jnp.array([1, 1, 0])))
    Array(1.5, dtype=float32)

    ```
    """
    arrays, rebuild = _numbers("reduce_mean", x)
    if not arrays:
        return rebuild([])
    if weights is None:
        if not all(jnp.issubdtype(a.dtype, jnp.inexact) for a in arrays):
            arrays = client_map(_as_floats, Clients(arrays)).value
        sums = _reduce(prims.fed_sum_p, arrays)
        size = prims.fed_size(x.size)
        means = [s / size.astype(s.dtype) for s in sums]
    else:
        require_weights("reduce_mean", weights)
        cohort_size_of([("reduce_mean(x)", x), ("reduce_mean(weights)", weights)])
        weighed = client_map(_weigh, Clients(arrays), weights).value
        *sums, total = _reduce(prims.fed_sum_p, weighed)
        divisor = jnp.where(total == 0, jnp.ones_like(total), total)
        means = [
            jnp.where(total == 0, jnp.zeros_like(s), s / divisor.astype(s.dtype)) for s in sums
        ]
    return rebuild(m.astype(_mean_dtype(a.dtype)) for m, a in zip(means, arrays, strict=True))


def reduce_max(x: Clients[T]) -> Server[T]:
    """The largest value over the clients, for each element; for booleans, whether any is true.

    **Arguments:**

    - `x`: real numbers or booleans. Leaves that are no arrays pass through unchanged.

    **Returns:**

    One client's tree at the server, dtypes kept, NaN if any client's is NaN. Clients that share
    the maximum share its derivative equally. Raises a `TypeError` that names a leaf with no order.
    """
    arrays, rebuild = _numbers("reduce_max", x, ordered=True)
    return rebuild(_reduce(prims.fed_max_p, arrays))


def reduce_min(x: Clients[T]) -> Server[T]:
    """The smallest value over the clients, for each element; for booleans, whether all are true.

    Otherwise as `reduce_max`.
    """
    arrays, rebuild = _numbers("reduce_min", x, ordered=True)
    return rebuild(_reduce(prims.fed_min_p, arrays))


def _require_clients(verb: str, x: Any) -> Clients[Any]:
    if not is_clients(x):
        raise TypeError(
            f"{verb} needs a value that is placed at the clients, but got {describe(x)}, which is "
            "at the server. `broadcast` sends it to clients; `Clients(tree)` declares that its "
            "leading axis counts them."
        )
    return x


def _numbers(
    verb: str, x: Clients[T], *, ordered: bool = False
) -> tuple[list[Array], Callable[..., T]]:
    """The arrays that a reduction works on, and how to put their results back in the tree."""
    value = _require_clients(verb, x).value
    find_cohort_size([(verb, x)])
    arrays, rest = eqx.partition(value, is_array)
    leaves, structure = jtu.tree_flatten(arrays)
    for path, leaf in jtu.tree_leaves_with_path(arrays):
        number = leaf.dtype == jnp.bool_ or jnp.issubdtype(leaf.dtype, jnp.number)
        if not number or (ordered and jnp.issubdtype(leaf.dtype, jnp.complexfloating)):
            raise TypeError(
                f"{verb} has no meaning for {jtu.keystr(path) or 'the value'}, which is "
                f"{describe(leaf)}. Leave it out (`eqx.partition`), or map it to numbers first."
            )
    # NumPy arrays become what JAX makes of them, 64 bits included, before dtypes are looked at.
    leaves = [as_array(leaf) for leaf in leaves]

    def rebuild(results: Any) -> T:
        return eqx.combine(jtu.tree_unflatten(structure, list(results)), rest)

    return leaves, rebuild


def _reduce(primitive: Primitive, arrays: Sequence[Array]) -> list[Array]:
    if not arrays:
        return []
    at_clients = Clients(arrays)
    return prims.fed_reduce(primitive, padded(at_clients, at_clients.size).value, at_clients.size)


def _mean_dtype(dtype: Any) -> Any:
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def _as_floats(xs: Sequence[Array]) -> list[Array]:
    return [x.astype(_mean_dtype(x.dtype)) for x in xs]


def _weigh(xs: Sequence[Array], weight: Array) -> list[Array]:
    """Weight times each value, and the weight itself, in the dtype that the sums run in.

    The value is replaced before it is multiplied, not after: `0 * NaN` is NaN, and masking only the
    product would leave it in the derivative with respect to the weight.
    """
    keep = weight.astype(bool)
    dtypes = [accumulator_dtype("sum", _mean_dtype(x.dtype)) for x in [*xs, weight]]
    # The total in the widest of them, so that a mean is as exact as its values.
    dtypes[-1] = max((jnp.finfo(dtype).dtype for dtype in dtypes), key=lambda d: d.itemsize)
    weighed = []
    for x, dtype in zip([*xs, jnp.ones_like(weight)], dtypes, strict=True):
        x = x.astype(dtype)
        weighed.append(weight.astype(x.dtype) * jnp.where(keep, x, jnp.zeros_like(x)))
    return weighed
