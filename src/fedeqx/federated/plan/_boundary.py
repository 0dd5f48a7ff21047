"""The arrays of a PyTree, each with its name and its place, apart from the rest of the tree."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._placement import as_array, describe, is_array, is_clients, is_field, is_number
from ._errors import PlanError
from ._flat import Placement


class Boundary:
    """What goes into a program, or comes out of it, as flat arrays.

    - `names`: of the arrays, by their paths.
    - `places`: `Placement.CLIENTS` for those in a `Clients`, else `Placement.SERVER`.
    - `avals`: their shapes and dtypes, at the clients those of ONE client.
    """

    def __init__(
        self, tree: Any, what: str, name: Callable[[jtu.KeyPath], str] = jtu.keystr
    ) -> None:
        self.what = what
        self.names: list[str] = []
        self.places: list[Placement] = []
        self.avals: list[jax.ShapeDtypeStruct] = []
        leaves, self._structure = jtu.tree_flatten(tree)
        self._rest: list[Any] = [None] * len(leaves)
        self._dynamic: list[int] = []
        for i, (path, leaf, at_clients) in enumerate(_placed_leaves(tree)):
            if not _is_dynamic(path, leaf, at_clients):
                self._rest[i] = leaf
                continue
            self._dynamic.append(i)
            self.names.append(name(path))
            self.places.append(Placement.CLIENTS if at_clients else Placement.SERVER)
            self.avals.append(_aval(leaf, at_clients))

    def key(self) -> Any:
        """What two trees have in common that this boundary fits; one of its own if unhashable."""
        avals = [(a.shape, a.dtype, a.weak_type) for a in self.avals]
        rest = [(type(leaf), leaf) for leaf in self._rest]
        key = self._structure, tuple(self.places), tuple(avals), tuple(rest)
        try:
            hash(key)
        except TypeError:
            return object()
        return key

    def structs(self, size: int) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the arrays for a cohort of this size."""
        return [
            aval if place == Placement.SERVER else _stacked(aval, size)
            for aval, place in zip(self.avals, self.places, strict=True)
        ]

    def split(self, tree: Any) -> list[jax.Array]:
        """The arrays of another tree; raises a `PlanError` where it does not fit this one."""
        leaves, structure = jtu.tree_flatten(tree)
        if structure != self._structure:
            raise PlanError(
                f"{self.what} must be of the structure that was planned.\n"
                f"  planned: {self._structure}\n  found:   {structure}"
            )
        dynamic = set(self._dynamic)
        for i, leaf in enumerate(leaves):
            if i not in dynamic and not _same(leaf, self._rest[i]):
                raise PlanError(
                    f"{self.what}: a leaf that is no array was {self._rest[i]!r} when the plan was "
                    f"made, and is {leaf!r} now. It is part of the program; make another plan."
                )
        arrays = [as_array(leaves[i]) for i in self._dynamic]
        for name, place, aval, array in zip(
            self.names, self.places, self.avals, arrays, strict=True
        ):
            shape = array.shape[1:] if place == Placement.CLIENTS else array.shape
            if (shape, array.dtype) != (aval.shape, aval.dtype):
                one = " at each client" if place == Placement.CLIENTS else ""
                raise PlanError(
                    f"{self.what}: {name} was planned as {describe(aval)}{one}, and is "
                    f"{describe(array)} now. Make another plan for it."
                )
        return arrays

    def join(self, arrays: Sequence[Any]) -> Any:
        """The tree again, with these arrays in it."""
        leaves = list(self._rest)
        for i, array in zip(self._dynamic, arrays, strict=True):
            leaves[i] = array
        return jtu.tree_unflatten(self._structure, leaves)


def _placed_leaves(tree: Any) -> Iterator[tuple[jtu.KeyPath, Any, bool]]:
    for path, node in jtu.tree_leaves_with_path(tree, is_leaf=is_clients):
        if is_clients(node):
            for inner, leaf in jtu.tree_leaves_with_path(node.value):
                yield (*path, *inner), leaf, True
        else:
            yield path, node, False


def _is_dynamic(path: jtu.KeyPath, leaf: Any, at_clients: bool) -> bool:
    """A number is a value of the program, as it is for JAX, unless it is a field of a module."""
    return is_array(leaf) or (is_number(leaf) and not at_clients and not is_field(path))


def _aval(leaf: Any, at_clients: bool) -> jax.ShapeDtypeStruct:
    if not is_array(leaf):
        leaf = jax.eval_shape(lambda: jnp.asarray(leaf))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=True)
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    weak = bool(getattr(leaf, "weak_type", False))
    shape = leaf.shape[1:] if at_clients else leaf.shape
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak)


def _stacked(aval: jax.ShapeDtypeStruct, size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype, weak_type=aval.weak_type)


def _same(one: Any, two: Any) -> bool:
    return one is two or bool(type(one) is type(two) and one == two)
