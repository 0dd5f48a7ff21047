"""Running a plan: the server's stages, with any way to run the clients'."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, Var
from jaxtyping import Array

from ..backends import KINDS, accumulator_dtype
from ._flat import Atom, Placement
from ._stages import Schedule, Stage

ClientWork = Callable[[int, Mapping[int, Array]], tuple[Sequence[Array], Sequence[Array]]]
"""`work(round, received) -> (totals of its reductions, clients' own results after it)`, where
`received` is all that was sent so far, by its number among the broadcasts, without a clients axis.
"""


def evaluate(
    schedule: Schedule, arrays: Sequence[Array], size: int, work: ClientWork
) -> list[Array]:
    """The results of a program for its inputs, for a cohort of this size."""
    env: dict[Var, Any] = dict(zip(schedule.flat.inputs, arrays, strict=True))
    env |= schedule.flat.captured
    env |= {v: jnp.asarray(size, jnp.int32) for v in schedule.sizes}
    received: dict[int, Array] = {}
    broadcasts = schedule.broadcasts
    for number, step in enumerate(schedule.steps):
        env |= run_stage(step.server, env)
        received |= {broadcasts.index(m): value_of(m.source, env) for m in step.broadcasts}
        totals, results = work(number, received)
        env |= zip((m.result for m in step.reductions), totals, strict=True)
        env |= zip(schedule.client_results(number), results, strict=True)
    end = schedule.end()
    env |= run_stage(end, env)
    return [jnp.asarray(value_of(v, env)) for v in schedule.flat.outputs]


def run_stage(stage: Stage, env: Mapping[Var, Any]) -> dict[Var, Any]:
    values = stage(*(env[v] for v in stage.inputs))
    pairs = zip(stage.outputs, values, strict=True)
    return {v: value for v, value in pairs if isinstance(v, Var)}


def value_of(atom: Atom, env: Mapping[Var, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def keeping(schedule: Schedule, own: Mapping[Var, Array], size: int) -> ClientWork:
    """All clients at once, each keeping between rounds what the plan says it keeps.

    - `own`: the clients' inputs, `[clients, ...]`.
    """
    kept: dict[Var, Array] = {v: x[:, None] for v, x in own.items()}
    steps, broadcasts = schedule.steps, schedule.broadcasts

    def work(number: int, received: Mapping[int, Array]) -> Any:
        step = steps[number]
        for m in step.broadcasts:
            value = received[broadcasts.index(m)]
            kept[m.result] = jnp.broadcast_to(value, (size, 1, *jnp.shape(value)))
        outs = jax.vmap(step.client)(*(kept[v] for v in step.client.inputs))
        pairs = zip(step.client.outputs, outs, strict=True)
        kept.update({v: x for v, x in pairs if isinstance(v, Var)})
        totals = [reduce_over(m.kind, kept[m.source], axis=(0, 1)) for m in step.reductions]
        results = [kept[v][:, 0] for v in schedule.client_results(number)]
        for v in set(kept) - set(step.client_keeps) - set(own):
            del kept[v]  # what is not listed is not there in the next round
        return totals, results

    return work


def reduce_over(kind: str, values: Array, axis: Any = 0) -> Array:
    """Reduces over the clients, in the dtype that the reduction accumulates in."""
    values = values.astype(accumulator_dtype(kind, values.dtype))
    return KINDS[kind](values, axis=axis)


def own_values(schedule: Schedule, arrays: Sequence[Array]) -> dict[Var, Array]:
    """The clients' inputs among all inputs."""
    flat = schedule.flat
    pairs = zip(flat.inputs, arrays, strict=True)
    return {v: x for v, x in pairs if flat.placements[v] == Placement.CLIENTS}
