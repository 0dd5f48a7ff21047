"""For each operation outside of client work: does it act on each client by itself?

A rule is told where the clients axis is in each operand (`None` where there is none) and in each
result, and says whether the operation carries one to the other. What has no rule is refused.
"""

import math
from collections.abc import Callable, Sequence

from jax.extend.core import JaxprEqn

from ._flat import aval_of

Axes = Sequence[int | None]
Rule = Callable[[JaxprEqn, Axes, Axes], bool]


def keeps_clients_apart(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    rule = _RULES.get(equation.primitive.name)
    return rule is not None and rule(equation, before, after)


def _elementwise(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    """An operand without the axis is a scalar, or the same for all clients."""
    (to, *_) = after
    return all(
        axis == to or aval_of(v).ndim == 0 or (axis is None and aval_of(v).shape[to] == 1)
        for v, axis in zip(equation.invars, before, strict=True)
    )


def _positional(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    """Each operand becomes the result in its place."""
    return list(before) == list(after)


def _broadcast_in_dim(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    dimensions = equation.params["broadcast_dimensions"]
    # Without a clients axis before, every client gets the same.
    return before[0] is None or int(dimensions[before[0]]) == after[0]


def _iota(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    return equation.params["dimension"] != after[0]  # else it numbers the clients


def _transpose(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    return after[0] is not None and int(equation.params["permutation"][after[0]]) == before[0]


def _reshape(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    """The axis is a factor by itself if as many elements come before it as after."""
    (x,), (y,) = equation.invars[:1], equation.outvars
    if before[0] is None or after[0] is None:
        return False
    return math.prod(aval_of(x).shape[: before[0]]) == math.prod(aval_of(y).shape[: after[0]])


def _reduction(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    axes = equation.params["axes"] if "axes" in equation.params else equation.params["dimensions"]
    moved = [axis - sum(a < axis for a in axes) for axis in before if axis is not None]
    return not set(axes) & set(before) and all(
        axis == new for axis, new in zip(moved, after, strict=False)
    )


def _along(param: str) -> Rule:
    """An operation along one axis, which keeps all others."""

    def rule(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
        along = equation.params[param]
        others = [axis for axis in before if axis is not None]
        return along not in others and all(axis == others[0] for axis in [*others, *after])

    return rule


def _concatenate(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    return equation.params["dimension"] != after[0] and all(axis == after[0] for axis in before)


def _stack(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    (axis, *others), new = before, equation.params["axis"]
    return axis is not None and {axis, *others} == {axis} and after[0] == axis + (new <= axis)


def _unstack(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    axis, gone = before[0], equation.params["axis"]
    return axis not in (None, gone) and set(after) == {axis - (gone < axis)}


def _tile(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    axis = before[0]
    return axis is not None and equation.params["reps"][axis] == 1 and after[0] == axis


def _rev(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    return before[0] not in equation.params["dimensions"] and before[0] == after[0]


def _pad(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    axis = before[0]
    return (
        axis == after[0] and axis is not None and not any(equation.params["padding_config"][axis])
    )


def _slice(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    """The axis is kept whole: it is as long after as before, at both sizes."""
    strides = equation.params["strides"]
    return before[0] == after[0] and (strides is None or int(strides[after[0]]) == 1)


def _dynamic_slice(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    return before[0] == after[0] and all(axis is None for axis in before[1:])


def _dynamic_update_slice(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    return before[0] == before[1] == after[0] and all(axis is None for axis in before[2:])


def _dot_general(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    (contract, batch), sides = equation.params["dimension_numbers"], (0, 1)
    if any(before[side] in contract[side] for side in sides):
        return False
    if None not in before:  # each client's with its own: the axis is one of the batch
        at = [
            list(batch[side]).index(before[side]) for side in sides if before[side] in batch[side]
        ]
        return len(at) == 2 and at[0] == at[1] == after[0]
    side = 0 if before[1] is None else 1
    return before[side] not in batch[side]  # each client's with a constant


def _gather(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    """The axis is one that gather takes whole, or one of batching on both sides."""
    numbers, axis = equation.params["dimension_numbers"], before[0]
    if axis is None:
        return False
    if axis in numbers.operand_batching_dims:
        at = list(numbers.operand_batching_dims).index(axis)
        return int(numbers.start_indices_batching_dims[at]) == before[1]
    whole = axis not in numbers.start_index_map and axis not in numbers.collapsed_slice_dims
    return whole and before[1] is None and after[0] in numbers.offset_dims


def _scatter(equation: JaxprEqn, before: Axes, after: Axes) -> bool:
    """The reverse of gather: the axis is one of the window, whole, or one of batching."""
    numbers, (axis, indices, updates) = equation.params["dimension_numbers"], before
    if axis is None or updates is None or after[0] != axis:
        return False
    batching = list(numbers.operand_batching_dims)
    if axis in batching:
        places = range(aval_of(equation.invars[2]).ndim)
        rows = [i for i in places if i not in numbers.update_window_dims]
        at = numbers.scatter_indices_batching_dims[batching.index(axis)]
        return indices == at and rows[at] == updates
    gone = {*numbers.inserted_window_dims, *batching}
    window = [i for i in range(aval_of(equation.invars[0]).ndim) if i not in gone]
    whole = axis in window and axis not in numbers.scatter_dims_to_operand_dims
    return whole and indices is None and numbers.update_window_dims[window.index(axis)] == updates


_ELEMENTWISE_NAMES = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt
    ceil clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq
    eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag
    integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi ne neg
    nextafter not one_minus_square or polygamma population_count pow real reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh threefry2x32
    xor zeta random_clone
"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
# Keys: new axes are added behind those of the operand, or taken from there.
_LEADING = ["random_bits", "random_split", "random_wrap", "random_unwrap", "random_seed"]
_REDUCTIONS = ["sum", "max", "min", "prod", "and", "or", "xor"]

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_LEADING, _positional),
    **{f"reduce_{kind}": _reduction for kind in _REDUCTIONS},
    **dict.fromkeys(["argmax", "argmin"], _reduction),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], _along("axis")),
    "random_fold_in": _elementwise,
    "sort": _along("dimension"),
    "split": _along("axis"),
    "iota": _iota,
    "broadcast_in_dim": _broadcast_in_dim,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "rev": _rev,
    "pad": _pad,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "dot_general": _dot_general,
    "gather": _gather,
    **dict.fromkeys(["scatter", "scatter-add", "scatter-mul"], _scatter),
    **dict.fromkeys(["scatter-min", "scatter-max"], _scatter),
    "name": _positional,
    "optimization_barrier": _positional,
    "sharding_constraint": _positional,
}
