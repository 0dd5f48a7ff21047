"""What a function closes over, found and replaced: needed where JAX refuses to look for it.

Inside of `shard_map`, an operation on a value that is typed by an explicit mesh axis is an error
before any trace sees it. So there the values that a client function closes over are found by
tracing it outside, and then replaced in a copy of the function, wherever it holds them.
"""

import functools
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.tree_util as jtu


def rebind(obj: Any, substitutes: Mapping[int, Any]) -> Any:
    """A copy of a function, or of any PyTree, in which values are replaced by identity.

    Goes into closures, default arguments, partials, bound methods, jitted functions and the leaves
    of PyTrees such as Equinox modules; not into global variables.

    **Arguments:**

    - `obj`: what to copy; what holds no value to replace is returned as it is.
    - `substitutes`: `id(value) -> replacement`.
    """
    return _Rebinding(substitutes)(obj)


class _Rebinding:
    def __init__(self, substitutes: Mapping[int, Any]):
        self.substitutes = substitutes
        self.functions: dict[int, Any] = {}  # a recursive function closes over itself

    def __call__(self, obj: Any) -> Any:
        if id(obj) in self.substitutes:
            return self.substitutes[id(obj)]
        if isinstance(obj, types.FunctionType):
            return self._function(obj)
        if isinstance(obj, functools.partial):
            return functools.partial(
                self(obj.func),
                *map(self, obj.args),
                **{name: self(value) for name, value in obj.keywords.items()},
            )
        if isinstance(obj, types.MethodType):
            return types.MethodType(self(obj.__func__), self(obj.__self__))
        if isinstance(getattr(obj, "__wrapped__", None), types.FunctionType):
            inner = self(obj.__wrapped__)  # jitted, or with a custom derivative
            return obj if inner is obj.__wrapped__ or not _is_jitted(obj) else inner
        leaves, structure = jtu.tree_flatten(obj)
        if len(leaves) == 1 and leaves[0] is obj:
            return obj
        return jtu.tree_unflatten(structure, [self(leaf) for leaf in leaves])

    def _function(self, fn: types.FunctionType) -> types.FunctionType:
        if id(fn) in self.functions:
            return self.functions[id(fn)]
        cells = fn.__closure__ or ()
        copies = tuple(types.CellType() for _ in cells)
        copy = types.FunctionType(
            fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, copies or None
        )
        copy.__kwdefaults__, copy.__dict__ = fn.__kwdefaults__, dict(fn.__dict__)
        self.functions[id(fn)] = copy
        changed = False
        for cell, new in zip(cells, copies, strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            new.cell_contents = self(held)
            changed |= new.cell_contents is not held
        if fn.__defaults__:
            copy.__defaults__ = tuple(map(self, fn.__defaults__))
            changed |= any(
                a is not b for a, b in zip(copy.__defaults__, fn.__defaults__, strict=True)
            )
        if not changed:
            self.functions[id(fn)] = fn
            return fn
        return copy


def _is_jitted(obj: Any) -> bool:
    return isinstance(obj, type(jax.jit(lambda: None)))
