"""Where a federated operation runs: one file a backend, each with the same functions.

They act on plain arrays whose leading axis is the clients axis. On a mesh that axis is padded to a
multiple of the devices; `pad` and `cut` go between the two lengths, and `size` is always the number
of real clients.
"""

from collections.abc import Callable, Sequence

from jaxtyping import Array

from . import _local, _mesh
from ._local import KINDS as KINDS
from ._local import accumulator_dtype as accumulator_dtype
from ._local import plan_scope as plan_scope
from ._local import planning as planning
from ._mesh import AnyMesh as AnyMesh
from ._mesh import ambient_mesh as ambient_mesh
from ._mesh import found_meshes as found_meshes
from ._mesh import mesh_scope as mesh_scope
from ._mesh import types_values as types_values
from ._mesh import without_clients_axis as without_clients_axis


def announce(xs: Sequence[Array], *, mesh: AnyMesh | None) -> list[Array]:
    """Operands of a communication, such that JAX knows where it will run."""
    return list(xs) if mesh is None else _mesh.announce(xs, mesh)


def broadcast(xs: Sequence[Array], *, size: int, mesh: AnyMesh | None) -> list[Array]:
    """Gives each client a copy of every array: `[...] -> [clients, ...]`."""
    if mesh is None:
        return _local.broadcast(xs, size)
    return _mesh.broadcast(xs, size, mesh)


def reduce(xs: Sequence[Array], *, kind: str, size: int, mesh: AnyMesh | None) -> list[Array]:
    """Reduces every array over the clients, by `"sum"`, `"max"` or `"min"`."""
    if mesh is None:
        return _local.reduce(xs, kind)
    return _mesh.reduce(xs, kind, size, mesh)


def map_clients(
    fn: Callable[..., Sequence[Array]], xs: Sequence[Array], *, mesh: AnyMesh | None
) -> Sequence[Array]:
    """Runs `fn`, one client's computation on flat arrays, for all clients."""
    if mesh is None:
        return _local.map_clients(fn, xs)
    return _mesh.map_clients(fn, xs, mesh)


def pad(x: Array, *, size: int, mesh: AnyMesh | None) -> Array:
    """`[size, ...] -> [clients, ...]`."""
    return x if mesh is None else _mesh.pad(x, size, mesh)


def cut(x: Array, *, size: int, mesh: AnyMesh | None) -> Array:
    """`[clients, ...] -> [size, ...]`."""
    return x if mesh is None else _mesh.cut(x, size, mesh)
