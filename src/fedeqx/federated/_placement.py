"""Placements: which values live on the clients, and which on the server."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

T = TypeVar("T")
S = TypeVar("S")

CLIENTS: Final = "clients"
"""The name of the clients placement, and of the mesh axis that carries it."""

SERVER: Final = "server"
"""The name of the server placement."""


def is_array(leaf: Any) -> bool:
    """Whether a leaf carries data: an array, a tracer, or the shape and dtype of one."""
    return eqx.is_array(leaf) or isinstance(leaf, np.generic | jax.ShapeDtypeStruct)


def as_array(leaf: Any) -> jax.Array:
    """A leaf as a JAX array. One that is such stays the same object, which `asarray` of a tracer
    does not, since a backend may know more of it than its value."""
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def is_clients(node: Any) -> bool:
    return isinstance(node, Clients)


def describe(leaf: Any) -> str:
    """A leaf as an error message names it: `float32[8,3]`, or its Python type."""
    if is_array(leaf):
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    return f"a Python {type(leaf).__name__}"


@final
class Clients(eqx.Module, Generic[T]):
    """A value that every client of a cohort holds: one PyTree a client, stacked.

    As an annotation, `Clients[T]` says what ONE client holds; the cohort size is not part of it.
    `Clients` is itself a PyTree, so every JAX transformation sees its leaves. Leaves that are no
    arrays (activation functions, strings, a number that is a field of a module) are shared by all
    clients and pass through unchanged.

    **Arguments:**

    - `value`: a PyTree in which each array leaf has a leading axis of the cohort size.

    Raises a `ValueError` if the leading axes differ or one is missing, and a `TypeError` for a
    Python number that is no field, or a nested `Clients`; both name the leaf.

    ```python
    >>> x = Clients({"a": jnp.zeros((8, 3))})  # 8 clients, each with 3 numbers
    >>> x.size
    8

    ```
    """

    value: T

    def __check_init__(self):
        find_cohort_size([("", self)])  # checks every leaf on its way

    @property
    def size(self) -> int:
        """The cohort size: how many clients hold this value. Static, also under `jit`.

        Raises a `ValueError` where no leaf is an array, since then nothing says how many.
        """
        return cohort_size_of([("", self)])

    @staticmethod
    def stack(trees: Sequence[S]) -> "Clients[S]":
        """Makes one `Clients` of single clients' trees, all of one structure and shape.

        **Arguments:**

        - `trees`: one PyTree a client, at least one. Arrays and Python numbers are stacked on a
            new leading axis; other leaves must be equal in all trees and are kept once.

        **Returns:**

        A `Clients` of size `len(trees)`; NumPy in, NumPy out. Raises a `ValueError` that names
        the leaf and the client where structures, shapes or shared leaves differ.
        """
        if len(trees) == 0:
            raise ValueError("Clients.stack got no trees; a cohort needs at least one client.")
        reference = jtu.tree_structure(trees[0])
        for i, tree in enumerate(trees):
            if jtu.tree_structure(tree) != reference:
                raise ValueError(
                    "Clients.stack needs trees of one structure.\n"
                    f"  client 0: {reference}\n  client {i}: {jtu.tree_structure(tree)}"
                )
        return Clients(jtu.tree_map_with_path(_stack_leaf, trees[0], *trees[1:]))

    def __iter__(self) -> Iterator[T]:
        """Iterates over the single clients' trees."""
        value = map_arrays(_gathered, self.value)
        for i in range(self.size):
            yield map_arrays(lambda leaf, i=i: leaf[i], value)


def _gathered(leaf: Any) -> Any:
    """An array that can be indexed by client: an explicit mesh axis over the clients forbids it."""
    sharding = jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None
    if sharding is None or len(sharding.spec) == 0 or sharding.spec[0] is None:
        return leaf
    replicated = PartitionSpec(None, *sharding.spec[1:])
    return jax.sharding.reshard(leaf, NamedSharding(sharding.mesh, replicated))


