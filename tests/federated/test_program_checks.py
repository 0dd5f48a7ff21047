"""`program` holds calls to their annotations: placement, shape, dtype, one cohort size."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Optional, TypeVar, Union

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federated.helpers import label
from jaxtyping import (
    Array,
    ArrayLike,
    BFloat16,
    Bool,
    Complex,
    Float,
    Int,
    Key,
    Num,
    PRNGKeyArray,
    PyTree,
    Shaped,
)

import fedeqx as fx

N = 5
T = TypeVar("T")
Vector = Float[Array, "features"]


class Linear(NamedTuple):
    weight: Float[Array, "out in"]
    bias: Float[Array, "out"]


class Model(eqx.Module):
    weight: Any
    activation: Callable[..., Any] = jax.nn.relu


def at(*shape: int, dtype: Any = jnp.float32) -> fx.Clients[Any]:
    """Each of N clients holds ones of this shape."""
    return fx.Clients(jnp.ones((N, *shape), dtype))


ones = jnp.ones
keys = jax.random.split(jax.random.key(0), N)
linear = lambda out, in_: Linear(ones((out, in_)), ones(out))
stacked = lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf] * N), tree)

FITS: list[tuple[Any, Any]] = [
    (fx.Clients[Float[Array, ""]], at()),
    (fx.Clients[Float[Array, "batch features"]], at(4, 3)),
    (fx.Clients[Float[Array, "..."]], at(4, 3)),
    (fx.Clients[Float[Array, "*batch features"]], at(4, 2, 3)),
    (fx.Clients[Float[Array, "n n"]], at(3, 3)),
    (fx.Clients[Float[Array, "3"]], at(3)),
    (fx.Clients[Float[Array, "_"]], at(3)),
    (fx.Clients[Float[Array, "n n+1"]], at(3, 4)),
    (fx.Clients[Float[Array, "features"]], fx.Clients(np.ones((N, 3), np.float32))),
    (fx.Clients[Float[Array, "features"]], fx.Clients(np.ones((N, 3)))),
    (fx.Clients[Float[np.ndarray, "features"]], fx.Clients(np.ones((N, 3)))),
    (fx.Clients[Int[Array, ""]], at(dtype=jnp.int32)),
    (fx.Clients[Bool[Array, "n"]], at(2, dtype=bool)),
    (fx.Clients[BFloat16[Array, "n"]], at(2, dtype=jnp.bfloat16)),
    (fx.Clients[Num[Array, "n"]], at(2, dtype=jnp.int8)),
    (fx.Clients[Complex[Array, "n"]], at(2, dtype=jnp.complex64)),
    (fx.Clients[Key[Array, ""]], fx.Clients(keys)),
    (fx.Clients[PRNGKeyArray], fx.Clients(keys)),
    (fx.Server[Key[Array, ""]], keys[0]),
    (fx.Clients[Array], at(3)),
    (fx.Clients[Shaped[Array, "n"]], at(3)),
    (fx.Clients[ArrayLike], at(3)),
    (fx.Clients[Any], at(3)),
    (fx.Clients, at(3)),
    (fx.Clients[T], at(3)),  # pyright: ignore[reportGeneralTypeIssues]
    (fx.Clients[float], at()),
    (fx.Clients[int], at(dtype=jnp.int32)),
    (fx.Server[float], 0.5),
    (fx.Server[float], jnp.float32(0.5)),
    (fx.Server[int], 3),
    (fx.Server[Float[Array, ""]], 0.5),
    (fx.Server[Float[Array, ""]], np.float32(0.5)),
    (fx.Server[Float[Array, "n"]], np.ones(3)),
    (Float[Array, "n"], ones(3)),
    (fx.Clients[dict[str, Vector]], fx.Clients({"a": ones((N, 3)), "b": ones((N, 3))})),
    (fx.Clients[Mapping[str, Vector]], fx.Clients({"a": ones((N, 3))})),
    (fx.Clients[tuple[Vector, Int[Array, ""]]], fx.Clients((ones((N, 3)), ones(N, int)))),
    (fx.Clients[tuple[Vector, ...]], fx.Clients((ones((N, 3)),) * 4)),
    (fx.Clients[list[Vector]], fx.Clients([ones((N, 3))] * 2)),
    (fx.Clients[Sequence[Vector]], fx.Clients([ones((N, 3))] * 2)),
    (fx.Clients[Sequence[Vector]], fx.Clients((ones((N, 3)),) * 2)),
    (fx.Clients[Linear], fx.Clients(stacked(linear(3, 2)))),
    (fx.Server[Linear], linear(3, 2)),
    (fx.Clients[Model], fx.Clients(Model(ones((N, 2))))),
    (fx.Server[eqx.Module], Model(ones(2))),
    (fx.Clients[PyTree], fx.Clients({"a": ones((N, 2)), "f": jnp.tanh})),
    (fx.Clients[PyTree[Float[Array, "..."]]], fx.Clients({"a": ones((N, 2)), "b": ones(N)})),
    (fx.Server[PyTree[Float[Array, "..."]]], {"a": ones(2)}),
    (fx.Server[optax.OptState], optax.adam(0.1).init(ones(3))),
    (fx.Clients[optax.OptState], fx.Clients(stacked(optax.adam(0.1).init(ones(3))))),
    (fx.Server[optax.Params], {"w": ones(3)}),
    (fx.Clients[Vector] | None, None),
    (fx.Clients[Vector] | None, at(3)),
    (Optional[fx.Clients[Vector]], at(3)),  # noqa: UP045
    (Union[fx.Clients[Vector], fx.Server[Vector]], ones(3)),  # noqa: UP007
    (fx.Clients[tuple[Vector, None]], fx.Clients((ones((N, 3)), None))),
    (fx.Clients[tuple[Vector, Vector | None]], fx.Clients((ones((N, 3)), None))),
    (fx.Clients[Float[Array, "n"] | Int[Array, "n"]], at(3, dtype=jnp.int32)),
    (tuple[fx.Server[Vector], fx.Clients[Vector]], (ones(3), at(3))),
    (dict[str, fx.Clients[Vector]], {"a": at(3)}),
    (list[fx.Clients[Vector]], [at(3), at(3)]),
    (Sequence[fx.Clients[Vector]], [at(3), at(3)]),
    (fx.Server[Callable[..., Any]], jnp.tanh),
    (fx.Server[Literal["mean", "sum"]], "mean"),
    (fx.Server[str], "text"),
    (fx.Server[None], None),
    (None, None),
]


@pytest.mark.parametrize(("annotation", "value"), FITS, ids=label)
def test_what_fits_passes(annotation, value):
    """As an argument and as a result; with values, and with tracers or shapes in their place."""

    @fx.program
    def program(x: annotation) -> annotation:  # pyright: ignore[reportInvalidTypeForm]
        return x

    program(value)
    arrays, rest = eqx.partition(value, eqx.is_array)
    rebuilt = lambda arrays: eqx.filter(program(eqx.combine(arrays, rest)), eqx.is_array)
    jax.eval_shape(rebuilt, arrays)


MISFITS: list[tuple[Any, Any, list[str]]] = [
    # placement
    (fx.Clients[Vector], ones(3), ["Clients[", "float32[3]", "server"]),
    (fx.Clients[Vector], ones((N, 3)), ["float32[5,3]", "server"]),
    (fx.Clients[Vector], 1.0, ["float"]),
    (fx.Clients[Vector], None, ["None"]),
    (fx.Clients[Vector], {"a": ones(3)}, ["dict"]),
    (fx.Server[Vector], at(3), ["Server[", "Clients", "5 clients"]),
    (fx.Server[Any], at(3), ["Server", "Clients"]),
    (Vector, at(3), ["Clients"]),
    (fx.Server[Model], at(3), ["Model", "Clients"]),
    (Model, at(3), ["Model", "Clients"]),
    (fx.Server[PyTree], {"a": [at(3)]}, ["['a'][0]", "Clients"]),
    (fx.Server[dict[str, Any]], {"a": at(3)}, ["['a']", "Clients"]),
    (fx.Server[Model], Model(at(3)), [".weight", "Clients"]),
    (tuple[fx.Server[Vector], fx.Clients[Vector]], (at(3), at(3)), ["[0]", "Clients"]),
    (tuple[fx.Server[Vector], fx.Clients[Vector]], (ones(3), ones(3)), ["[1]", "server"]),
    (dict[str, fx.Clients[Vector]], {"a": at(3), "b": ones(3)}, ["['b']", "server"]),
    (Sequence[fx.Clients[Vector]], [at(3), ones(3)], ["[1]", "server"]),
    (Union[fx.Clients[Vector], None], ones(3), ["float32[3]"]),  # noqa: UP007
    # shapes and dtypes
    (fx.Clients[Float[Array, "batch features"]], at(3), ["float32[3]", "float32[5,3]"]),
    (fx.Clients[Float[Array, ""]], at(3), ["float32[3]"]),
    (fx.Clients[Float[Array, "4"]], at(3), ["float32[3]"]),
    (fx.Clients[Float[Array, "n n"]], at(3, 4), ["float32[3,4]"]),
    (fx.Clients[Int[Array, "n"]], at(3), ["Int", "float32[3]"]),
    (fx.Clients[Key[Array, ""]], at(2, dtype=jnp.uint32), ["Key", "uint32[2]"]),
    (fx.Server[Float[Array, "n"]], ones((3, 1)), ["float32[3,1]"]),
    (fx.Server[Int[Array, ""]], 0.5, ["float"]),
    (fx.Server[Bool[Array, ""]], jnp.float32(1), ["Bool", "float32[]"]),
    (fx.Clients[float], at(3), ["float32[3]"]),
    # inside of containers and modules
    (fx.Clients[dict[str, Vector]], fx.Clients({"a": ones((N, 3)), "b": ones((N, 2))}), ["['b']"]),
    (fx.Clients[tuple[Vector, Vector]], fx.Clients((ones((N, 3)),)), ["tuple"]),
    (fx.Clients[list[Vector]], fx.Clients([ones((N, 3)), ones(N)]), ["[1]"]),
    (fx.Clients[Sequence[Vector]], fx.Clients([ones((N, 3)), ones(N)]), ["[1]"]),
    (fx.Clients[Mapping[str, Vector]], fx.Clients({"a": ones(N)}), ["['a']"]),
    (fx.Clients[Linear], fx.Clients(stacked(Linear(ones((3, 2)), ones(4)))), [".bias"]),
    (fx.Server[Linear], Linear(ones((3, 2)), ones(4)), [".bias"]),
    (fx.Clients[PyTree[Float[Array, "n"]]], fx.Clients({"a": [ones((N, 1, 1))]}), ["['a'][0]"]),
    (fx.Clients[Model], at(3), ["Model", "float32"]),
    (fx.Clients[Model], fx.Clients(stacked(linear(2, 2))), ["Model", "Linear"]),
    (fx.Server[Literal["mean", "sum"]], "median", ["median"]),
    (fx.Server[str], 3, ["str", "int"]),
    (fx.Clients[fx.Server[Vector]], at(3), ["Server"]),
    (None, at(3), ["None", "Clients"]),
]


@pytest.mark.parametrize(("annotation", "value", "words"), MISFITS, ids=label)
def test_what_does_not_fit_is_named(annotation, value, words):
    """The program, the argument and the leaf, what was declared, what was found."""

    @fx.program
    def takes(x: annotation):  # pyright: ignore[reportInvalidTypeForm]
        return x

    @fx.program
    def returns() -> annotation:  # pyright: ignore[reportInvalidTypeForm]
        return value

    for program, place in ((lambda: takes(value), "argument 'x'"), (returns, "the result")):
        with pytest.raises(TypeError) as info:
            program()
        message = str(info.value)
        assert program.__name__ == "<lambda>" or "returns" in message
        assert all(word in message for word in [place, "declared", "found", *words]), message


def test_the_same_under_transformations():
    """Tracers have shapes and placements as values have."""

    @fx.program
    def program(x: fx.Clients[Float[Array, "n n"]]) -> fx.Server[Float[Array, ""]]:
        return jnp.sum(fx.reduce_mean(x))

    good, bad = at(3, 3), at(3, 2)
    batched = lambda x: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf], 1), x)
    for transformed, args in (
        (jax.jit(program), lambda x: x),
        (jax.grad(program), lambda x: x),
        (lambda x: jax.jvp(program, (x,), (x,)), lambda x: x),
        (lambda x: jax.eval_shape(program, x), lambda x: x),
        (jax.vmap(program, in_axes=1), batched),
        (jax.checkpoint(program), lambda x: x),
        (jax.jit(jax.vmap(jax.grad(program), in_axes=1)), batched),
    ):
        transformed(args(good))
        with pytest.raises(TypeError, match=r"float32\[3,2\]"):
            transformed(args(bad))
