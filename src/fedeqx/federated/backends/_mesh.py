"""A device mesh with a `"clients"` axis: `shard_map` over that axis alone, `vmap` on each device.

All other mesh axes stay as they are (automatic or explicit), so that one client's model can
itself be sharded.

A cohort that the axis does not divide is padded, out of sight. Padding clients repeat the last
real one, so that a client function never meets made-up data; every reduction, and so every
cotangent of a broadcast, leaves them out; and what a program sees of a result has them cut off.
"""

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax._src.mesh import thread_resources  # no public name tells of a `with mesh:` block
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from .._placement import CLIENTS
from . import _local

AnyMesh = Mesh | AbstractMesh
T = TypeVar("T")

# A context of JAX's own: a function that is jitted inside of two programs is traced for each mesh.
_declared = jax.make_user_context(None)


# What programs declare while a plan is made of them, which itself uses no mesh.
_found: contextvars.ContextVar[dict[AnyMesh, None] | None] = contextvars.ContextVar(
    "meshes", default=None
)


def mesh_scope(mesh: AnyMesh | None) -> contextlib.AbstractContextManager[Any]:
    """Makes `mesh` the one that operations use until the block ends; `None` changes nothing."""
    found = _found.get()
    if mesh is not None and found is not None:
        found[mesh] = None
    return contextlib.nullcontext() if mesh is None else _declared(mesh)


@contextlib.contextmanager
def found_meshes() -> Iterator[dict[AnyMesh, None]]:
    """The meshes that programs declare within the block, in order."""
    meshes: dict[AnyMesh, None] = {}
    token = _found.set(meshes)
    try:
        yield meshes
    finally:
        _found.reset(token)


def ambient_mesh() -> AnyMesh | None:
    """The mesh whose `"clients"` axis carries the cohort, or `None` to run without one.

    Looked for in `program(mesh=...)`, then `jax.set_mesh`, then `with mesh:`. A mesh without that
    axis runs every client on every device; and on ONE client the axis is already spent. Raises a
    `ValueError` if the axis is already manual, or if the program's mesh is not the one that JAX
    was told to use.
    """
    if _local.planning() or _local.on_one_client():
        return None
    context = jax.sharding.get_abstract_mesh()
    mesh = _declared.value
    if mesh is None:
        mesh = context if not context.empty else thread_resources.env.physical_mesh
    elif not context.empty and mesh.abstract_mesh != context:
        if mesh.shape_tuple != context.shape_tuple:
            raise ValueError(
                f"The program's own mesh {_show(mesh)} is not the mesh that is set around its "
                f"call, {_show(context)}, and JAX computes on one mesh at a time. Leave out "
                "`program(mesh=...)`, or call the program outside of `jax.set_mesh`."
            )
        mesh = context  # the same but for the types of its axes, and JAX goes by the context's
    if mesh.empty or CLIENTS not in mesh.axis_names:
        return None
    if _axis_type(mesh) == AxisType.Manual:
        raise ValueError(
            f"The mesh axis {CLIENTS!r} cannot carry the cohort: an enclosing `shard_map` has made "
            "it manual. Call the federated program outside of that `shard_map`, or leave the axis "
            "out of its `axis_names`."
        )
    return mesh


def _show(mesh: AnyMesh) -> str:
    return f"({', '.join(f'{name}={size}' for name, size in mesh.shape_tuple)})"


def _axis_type(mesh: AnyMesh) -> AxisType:
    return mesh.axis_types[mesh.axis_names.index(CLIENTS)]