def _stack_leaf(path: jtu.KeyPath, *leaves: Any) -> Any:
    name = jtu.keystr(path) or "the tree"
    if all(is_array(leaf) or is_number(leaf) for leaf in leaves):
        found = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
        for i, one in enumerate(found):
            if one != found[0]:
                raise ValueError(
                    f"Clients.stack: {name} is {found[0][1]}{list(found[0][0])} at client 0 and "
                    f"{one[1]}{list(one[0])} at client {i}; clients' leaves must agree."
                )
        numpy = all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves)
        return np.stack(leaves) if numpy else jnp.stack([jnp.asarray(leaf) for leaf in leaves])
    for i, leaf in enumerate(leaves):
        arrays = is_array(leaf), is_array(leaves[0])
        if not (all(arrays) or leaf is leaves[0] or (not any(arrays) and leaf == leaves[0])):
            raise ValueError(
                f"Clients.stack: {name} must be an array for all clients, or the same for all, but "
                f"is {leaves[0]!r} at client 0 and {leaf!r} at client {i}."
            )
    return leaves[0]


def cohort_size_of(named: Sequence[tuple[str, Any]]) -> int:
    """The one cohort size of all `Clients` in named trees; the error names both leaves."""
    size = find_cohort_size(named)
    if size is None:
        raise ValueError(
            "No array here says how many clients there are; pass a value of the cohort, or name "
            "the number with `broadcast(tree, clients=n)`."
        )
    return size


def find_cohort_size(named: Sequence[tuple[str, Any]]) -> int | None:
    """The same, or `None` where there is no array at the clients."""
    first: tuple[str, int] | None = None
    for name, tree in named:
        for path, node in jtu.tree_leaves_with_path(tree, is_leaf=is_clients):
            if not is_clients(node):
                continue
            for inner, leaf in jtu.tree_leaves_with_path(node.value, is_leaf=is_clients):
                where = f"{name}{jtu.keystr(path)}.value{jtu.keystr(inner)}"
                size = _leading_axis(where, inner, leaf)
                if size is None:
                    continue
                if first is None:
                    first = (where, size)
                elif size != first[1]:
                    raise ValueError(
                        f"One cohort size is needed, but {first[0]} has {first[1]} clients and "
                        f"{where} has {size}. The leading axis of each leaf counts the clients."
                    )
    return None if first is None else first[1]


def is_number(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic)


def is_field(path: jtu.KeyPath) -> bool:
    """Whether a leaf belongs to a module or a named tuple: a number there is part of what it is."""
    return any(isinstance(key, jtu.GetAttrKey) for key in path)


def _leading_axis(where: str, path: jtu.KeyPath, leaf: Any) -> int | None:
    if is_clients(leaf):
        raise TypeError(f"{where} is a Clients inside a Clients; placements do not nest here.")
    if is_number(leaf) and not is_field(path):
        raise TypeError(
            f"{where} is {describe(leaf)} ({leaf!r}) and has no clients axis. Give each client its "
            "own with `jnp.full(n, ...)`, or keep it on the server, outside of Clients."
        )
    if not is_array(leaf):
        return None
    if len(leaf.shape) == 0:
        raise ValueError(
            f"{where} is {describe(leaf)} and has no clients axis; `broadcast` gives a server "
            "value to the clients."
        )
    if leaf.shape[0] == 0:
        raise ValueError(f"{where} is {describe(leaf)}: a cohort needs at least one client.")
    return leaf.shape[0]


class _ServerPlaced:
    """The mark that `Server[...]` leaves in an annotation."""

    def __repr__(self) -> str:
        return "placed at the server"


SERVER_MARK: Final = _ServerPlaced()

Server = Annotated[T, SERVER_MARK]
"""`Server[T]` annotates a value of type `T` that the server holds. For a type checker it is `T`."""


def map_arrays(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `fn` to the array leaves of a tree and leaves all others as they are."""
    return jtu.tree_map(lambda leaf: fn(leaf) if is_array(leaf) else leaf, tree)
