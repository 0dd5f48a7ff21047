"""client_map: one client's computation, run for the whole cohort."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer, eval_jaxpr
from jaxtyping import Array, Bool

from . import backends
from ._closures import rebind
from ._placement import (
    Clients,
    as_array,
    cohort_size_of,
    describe,
    is_array,
    is_clients,
    is_field,
    is_number,
    map_arrays,
)
from ._primitives import fed_broadcast

T = TypeVar("T")
# One real number a client. `Any`, because `Clients` is invariant, and a loader gives NumPy arrays.
Weights = Clients[Any]


def at_clients(tree: Any, size: int) -> Any:
    """Every array leaf with a clients axis: of a `Clients` its value, of the rest a broadcast."""
    leaves, structure = jtu.tree_flatten(tree, is_leaf=is_clients)
    at_server = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    sent = fed_broadcast([as_array(leaves[i]) for i in at_server], size)
    for i, leaf in zip(at_server, sent, strict=True):
        leaves[i] = leaf
    values = [padded(leaf, size).value if is_clients(leaf) else leaf for leaf in leaves]
    return jtu.tree_unflatten(structure, values)


def padded(x: Clients[T], size: int) -> Clients[T]:
    """`x` with the clients axis as long as the backend needs it."""
    mesh = backends.ambient_mesh()
    return map_arrays(lambda leaf: backends.pad(as_array(leaf), size=size, mesh=mesh), x)


def as_clients(value: T, size: int) -> Clients[T]:
    """The inverse: what a backend returns, as the program sees it."""
    mesh = backends.ambient_mesh()
    return Clients(map_arrays(lambda leaf: backends.cut(leaf, size=size, mesh=mesh), value))


def require_weights(verb: str, weights: Any) -> None:
    """Raises unless `weights` is one array of shape [clients], of real numbers, at the clients."""
    leaf = weights.value if is_clients(weights) else weights
    ok = is_clients(weights) and is_array(leaf) and len(leaf.shape) == 1
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    if not ok or not any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds):
        found = type(leaf).__name__ if not is_array(leaf) else describe(leaf)
        where = "Clients of " if is_clients(weights) else ""
        raise TypeError(
            f"{verb} needs `weights` to be Clients of one real number a client, so an array of "
            f"shape [clients], but got {where}{found}."
        )


def client_map(fn: Callable[..., T], *args: Any, weights: Weights | None = None) -> Clients[T]:
    """Runs `fn` once for each client, on that client's values.

    **Arguments:**

    - `fn`: what one client computes; it sees plain PyTrees, without a clients axis.
    - `*args`: PyTrees. Of a `Clients` in an argument, `fn` gets one client's value; everything
        else is at the server and is broadcast, and so are the traced server values that `fn`
        closes over. At least one `Clients` must be among them. Leaves that are no arrays go to
        `fn` as they are.
    - `weights`: one scalar for each client. A client of weight 0 contributes nothing: its float
        inputs and all its outputs are replaced by zeros, which also stops the cotangents that
        flow back into what was broadcast, even if its data or loss is NaN or infinite. Other
        weights change nothing here; give them to `reduce_mean` too.

    **Returns:**

    `Clients` of what `fn` returns. Python numbers among it become arrays, but for those that are
    fields of a module that passes through (a dropout rate). Raises a `ValueError` that names both
    leaves if cohort sizes differ, and a `TypeError` if `fn` returns a `Clients`.

    The computation is one call named `fed_map` in the jaxpr, and its derivatives are too.
    """
    named = [(f"argument {i} of client_map", arg) for i, arg in enumerate(args)]
    if weights is not None:
        require_weights("client_map", weights)
        named.append(("weights", weights))
    size = cohort_size_of(named)

    held, shared = eqx.partition(at_clients(args, size), is_array)
    leaves, structure = jtu.tree_flatten(held)
    returned: list[Any] = []
    hidden: list[Array] = []

    def one_client(*leaves: Array) -> list[Array]:
        own, sent = leaves[: structure.num_leaves], leaves[structure.num_leaves :]
        arguments = eqx.combine(jtu.tree_unflatten(structure, own), shared)
        substitutes = {id(value): leaf for value, leaf in zip(hidden, sent, strict=True)}
        result = (rebind(fn, substitutes) if substitutes else fn)(*arguments)
        arrays, rest = eqx.partition(_numbers_to_arrays(result, shared), is_array)
        flat, result_structure = jtu.tree_flatten(arrays)
        returned[:] = [result_structure, rest]
        return flat

    mesh = backends.ambient_mesh()
    if mesh is not None and backends.types_values(mesh):
        hidden += _typed_by_mesh(one_client, leaves, mesh)
        leaves += fed_broadcast(hidden, size)
    jaxpr, consts = _trace_one_client(one_client, leaves, mesh)
    closed_over = [i for i, const in enumerate(consts) if isinstance(const, Tracer)]
    leaves += fed_broadcast([consts[i] for i in closed_over], size)

    def run(*leaves: Array) -> Sequence[Any]:  # a literal that `fn` returns stays a Python number
        own, sent = leaves[: len(jaxpr.invars)], leaves[len(jaxpr.invars) :]
        captured = list(consts)
        for i, leaf in zip(closed_over, sent, strict=True):
            captured[i] = leaf
        return eval_jaxpr(jaxpr, captured, *own)

    def run_unless_weightless(weight: Array, *leaves: Array) -> Sequence[Array]:
        keep = weight.astype(bool)
        return [_mask(keep, out) for out in run(*(_mask_float(keep, x) for x in leaves))]

    if weights is None:
        outs = _fed_map(run, leaves, mesh)
    else:
        outs = _fed_map(run_unless_weightless, [padded(weights, size).value, *leaves], mesh)
    result_structure, rest = returned
    return as_clients(eqx.combine(jtu.tree_unflatten(result_structure, outs), rest), size)


def _fed_map(fn: Callable[..., Sequence[Array]], leaves: Sequence[Array], mesh: Any) -> Any:
    def fed_map(*leaves: Array) -> Sequence[Array]:
        return backends.map_clients(fn, leaves, mesh=mesh)

    if mesh is None and not any(isinstance(leaf, Tracer) for leaf in leaves):
        return fed_map(*leaves)  # eager: as `vmap` does, without compiling a new function a call
    return jax.jit(fed_map)(*leaves)


def _trace_one_client(fn: Callable[..., Any], leaves: Sequence[Any], mesh: Any) -> Any:
    """The jaxpr of one client, traced where it will run, and the values that it closes over."""
    traced: list[Any] = []

    def probe(*leaves: Array) -> list[Array]:
        traced[:] = [jax.make_jaxpr(fn)(*leaves)]
        return []

    jax.eval_shape(lambda *leaves: backends.map_clients(probe, leaves, mesh=mesh), *leaves)
    return traced[0].jaxpr, traced[0].consts


def _typed_by_mesh(fn: Callable[..., Any], leaves: Sequence[Array], mesh: Any) -> list[Array]:
    """The values that `fn` closes over and that `shard_map` would refuse, found outside of it."""
    views = [backends.without_clients_axis(leaf, mesh) for leaf in leaves]
    try:
        _, consts = _trace_one_client(fn, views, None)
    except (NotImplementedError, ValueError):
        return []  # `fn` needs to be inside of `shard_map`, where it is traced next
    return [c for c in consts if isinstance(c, jax.Array) and not jax.typeof(c).sharding.mesh.empty]


def _mask(keep: Bool[Array, ""], x: Array) -> Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x  # a PRNG key has no zero
    return jnp.where(keep, x, jnp.zeros_like(x))


def _mask_float(keep: Bool[Array, ""], x: Array) -> Array:
    return _mask(keep, x) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _numbers_to_arrays(result: Any, shared: Any) -> Any:
    passed_on = {id(leaf) for leaf in jtu.tree_leaves(shared)}

    def convert(path: jtu.KeyPath, leaf: Any) -> Any:
        if is_clients(leaf):
            where = jtu.keystr(path) or "the top"
            raise TypeError(
                f"The function given to client_map returns a Clients at {where}; a client holds "
                "plain values, so return its `.value` or reduce it first."
            )
        if not is_number(leaf) or (is_field(path) and id(leaf) in passed_on):
            return leaf
        return jnp.asarray(leaf)

    return jtu.tree_map_with_path(convert, result, is_leaf=is_clients)