def as_typed(mesh: AnyMesh, xs: Sequence[Array]) -> AnyMesh:
    """The mesh, its axes automatic unless JAX or an operand takes them for explicit.

    Only `jax.set_mesh` makes JAX type all values by a mesh. A value typed by one that is merely
    passed on, or entered by `with mesh:`, is of no use to operations on the default device.
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return mesh
    if any(AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types for x in xs):
        return mesh
    types = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return mesh.update_axis_types(dict(zip(mesh.axis_names, types, strict=True)))
    return Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def types_values(mesh: AnyMesh) -> bool:
    """Whether JAX types all values by an explicit axis of the mesh, as it does under `set_mesh`."""
    return not jax.sharding.get_abstract_mesh().empty and AxisType.Explicit in mesh.axis_types


def without_clients_axis(x: Array, mesh: AnyMesh) -> jax.ShapeDtypeStruct:
    """The shape of `x`, its axis over the clients not sharded."""
    spec = PartitionSpec(None, *jax.typeof(x).sharding.spec[1:])
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))


def announce(xs: Sequence[Array], mesh: AnyMesh) -> list[Array]:
    """The operands of a primitive, such that an enclosing `jit` knows of the mesh's devices.

    It finds them in `jax.set_mesh` and in the equations that it traces, but does not look into the
    lowering of a primitive, and would compile for one device.
    """
    if not isinstance(mesh, Mesh) or not jax.sharding.get_abstract_mesh().empty:
        return list(xs)
    mesh = as_typed(mesh, xs)
    if _axis_type(mesh) == AxisType.Explicit:
        return list(xs)  # the type of an operand tells
    return [_constrain(x, mesh, PartitionSpec.UNCONSTRAINED) for x in xs]


def _constrain(x: Array, mesh: AnyMesh, first: Any) -> Array:
    """A hint to XLA on how dimension 0 is sharded; without `jit` it would be a copy."""
    if not isinstance(x, Tracer):
        return x
    spec = [first, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)][: x.ndim]
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))


def broadcast(xs: Sequence[Array], size: int, mesh: AnyMesh) -> list[Array]:
    mesh = as_typed(mesh, xs)
    each = padded_size(size, mesh) // mesh.shape[CLIENTS]
    spread = _over_clients(
        lambda *xs: _local.broadcast(xs, each), mesh, PartitionSpec(), PartitionSpec(CLIENTS)
    )
    return list(spread(*(_place(x, mesh, None) for x in xs)))


def reduce(xs: Sequence[Array], kind: str, size: int, mesh: AnyMesh) -> list[Array]:
    def local(*xs: Array) -> Any:
        if padded_size(size, mesh) != size:
            each = xs[0].shape[0]
            row = jax.lax.axis_index(CLIENTS) * each + jnp.arange(each)
            xs = tuple(where_row(row < size, x, identity(kind, x.dtype)) for x in xs)
        parts = _local.reduce(xs, kind)
        if kind == "sum":
            return jax.lax.psum(tuple(parts), CLIENTS)
        collective = {"max": jax.lax.pmax, "min": jax.lax.pmin}[kind]
        totals = collective(tuple(_to_ordered(x, kind) for x in parts), CLIENTS)
        return tuple(_from_ordered(t, x.dtype) for t, x in zip(totals, parts, strict=True))

    mesh = as_typed(mesh, xs)
    total = _over_clients(local, mesh, PartitionSpec(CLIENTS), PartitionSpec())
    return list(total(*(_place(x, mesh, CLIENTS) for x in xs)))


def map_clients(
    fn: Callable[..., Sequence[Array]], xs: Sequence[Array], mesh: AnyMesh
) -> Sequence[Array]:
    mesh = as_typed(mesh, xs)
    # `check_vma` would ask the client function to mark constants as varying over an axis that it
    # does not know of; all that goes in and comes out here varies over it by construction.
    mapped = _over_clients(
        lambda *xs: tuple(_local.map_clients(fn, xs)),
        mesh,
        PartitionSpec(CLIENTS),
        PartitionSpec(CLIENTS),
        check_vma=False,
    )
    return mapped(*(_place(x, mesh, CLIENTS) for x in xs))


def on_each_device(fn: Callable[..., Any], args: Any, mesh: AnyMesh) -> Any:
    """`fn` of each device's rows of the arrays in `args`, and the rows that it returns, as one."""
    mesh = as_typed(mesh, jax.tree.leaves(args))
    spec = PartitionSpec(CLIENTS)
    args = jax.tree.map(lambda x: _place(x, mesh, CLIENTS), args)
    return _over_clients(lambda args: fn(*args), mesh, spec, spec, check_vma=False)(args)


def trace_inside(fn: Callable[[], T], mesh: AnyMesh) -> T:
    """What `fn` returns when it is called where one device's clients run."""
    found: list[T] = []

    def probe(x: Array) -> Array:
        found[:] = [fn()]
        return x

    spec = PartitionSpec(CLIENTS)
    inside = _over_clients(probe, mesh, spec, spec, check_vma=False)
    jax.eval_shape(lambda: inside(_place(jnp.zeros(mesh.shape[CLIENTS]), mesh, CLIENTS)))
    return found[0]


