"""What a registered federated program is: the program, sample arguments, an independent oracle."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

import fedeqx as fx


@dataclasses.dataclass(frozen=True)
class Case:
    """One federated program, with what is needed to run and to judge it under any backend.

    - `make(clients, rng)`: NumPy arguments for a cohort of that size, `Clients` where they belong.
    - `oracle`: the same function as a NumPy loop over clients. It gets the arguments in float64 and
        with each `Clients` replaced by its stacked tree, and returns its result in the same form.
    - `differentiable`: the positions of the arguments with respect to which to differentiate.
    - `plannable`: whether a plan of it exists, right at any cohort size.
    - `forward`: whether forward-mode derivatives exist (they do not through a `custom_vjp`).
    """

    name: str
    program: Callable[..., Any]
    make: Callable[[int, np.random.Generator], tuple[Any, ...]]
    oracle: Callable[..., Any]
    differentiable: tuple[int, ...]
    forward: bool = True
    plannable: bool = True
    rtol: float = 2e-5

    def sample(self, clients: int = 7, seed: int = 0) -> tuple[Any, ...]:
        """Arguments as JAX arrays in 32 bits, the same ones for the same size and seed."""
        return to_jax(self.make(clients, np.random.default_rng([seed, clients])))

    def expected(self, arguments: tuple[Any, ...]) -> Any:
        """What the program must return for these arguments, in float64 and without `Clients`."""
        return self.oracle(*to_float64(arguments))

    def of_floats(self, arguments: tuple[Any, ...]) -> tuple[Callable[[Any], Any], Any]:
        """The program as a function of its differentiable leaves, and these leaves.

        Only the inexact leaves of its result are returned, as a list.
        """
        inexact, rest = split(arguments, self.differentiable)

        def fn(inexact: Any) -> list[Any]:
            return floats(self.program(*eqx.combine(inexact, rest)))

        return fn, inexact

    def oracle_derivative(self, arguments: tuple[Any, ...], tangents: Any) -> list[np.ndarray]:
        """The directional derivative of the oracle, by central differences in float64."""
        inexact, rest = split(to_float64(arguments), self.differentiable)
        tangents = to_float64(tangents)
        eps = 1e-6

        def at(step: float) -> list[Any]:
            moved = jtu.tree_map(lambda x, t: x + step * t, inexact, tangents)
            return floats(self.oracle(*eqx.combine(moved, rest)))

        return [(hi - lo) / (2 * eps) for hi, lo in zip(at(eps), at(-eps), strict=True)]


def is_inexact(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def floats(tree: Any) -> list[Any]:
    return [leaf for leaf in jtu.tree_leaves(tree) if is_inexact(leaf)]


def split(arguments: tuple[Any, ...], differentiable: tuple[int, ...]) -> tuple[Any, Any]:
    """The inexact leaves of the differentiable arguments, and all other leaves."""
    which = tuple(
        jtu.tree_map(lambda leaf, on=i in differentiable: on and is_inexact(leaf), argument)
        for i, argument in enumerate(arguments)
    )
    return eqx.partition(arguments, which)


def to_jax(tree: Any) -> Any:
    """NumPy leaves as JAX arrays, 64-bit ones in 32 bits; functions and keys stay as they are."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray | np.generic):
            return leaf
        narrow = {"float64": "float32", "int64": "int32", "complex128": "complex64"}
        return jnp.asarray(np.asarray(leaf).astype(narrow.get(leaf.dtype.name, leaf.dtype)))

    return jtu.tree_map(convert, tree)


def plain(tree: Any) -> Any:
    """Each `Clients` replaced by its stacked tree."""
    return jtu.tree_map(
        lambda node: node.value if isinstance(node, fx.Clients) else node,
        tree,
        is_leaf=lambda node: isinstance(node, fx.Clients),
    )


def to_float64(tree: Any) -> Any:
    """As NumPy for an oracle: floats in float64, keys left alone, no `Clients`."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            return leaf
        array = np.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return array.astype(np.float64)
        return array.astype(np.complex128) if np.iscomplexobj(array) else array

    return jtu.tree_map(convert, plain(tree))
