"""Comparing trees: structure, shapes, dtypes and values, with the path of a leaf that differs."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ._case import is_inexact, plain


def as_numpy(leaf: Any) -> np.ndarray:
    """The bits of a typed key, an extended float in float64, all else as it is."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return np.asarray(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    if is_inexact(leaf) and not np.iscomplexobj(array):
        return array.astype(np.float64)
    return array


def assert_matches(found: Any, expected: Any, *, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    """`found` has the structure, the shapes and the values of the oracle's `expected`.

    `Clients` are stripped from `found`, since oracles know only stacked trees. Dtypes are not
    compared, since oracles calculate in 64 bits.
    """
    found_leaves = jtu.tree_leaves_with_path(plain(found))
    expected_leaves = jtu.tree_leaves_with_path(plain(expected))
    assert [p for p, _ in found_leaves] == [p for p, _ in expected_leaves]
    for (path, x), (_, y) in zip(found_leaves, expected_leaves, strict=True):
        name = jtu.keystr(path)
        if not hasattr(x, "dtype"):
            assert x is y or x == y, name
            continue
        x, y = as_numpy(x), as_numpy(y)
        assert x.shape == y.shape, f"{name}: {x.shape} is not {y.shape}"
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=name)


def assert_same(found: Any, expected: Any, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Two results of JAX agree in structure, dtype, weak type and, to a tolerance, value.

    Either may be the result of `eval_shape`; then values are not compared.
    """
    assert jtu.tree_structure(found) == jtu.tree_structure(expected)
    for (path, x), y in zip(
        jtu.tree_leaves_with_path(found), jtu.tree_leaves(expected), strict=True
    ):
        name = jtu.keystr(path)
        if not hasattr(x, "dtype"):
            assert x is y or x == y, name
            continue
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        weak = [getattr(z, "weak_type", False) for z in (x, y)]
        assert weak[0] == weak[1], f"{name}: weak types {weak}"
        if not any(isinstance(z, jax.ShapeDtypeStruct) for z in (x, y)):
            np.testing.assert_allclose(as_numpy(x), as_numpy(y), rtol=rtol, atol=atol, err_msg=name)


def label(value) -> str:
    """A parameter as a test's name: short, and the same in every process (no addresses)."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:60]