def _over_clients(fn, mesh, in_specs, out_specs, check_vma: bool = True):
    return jax.shard_map(
        fn,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names={CLIENTS},
        check_vma=check_vma,
    )


def padded_size(size: int, mesh: AnyMesh) -> int:
    """The least multiple of the axis that holds the cohort."""
    devices = mesh.shape[CLIENTS]
    return -(-size // devices) * devices


# What was cut, by the identity of what is left: `id(cut) -> (weak reference to it, uncut)`.
_uncut: dict[int, tuple[weakref.ref[Any], Array]] = {}


def cut(x: Array, size: int, mesh: AnyMesh) -> Array:
    """Takes the padding off: `[padded, ...] -> [size, ...]`.

    The padded value is remembered for as long as the cut one lives: where the next operation is
    federated too, `pad` returns it, and XLA sees neither a cut nor a pad nor their communication.
    """
    if x.shape[0] == size:
        return x
    # An explicit axis cannot hold uneven shards in its type, so the cut value is not sharded.
    result = _place(x, as_typed(mesh, [x]), None)[:size]
    key = id(result)
    _uncut[key] = (weakref.ref(result, lambda _: _uncut.pop(key, None)), x)
    return result


def pad(x: Array, size: int, mesh: AnyMesh) -> Array:
    """Lengthens the clients axis to a multiple of the mesh axis by repeating the last client."""
    missing = padded_size(size, mesh) - x.shape[0]
    if missing == 0:
        return x
    uncut = _uncut.get(id(x))
    if uncut is not None and uncut[1].shape[0] == padded_size(size, mesh):
        return uncut[1]
    last = jax.lax.stop_gradient(x[-1:])  # the last client must not answer for its copies
    result = jnp.concatenate([x, jnp.broadcast_to(last, (missing, *x.shape[1:]))])
    mesh = as_typed(mesh, [x])
    # A cohort that does not divide the axis arrives on every device. Unless told so, XLA spreads
    # it before it is padded, and then needs communication to pad it.
    return _constrain(result, mesh, None) if _axis_type(mesh) == AxisType.Auto else result


def where_row(keep: Array, x: Array, fill: Any) -> Array:
    return jnp.where(keep.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.full_like(x, fill))


def identity(kind: str, dtype: Any) -> Any:
    """The value that leaves a reduction as it is."""
    if kind == "sum" or dtype == jnp.bool_:
        return dtype.type(kind == "min")
    lowest = kind == "max"
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype.type(-jnp.inf if lowest else jnp.inf)
    info = jnp.iinfo(dtype)
    return dtype.type(info.min if lowest else info.max)


def _to_ordered(x: Array, kind: str) -> Array:
    """Floats as integers of the same order, NaN before all others: XLA's collectives may lose it.

    IEEE floats are ordered as their bits are, but for negative ones, which are ordered backwards.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    info = jnp.iinfo(f"int{8 * x.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(x, info.dtype)
    bits = jnp.where(bits < 0, bits ^ info.dtype.type(info.max), bits)
    return jnp.where(jnp.isnan(x), info.dtype.type(info.max if kind == "max" else info.min), bits)


def _from_ordered(x: Array, dtype: Any) -> Array:
    if x.dtype == dtype:
        return x
    bits = jnp.where(x < 0, x ^ x.dtype.type(jnp.iinfo(x.dtype).max), x)
    return jax.lax.bitcast_convert_type(bits, dtype)


def _place(x: Array, mesh: AnyMesh, axis: str | None) -> Array:
    """Gives the clients axis to dimension 0, or to none, if its type is explicit; else XLA does."""
    if _axis_type(mesh) != AxisType.Explicit:
        return x
    spec = list(jax.typeof(x).sharding.spec)
    spec += [None] * (x.ndim - len(spec))
    without = [_without_clients(entry) for entry in spec]
    if axis is not None:
        without[0] = axis
    if without == spec:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*without)))


def _without_clients(entry: Any) -> Any:
    if isinstance(entry, tuple):
        rest = tuple(name for name in entry if name != CLIENTS)
        return rest or None
    return None if entry == CLIENTS else entry
