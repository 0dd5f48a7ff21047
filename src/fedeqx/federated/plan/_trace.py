"""Tracing a function at a cohort size of choice."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
from jax.extend.core import JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr, dce_rules

from .._placement import find_cohort_size
from ..backends import plan_scope
from ._boundary import Boundary
from ._errors import PlanError
from ._flat import COMMUNICATION, Flat


def inputs_of(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Boundary:
    """The arrays among the arguments, named as the function names them."""
    names = _parameters(fn, args, kwargs)

    def name(path: jtu.KeyPath) -> str:
        which, key, *rest = path
        head = names[key.idx] if isinstance(key, jtu.SequenceKey) else str(getattr(key, "key", key))
        del which
        return head + jtu.keystr(tuple(rest))

    if find_cohort_size([("args", args), ("kwargs", kwargs)]) is None:
        raise PlanError(
            "A plan needs clients' values among the arguments: wrap them in `Clients(tree)`. "
            f"Found: {', '.join([*names, *kwargs]) or 'no arguments'}."
        )
    return Boundary((args, kwargs), "The arguments", name)


def trace(fn: Callable[..., Any], inputs: Boundary, size: int) -> tuple[Flat, Boundary]:
    """The program at this cohort size, and what it returns."""
    returned: list[Boundary] = []

    def flat(*arrays: Any) -> list[Any]:
        args, kwargs = inputs.join(arrays)
        result = fn(*args, **kwargs)
        returned[:] = [Boundary(result, "The result", lambda path: "result" + jtu.keystr(path))]
        return returned[0].split(result)

    with plan_scope():
        closed = jax.make_jaxpr(flat)(*inputs.structs(size))
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return Flat(jaxpr, closed.consts, inputs.places), returned[0]


def _parameters(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # a callable that does not tell
        return [f"argument{i}" for i in range(len(args))]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(len(args) - len(names))]
    return names[: len(args)]


def _without_unused(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    """A communication of that which is used, and of no more."""
    equation: JaxprEqn = rest[-1]  # newer JAX has an argument before it
    if not any(used):
        return [False] * len(equation.invars), None
    kept = [i for i, use in enumerate(used) if use]
    return used, equation.replace(
        invars=[equation.invars[i] for i in kept], outvars=[equation.outvars[i] for i in kept]
    )


for _primitive in COMMUNICATION:
    dce_rules[_primitive] = _without_unused
