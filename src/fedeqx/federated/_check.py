"""Does a value fit its annotation? The walk behind `program`.

The walk goes down an annotation and a value together, so that an error can name one leaf. Shapes
are matched by `jaxtyping`, which binds axis names in the memo of the enclosing `jaxtyped` context.
`no_type_check` keeps its import hook from giving these functions, when they are tested, a memo of
their own: axis names would then bind in each call anew, and checks across arguments pass silently.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, no_type_check

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import AbstractArray, PyTree, jaxtyped
from jaxtyping._storage import get_shape_memo, set_shape_memo  # no public name takes a binding back

from ._placement import (
    SERVER_MARK,
    Clients,
    cohort_size_of,
    describe,
    is_array,
    is_clients,
    is_number,
)

ArrayTypes = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, jax.ShapeDtypeStruct)


class _MisfitError(Exception):
    """A leaf that does not fit: where it is, what was declared, what was found."""

    def __init__(self, where: str, declared: Any, found: str, hint: str = ""):
        super().__init__(where, declared, found, hint)
        self.where, self.declared, self.found, self.hint = where, declared, found, hint


@no_type_check
def check_values(program: str, named: Sequence[tuple[str, Any, Any]]) -> None:
    """Raises unless each (name, value, annotation) fits, all together."""
    with jaxtyped("context"):
        for name, value, annotation in named:
            try:
                _check(name, value, annotation, at_clients=False)
            except _MisfitError as e:
                declared = f"{_show(annotation)}"
                if e.declared is not annotation:
                    declared += f", so {_show(e.declared)} here"
                raise TypeError(
                    f"{program}: {e.where} does not fit.\n"
                    f"  declared: {declared}\n"
                    f"  found:    {e.found}{e.hint}"
                ) from None
    at_clients = [(name, value) for name, value, _ in named if _holds_clients(value)]
    try:
        if at_clients:
            cohort_size_of(at_clients)
    except (TypeError, ValueError) as e:
        raise type(e)(f"{program}: {e}") from None


def _holds_clients(value: Any) -> bool:
    return any(is_clients(node) for node in jtu.tree_leaves(value, is_leaf=is_clients))


@no_type_check
def _check(where: str, value: Any, declared: Any, *, at_clients: bool) -> None:
    """`at_clients`: arrays in `value` have a clients axis, which `declared` does not mention."""
    origin, args = get_origin(declared), get_args(declared)
    if declared is Any or isinstance(declared, TypeVar) or declared is inspect.Parameter.empty:
        return
    if origin is Annotated:
        if SERVER_MARK in args[1:]:
            if at_clients:
                raise _MisfitError(where, declared, "a value inside Clients[...]")
            _forbid_clients(where, value, declared)
        _check(where, value, args[0], at_clients=at_clients)
    elif declared is Clients or origin is Clients:
        if not is_clients(value):
            raise _MisfitError(
                where, declared, _describe(value) + ", which is at the server", _WRAP
            )
        _check(f"{where}.value", value.value, args[0] if args else Any, at_clients=True)
    elif origin in (Union, types.UnionType):
        _check_union(where, value, declared, args, at_clients)
    elif isinstance(declared, type) and issubclass(declared, AbstractArray):
        _check_array(where, value, declared, at_clients)
    elif isinstance(declared, type) and issubclass(declared, PyTree):
        _check_pytree(where, value, declared, at_clients)
    elif isinstance(origin, type) and issubclass(origin, Sequence | Mapping):
        _check_container(where, value, declared, origin, args, at_clients)
    elif _is_namedtuple(declared):
        _check_class(where, value, declared, at_clients)
        for field, hint in typing.get_type_hints(declared, include_extras=True).items():
            _check(f"{where}.{field}", getattr(value, field), hint, at_clients=at_clients)
    elif declared is jax.Array:
        if not isinstance(value, ArrayTypes):
            raise _MisfitError(where, declared, _describe(value))
    elif not at_clients and origin is None and is_clients(value) and declared is not object:
        raise _MisfitError(where, declared, _describe(value), _REDUCE)
    elif origin is Literal:
        if value not in args:
            raise _MisfitError(where, declared, repr(value))
    else:
        # Of a generic alias the class; of what is no class (a protocol, a forward reference as in
        # Optax's recursive `OptState`) nothing can be said, and its placement is checked above.
        known = type(None) if declared is None else origin or declared
        if isinstance(known, type):
            _check_class(where, value, known, at_clients)


_WRAP = (
    "\n  `Clients(tree)` says that the leading axis counts the clients; `broadcast` sends a server "
    "value to them."
)
_REDUCE = "\n  Reduce it (`reduce_mean`, `reduce_sum`) to bring it to the server."


@no_type_check
def _check_union(where, value, declared, options, at_clients) -> None:
    closest: _MisfitError | None = None
    for option in options:
        bound = [memo.copy() for memo in get_shape_memo()]
        try:
            return _check(where, value, option, at_clients=at_clients)
        except _MisfitError as e:
            set_shape_memo(*bound)  # an option that fails binds no axis
            if closest is None or len(e.where) > len(closest.where):
                closest = e
    if closest is not None and closest.where != where:
        raise closest
    raise _MisfitError(where, declared, _describe(value, at_clients))


@no_type_check
def _check_array(where: str, value: Any, declared: Any, at_clients: bool) -> None:
    if is_clients(value):
        raise _MisfitError(where, declared, _describe(value), _REDUCE)
    if not isinstance(value, ArrayTypes):
        raise _MisfitError(where, declared, _describe(value))
    aval = jax.eval_shape(lambda x: x, value)
    shape = aval.shape[1:] if at_clients else aval.shape
    view = jax.ShapeDtypeStruct(shape, aval.dtype)
    reason = _any_array(declared).__instancecheck_str__(view)
    if reason:
        # What is wrong with a dtype is plain to see; that an axis has two sizes is not.
        hint = "" if "has dtype" in reason else f"\n  {reason.rstrip('.')}"
        raise _MisfitError(where, declared, _describe(value, at_clients), hint)


@functools.lru_cache(maxsize=1024)
def _any_array(declared: Any) -> Any:
    """The same shape and dtype, for NumPy arrays, tracers and shapes alike."""
    return declared.dtype[Any, declared.dim_str]


@no_type_check
def _check_pytree(where: str, value: Any, declared: Any, at_clients: bool) -> None:
    leaf_type = getattr(declared, "leaftype", Any)
    for path, leaf in jtu.tree_leaves_with_path(value, is_leaf=is_clients):
        _check(where + jtu.keystr(path), leaf, leaf_type, at_clients=at_clients)


@no_type_check
def _check_container(where, value, declared, origin, args, at_clients) -> None:
    if not isinstance(value, origin):
        raise _MisfitError(where, declared, _describe(value, at_clients))
    if _is_mapping(origin):
        items = [(f"{where}[{key!r}]", item, args[1]) for key, item in value.items()]
    elif origin is not tuple or (len(args) == 2 and args[1] is Ellipsis):
        items = [(f"{where}[{i}]", item, args[0]) for i, item in enumerate(value)]
    else:
        hints = () if args == ((),) else args
        if len(hints) != len(value):
            raise _MisfitError(where, declared, f"a tuple of {len(value)} items")
        items = [
            (f"{where}[{i}]", v, hint) for i, (v, hint) in enumerate(zip(value, hints, strict=True))
        ]
    for name, item, hint in items:
        _check(name, item, hint, at_clients=at_clients)


@no_type_check
def _check_class(where: str, value: Any, declared: type, at_clients: bool) -> None:
    # A traced number is still what its annotation calls a number, and an int will do for a float.
    if declared in (bool, int, float, complex) and is_array(value):
        if len(value.shape) == int(at_clients):
            return
        raise _MisfitError(where, declared, _describe(value, at_clients))
    accepted = {float: (float, int), complex: (complex, float, int)}.get(declared, declared)
    try:
        fits = isinstance(value, accepted)
    except TypeError:  # a protocol that is not checkable at run time
        return
    if not fits:
        raise _MisfitError(where, declared, _describe(value))


@no_type_check
def _forbid_clients(where: str, value: Any, declared: Any) -> None:
    for path, node in jtu.tree_leaves_with_path(value, is_leaf=is_clients):
        if is_clients(node):
            raise _MisfitError(where + jtu.keystr(path), declared, _describe(node), _REDUCE)


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_namedtuple(declared: Any) -> bool:
    return (
        isinstance(declared, type) and issubclass(declared, tuple) and hasattr(declared, "_fields")
    )


def _show(annotation: Any) -> str:
    if get_origin(annotation) is Annotated and SERVER_MARK in get_args(annotation)[1:]:
        return f"Server[{_show(get_args(annotation)[0])}]"
    if get_origin(annotation) is Clients:
        return f"Clients[{_show(get_args(annotation)[0])}]"
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return f"{annotation.dtype.__name__}[Array, {annotation.dim_str!r}]"
    return getattr(annotation, "__name__", None) or repr(annotation).replace("typing.", "")


def _describe(value: Any, at_clients: bool = False) -> str:
    if is_clients(value):
        inner = value.value
        one = describe(inner) if is_array(inner) else f"of a {type(inner).__name__}"
        return f"Clients {one}, a value of {value.size} clients"
    if at_clients and is_array(value) and len(value.shape) > 0:
        one = describe(jax.ShapeDtypeStruct(value.shape[1:], value.dtype))
        return f"{one} for one client, {describe(value)} stacked"
    if is_array(value) or is_number(value) or value is None:
        return describe(value) if value is not None else "None"
    if dataclasses.is_dataclass(value) or isinstance(value, tuple | list | dict):
        leaves = ", ".join(describe(leaf) for leaf in jtu.tree_leaves(value)[:4])
        return f"a {type(value).__name__} of {leaves}" if leaves else f"a {type(value).__name__}"
    return f"a {type(value).__name__}"
