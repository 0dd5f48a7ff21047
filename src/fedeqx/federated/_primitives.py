"""Communication as JAX primitives: what crosses between server and clients, and nothing else does.

`fed_broadcast`, `fed_sum`, `fed_max` and `fed_min` take any number of operands, so that one
communication of a whole PyTree is one equation. Their transposes are written in terms of each
other (a broadcast's is a sum, a sum's a broadcast; arXiv 2301.07806, arXiv 2403.07128), so every
derivative of a federated program is again a federated program. `fed_size` is the cohort size as an
operand-free equation: a jaxpr that contains it can be run at another cohort size.

Each carries the cohort size, the name of its placement and, where there is one, the mesh that
carries it. On a mesh, arrays at the clients have their axis padded to a multiple of the devices,
and a reduction leaves the padding out.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding
from jaxtyping import Array

from . import backends
from ._placement import CLIENTS


def _primitive(name: str, rule: Callable[..., list[Array]], static: tuple[str, ...]) -> Primitive:
    """A primitive with many results, evaluated, shaped and lowered by one JAX function."""
    primitive = Primitive(name)
    primitive.multiple_results = True

    def implementation(*xs: Array, placement: str, **params: Any) -> list[Array]:
        del placement
        return rule(*xs, **params)

    @functools.lru_cache(maxsize=4096)
    def abstract(avals: tuple[Any, ...], context: Any, params: tuple[tuple[str, Any], ...]) -> Any:
        del context
        return jax.make_jaxpr(functools.partial(implementation, **dict(params)))(*avals).out_avals

    def abstract_eval(*avals: Any, **params: Any) -> Any:
        return abstract(avals, jax.sharding.get_abstract_mesh(), tuple(sorted(params.items())))

    compiled = jax.jit(implementation, static_argnames=(*static, "placement"))
    primitive.def_impl(compiled)
    primitive.def_abstract_eval(abstract_eval)
    mlir.register_lowering(primitive, mlir.lower_fun(implementation, multiple_results=True))
    return primitive


fed_broadcast_p = _primitive(
    "fed_broadcast",
    lambda *xs, size, mesh: backends.broadcast(xs, size=size, mesh=mesh),
    ("size", "mesh"),
)
fed_sum_p, fed_max_p, fed_min_p = (
    _primitive(
        f"fed_{kind}",
        lambda *xs, size, mesh, kind=kind: backends.reduce(xs, kind=kind, size=size, mesh=mesh),
        ("size", "mesh"),
    )
    for kind in ("sum", "max", "min")
)
fed_size_p = _primitive("fed_size", lambda *, size: [jnp.asarray(size, jnp.int32)], ("size",))


def fed_broadcast(xs: Sequence[Array], size: int) -> list[Array]:
    if not xs:
        return []
    mesh = backends.ambient_mesh()
    xs = backends.announce(xs, mesh=mesh)
    return fed_broadcast_p.bind(*xs, size=size, mesh=mesh, placement=CLIENTS)


def fed_reduce(primitive: Primitive, xs: Sequence[Array], size: int) -> list[Array]:
    if not xs:
        return []
    mesh = backends.ambient_mesh()
    xs = backends.announce(xs, mesh=mesh)
    return primitive.bind(*xs, size=size, mesh=mesh, placement=CLIENTS)


def fed_size(size: int) -> Array:
    return fed_size_p.bind(size=size, placement=CLIENTS)[0]


# Differentiation. Broadcast and sum are linear, so only operands with a tangent (or an output with
# a cotangent) take part: integers and constants are not sent a second time.


def _is_zero(x: Any) -> bool:
    return type(x) is ad.Zero


def _linear_jvp(primitive: Primitive, primals, tangents, **params):
    outs = primitive.bind(*primals, **params)
    live = [i for i, t in enumerate(tangents) if not _is_zero(t)]
    out_tangents = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if live:
        moved = primitive.bind(*(tangents[i] for i in live), **params)
        for i, t in zip(live, moved, strict=True):
            out_tangents[i] = t
    return outs, out_tangents


def _transpose(move: Callable[[list[Array]], list[Array]], cotangents, operands):
    live = [i for i, ct in enumerate(cotangents) if not _is_zero(ct)]
    result: list[Any] = [None] * len(operands)
    for i, operand in enumerate(operands):
        if ad.is_undefined_primal(operand):
            result[i] = ad.Zero(operand.aval.to_ct_aval())
    moved = move([cotangents[i] for i in live]) if live else []
    for i, ct in zip(live, moved, strict=True):
        if result[i] is not None:
            result[i] = _fit(ct, result[i].aval)
    return result


def _fit(cotangent: Array, aval: Any) -> Array:
    """A cotangent has its primal's dtype, which a float32 sum of bfloat16 values has not, and on
    explicit mesh axes its sharding."""
    cotangent = cotangent.astype(aval.dtype)
    found = jax.typeof(cotangent).sharding
    if found.spec == aval.sharding.spec:
        return cotangent
    return jax.sharding.reshard(cotangent, NamedSharding(found.mesh, aval.sharding.spec))


def _broadcast_transpose(cotangents, *operands, **params):
    return _transpose(lambda cts: fed_sum_p.bind(*cts, **params), cotangents, operands)


def _sum_transpose(cotangents, *operands, **params):
    return _transpose(lambda cts: fed_broadcast_p.bind(*cts, **params), cotangents, operands)


def _fed_map(fn: Callable[..., Array], *xs: list[Array]) -> list[Array]:
    """Client computation in a call of that name, as all of it is."""

    def fed_map(*xs: list[Array]) -> list[Array]:
        return list(map(fn, *xs))

    return jax.jit(fed_map)(*xs)


def _extremum_jvp(primitive: Primitive, primals, tangents, **params):
    """The derivative of a maximum: the mean of the tangents of the clients that attain it."""
    outs = primitive.bind(*primals, **params)
    live = [i for i, t in enumerate(tangents) if not _is_zero(t)]
    out_tangents = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if not live:
        return outs, out_tangents
    attained = fed_broadcast_p.bind(*(outs[i] for i in live), **params)
    mine = [primals[i] for i in live]
    share = _fed_map(lambda x, best: (x == best).astype(x.dtype), mine, attained)
    masked = _fed_map(jnp.multiply, [tangents[i] for i in live], share)
    # Two equations: in one, the counts would be unknown wherever the tangents are, and a division
    # by what is unknown has no transpose.
    totals = fed_sum_p.bind(*masked, **params)
    counts = fed_sum_p.bind(*share, **params)
    for i, total, count in zip(live, totals, counts, strict=True):
        out_tangents[i] = (total / count).astype(outs[i].dtype)
    return outs, out_tangents


ad.primitive_jvps[fed_broadcast_p] = functools.partial(_linear_jvp, fed_broadcast_p)
ad.primitive_jvps[fed_sum_p] = functools.partial(_linear_jvp, fed_sum_p)
ad.primitive_transposes[fed_broadcast_p] = _broadcast_transpose
ad.primitive_transposes[fed_sum_p] = _sum_transpose
ad.primitive_jvps[fed_max_p] = functools.partial(_extremum_jvp, fed_max_p)
ad.primitive_jvps[fed_min_p] = functools.partial(_extremum_jvp, fed_min_p)


# Batching. The clients axis stays in front; `vmap`'s axis goes behind it.


def _batch(primitive: Primitive, clients_in: bool, args, dims, **params):
    at = 1 if clients_in else 0
    live = [i for i, dim in enumerate(dims) if dim is not None]
    moved = [jnp.moveaxis(x, dims[i], at) if i in live else x for i, x in enumerate(args)]
    outs = primitive.bind(*moved, **params)
    return outs, [1 - at if i in live else None for i in range(len(outs))]


batching.primitive_batchers[fed_broadcast_p] = functools.partial(_batch, fed_broadcast_p, False)
for _reduction in (fed_sum_p, fed_max_p, fed_min_p):
    batching.primitive_batchers[_reduction] = functools.partial(_batch, _reduction, True)
