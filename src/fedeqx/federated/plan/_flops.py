"""Operations and floating-point operations of a stage, counted on its equations."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, jaxprs_in_params

from ._flat import aval_of

_FREE_NAMES = """
    broadcast_in_dim reshape squeeze expand_dims transpose slice dynamic_slice concatenate
    pad rev gather convert_element_type copy iota split select_n stop_gradient
    dynamic_update_slice optimization_barrier random_wrap random_unwrap
"""
_FREE = frozenset(_FREE_NAMES.split())


class Work(NamedTuple):
    """How much a stage computes.

    - `operations`: how many, loops counted as often as they run.
    - `flops`: additions and multiplications of floats, and one for each element of other functions.
    - `exact`: false if there is a loop that runs until a condition holds; it is counted once.
    """

    operations: int
    flops: int
    exact: bool = True

    def __add__(self, other: Any) -> "Work":
        return Work(
            self.operations + other.operations,
            self.flops + other.flops,
            self.exact and other.exact,
        )

    def times(self, n: int) -> "Work":
        return Work(n * self.operations, n * self.flops, self.exact)


def work_of(equations: Iterable[JaxprEqn]) -> Work:
    return sum(map(_work, equations), start=Work(0, 0))


def _work(equation: JaxprEqn) -> Work:
    name, params = equation.primitive.name, equation.params
    bodies = [work_of(body.eqns) for body in jaxprs_in_params(params)]
    if name == "cond":
        return max(bodies, key=lambda work: work.flops)
    if name == "while":
        return sum(bodies, start=Work(0, 0))._replace(exact=False)
    if name == "scan":
        return sum(bodies, start=Work(0, 0)).times(params["length"])
    if bodies and not name.startswith(("scatter", "reduce")):
        return sum(bodies, start=Work(0, 0))
    return Work(1, _flops(equation))


def _flops(equation: JaxprEqn) -> int:
    name, (out, *_) = equation.primitive.name, equation.outvars
    operand = aval_of(equation.invars[0]) if equation.invars else aval_of(out)
    if name == "dot_general":
        (contract, _), _ = equation.params["dimension_numbers"]
        terms = math.prod(operand.shape[axis] for axis in contract)
        return 2 * math.prod(aval_of(out).shape) * terms
    if name == "conv_general_dilated":
        numbers = equation.params["dimension_numbers"]
        kernel = aval_of(equation.invars[1]).shape
        per_output = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
        return 2 * math.prod(aval_of(out).shape) * per_output
    if name in _FREE or not jnp.issubdtype(aval_of(out).dtype, jnp.inexact):
        return 0
    whole = name.startswith(("reduce", "cum", "scatter", "arg"))
    return math.prod(operand.shape if whole else aval_of(out).shape)
