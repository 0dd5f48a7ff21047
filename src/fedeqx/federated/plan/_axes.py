"""The proof that nothing but communication mixes clients, and that a plan holds at any cohort size.

A program is traced at two cohort sizes. Where shapes differ, there is the clients axis; all else
must be the same. Each operation outside of client work must then act on each client by itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Literal, jaxprs_in_params

from ._errors import PlanError, where
from ._flat import COMMUNICATION, Atom, Flat, Placement, aval_of, is_client_call
from ._separate import keeps_clients_apart

SIZES = (2, 3)


def check_axes(flats: Sequence[Flat], names: Sequence[str]) -> None:
    """Raises a `PlanError` for the first operation that mixes clients.

    **Arguments:**

    - `flats`: the program at each of `SIZES`.
    - `names`: of its outputs.
    """
    first, second = flats
    if len(first.outputs) != len(second.outputs):
        raise PlanError(_another_program("it has another number of results"))
    for one, two in zip(first.equations, second.equations, strict=False):
        _check_same(one, two)
        if one.primitive not in COMMUNICATION and not is_client_call(one):
            _check_apart(one, two, first)
    if len(first.equations) != len(second.equations):
        raise PlanError(_another_program("it has another number of operations"))
    values = [list(flat.constants.values()) for flat in flats]
    for one, two in zip(*values, strict=True):
        _check_same_value(one, two, "a constant")
    for name, one, two in zip(names, first.outputs, second.outputs, strict=True):
        axis = clients_axis(one, two)
        if first.placement(one) == Placement.CLIENTS and axis != 0:
            raise PlanError(f"The result {name} has its clients on axis {axis}; they belong on 0.")


def clients_axis(one: Atom, two: Atom) -> int | None:
    """Where a value has its clients axis, given the value at both sizes.

    Raises a `ValueError` if there are several, or if the axis holds something else too.
    """
    shapes = aval_of(one).shape, aval_of(two).shape
    if len(shapes[0]) != len(shapes[1]):
        raise ValueError
    axes = [i for i, sizes in enumerate(zip(*shapes, strict=True)) if sizes[0] != sizes[1]]
    if not axes:
        return None
    if len(axes) > 1 or tuple(shape[axes[0]] for shape in shapes) != SIZES:
        raise ValueError
    return axes[0]


def _check_apart(one: JaxprEqn, two: JaxprEqn, flat: Flat) -> None:
    try:
        before = [clients_axis(*pair) for pair in zip(one.invars, two.invars, strict=True)]
        after = [clients_axis(*pair) for pair in zip(one.outvars, two.outvars, strict=True)]
    except ValueError:
        raise PlanError(_mixes(one)) from None
    at_clients = any(flat.placement(v) == Placement.CLIENTS for v in one.outvars)
    if not at_clients and all(axis is None for axis in [*before, *after]):
        return  # the server's own
    if None in after or not keeps_clients_apart(one, before, after):
        raise PlanError(_mixes(one))


def _mixes(equation: JaxprEqn) -> str:
    if equation.primitive.name == "iota":
        return (
            f"{where(equation)} numbers the clients, which mixes the clients of a cohort: nobody "
            "but the server knows the order. Let each client's number come with its data."
        )
    return (
        f"{where(equation)} mixes the clients, or picks some of them, or is not known to keep them "
        "apart: what it returns would tell of single clients' values. Reduce with `reduce_sum`, "
        "`reduce_mean`, `reduce_max` or `reduce_min`, and do what each client does for itself in "
        "`client_map`."
    )


def _another_program(how: str) -> str:
    return (
        f"The program depends on the cohort size as a Python number: {how} at another cohort "
        "size. Use `cohort_size(x)`, which is a value of the program, instead of `x.size`; pass "
        "clients' values as arguments instead of closing over them; and do not loop over clients."
    )


def _check_same(one: JaxprEqn, two: JaxprEqn) -> None:
    at = where(one)
    if one.primitive is not two.primitive:
        raise PlanError(_another_program(f"{at} is {two.primitive.name}"))
    for a, b in zip(one.invars, two.invars, strict=True):
        if isinstance(a, Literal) and isinstance(b, Literal):
            _check_same_value(a.val, b.val, f"an operand of {at}")
    for (key, a), (_, b) in zip(_numbers(one), _numbers(two), strict=True):
        if not _equal(a, b):
            raise PlanError(_another_program(f"{key} of {at} is {a} at {SIZES[0]} and {b}"))
    if is_client_call(one) and one.effects:
        return  # `vmap` repeats a side effect for each client: nothing to compare
    for a, b in zip(_bodies(one), _bodies(two), strict=True):
        if len(a.eqns) != len(b.eqns):
            raise PlanError(_another_program(f"{at} has another number of operations"))
        for inner in zip(a.eqns, b.eqns, strict=True):
            _check_same(*inner)


def _numbers(equation: JaxprEqn) -> Iterator[tuple[str, Any]]:
    params = equation.params.items()
    own = equation.primitive in COMMUNICATION or equation.primitive.name == "fed_size"
    kept = (bool, int, float, complex, str)
    return ((k, v) for k, v in params if isinstance(v, kept) and not (own and k == "size"))


def _bodies(equation: JaxprEqn) -> list[Any]:
    return list(jaxprs_in_params(equation.params))


def _check_same_value(one: Any, two: Any, what: str) -> None:
    if isinstance(one, Tracer) or isinstance(two, Tracer) or one is two:
        return
    if np.shape(one) != np.shape(two) or not _equal(one, two):
        raise PlanError(_another_program(f"{what} has another value"))


def _equal(one: Any, two: Any) -> bool:
    """Of scalars and arrays, PRNG keys included; NaN is equal to itself."""
    same = (one == two) | ((one != one) & (two != two))
    return bool(same if isinstance(same, bool) else same.all())
