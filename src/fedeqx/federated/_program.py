"""program: checks placements, shapes and one cohort size at the boundary of a function."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from . import backends
from ._check import check_values

P = ParamSpec("P")
R = TypeVar("R")


@overload
def program(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def program(*, mesh: backends.AnyMesh) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def program(fn=None, /, *, mesh=None):
    """Declares a function to be a federated program, and holds its calls to its annotations.

    `Clients[T]` says that one client holds a `T`, `Server[T]` that the server does; any other
    annotation is that of a server value, and what has none is not checked. Named axes of
    `jaxtyping` annotations bind over all arguments and the result, and so does the cohort size. The
    checks run while JAX traces, and so cost nothing in the compiled program.

    **Arguments:**

    - `fn`: any function.
    - `mesh`: a mesh whose `"clients"` axis carries the cohort in this program, whatever mesh is
        set around the call.

    **Returns:**

    A function of the same signature. Calling it raises a `TypeError` for a wrong placement, type,
    shape or dtype and a `ValueError` for cohort sizes that differ; both name the program, the
    argument and the leaf, what was declared and what was found.

    On a mesh (`jax.set_mesh`, `with mesh:`, or `mesh=`) with an axis `"clients"`, each device of
    that axis runs its share of the clients. A mesh without such an axis runs replicated: every
    device computes every client.

    ```python
    @fx.program
    def federated_loss(
        model: fx.Server[eqx.Module], data: fx.Clients[Float[Array, "batch features"]]
    ) -> fx.Server[Float[Array, ""]]:
        return fx.reduce_mean(fx.client_map(loss, model, data))
    ```
    """
    if fn is None:
        return functools.partial(_program, mesh=mesh)
    return _program(fn, mesh)


def _program(fn: Callable[P, R], mesh: backends.AnyMesh | None) -> Callable[P, R]:
    signature = inspect.signature(fn)
    name = getattr(fn, "__qualname__", repr(fn))

    @functools.cache
    def annotations() -> dict[str, Any]:
        return _resolve(fn, name)

    @functools.wraps(fn)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = list(_named_arguments(signature, args, kwargs, annotations()))
        check_values(name, given)
        with backends.mesh_scope(mesh):
            result = fn(*args, **kwargs)
        if "return" in annotations():
            check_values(name, [*given, ("the result", result, annotations()["return"])])
        return result

    return checked


def _named_arguments(signature, args, kwargs, annotations):
    """Yields (name, value, annotation) of each argument; starred ones item by item."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        annotation = annotations.get(name, Any)
        kind, default = signature.parameters[name].kind, signature.parameters[name].default
        if default is None and value is default:
            continue  # `x: T = None` is how many write an optional argument
        if kind is inspect.Parameter.VAR_POSITIONAL:
            for i, item in enumerate(value):
                yield f"argument '{name}[{i}]'", item, annotation
        elif kind is inspect.Parameter.VAR_KEYWORD:
            for key, item in value.items():
                yield f"argument '{key}'", item, annotation
        else:
            yield f"argument '{name}'", value, annotation


def _resolve(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    """The annotations as objects. Names local to the function that defines `fn` are found too."""
    inner = inspect.unwrap(fn)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__  # a callable module
    names = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
    try:
        return inspect.get_annotations(inner, locals=dict(names), eval_str=True)
    except NameError as e:
        raise NameError(
            f"The annotations of program {name!r} cannot be read: {e}. Placements are checked at "
            "run time, so the names in them must exist then; drop `from __future__ import "
            "annotations` from this module, or define the name at module level.",
            name=e.name,
        ) from e
