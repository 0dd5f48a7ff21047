"""A cohort in bounded memory: its clients run some at a time, through a scan.

The program's plan says what each client contributes to each reduction; a scan over chunks of
clients adds that up. A later round computes again what it needs of an earlier one, and a
derivative does too, so that memory depends on the chunk and not on the cohort. On a mesh each
device scans its own clients, and one communication ends the round.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .. import _primitives as prims
from .._placement import CLIENTS
from ..plan._evaluate import evaluate, own_values, reduce_over
from ..plan._flat import Placement, aval_of
from ..plan._plan import Plan, plan
from ..plan._stages import Schedule
from ..plan._trace import inputs_of, trace
from . import _local, _mesh
from ._host import HostClients, find_host_clients, replace_host

P = ParamSpec("P")
R = TypeVar("R")

_PRIMITIVES = {"sum": prims.fed_sum_p, "max": prims.fed_max_p, "min": prims.fed_min_p}
_ACCUMULATE = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum}


def default_at_once() -> int:
    """How many clients run at a time where nobody says: 2 on CPUs, 8 elsewhere."""
    return 2 if jax.default_backend() == "cpu" else 8


def stream(fn: Callable[P, R], *, at_once: int | None = None) -> Callable[P, R]:
    """`fn`, a federated program, with its clients running `at_once` at a time.

    A transformation, as `jax.checkpoint` is one: the same arguments and the same values, but memory
    that depends on `at_once` and not on the cohort size. May be jitted, differentiated and mapped.

    **Arguments:**

    - `fn`: a program, a derivative of one, or the `step` of an algorithm; anything that `plan`
        takes. `stream(value_and_grad(f))` goes through the cohort once for each round of its plan;
        `value_and_grad(stream(f))` runs the forward pass twice.
        For a cohort that does not fit the device, pass a `HostClients` in place of a `Clients`.
    - `at_once`: the most clients that run together; they are dealt evenly. With 1 there is no
        `vmap` at all, so that a `cond` or a `while` of a client runs as one. By default 2 on CPUs
        and 8 elsewhere.

    **Returns:**

    A function of the same signature. Sums accumulate in at least float32. Raises a `PlanError`
    where `plan` would, and a `ValueError` unless `at_once` is a positive integer.

    ```python
    step = eqx.filter_jit(fx.stream(algorithm.step, at_once=8))
    ```
    """
    require_at_once("stream", at_once)
    streaming = _Streaming(fn, at_once)

    @functools.wraps(fn)
    def streamed(*args: P.args, **kwargs: P.kwargs) -> R:
        if _local.planning():
            return fn(*args, **kwargs)  # how clients run is for the plan's evaluator to say
        host = find_host_clients(args, kwargs)
        if host is not None:
            return streaming.from_host(host, args, kwargs)
        return streaming(args, kwargs)

    return streamed


def require_at_once(verb: str, at_once: int | None) -> None:
    if at_once is None or (isinstance(at_once, int) and at_once >= 1 and at_once is not True):
        return
    raise ValueError(
        f"{verb}(at_once={at_once!r}): give how many clients may run at a time, or None."
    )


class _Prepared(NamedTuple):
    """A plan, and how its client work runs.

    - `run(arrays)`: the results for all inputs, the clients' with all of the cohort.
    - `add(round, totals, own, received)`: what some clients add to a round's totals.
    """

    plan: Plan
    run: Callable[..., Any]
    add: Callable[..., Any]


class _Streaming:
    """One function's streamed form; keeps what it made for arguments of the same shapes."""

    def __init__(self, fn: Callable[..., Any], at_once: int | None):
        self.fn, self.at_once = fn, at_once
        self._made: dict[Any, _Prepared] = {}

    def __call__(self, args: Any, kwargs: Any) -> Any:
        prepared = self._prepare(args, kwargs)
        plan = prepared.plan
        return plan.outputs.join(prepared.run(plan.inputs.split((args, kwargs))))

    def _prepare(self, args: Any, kwargs: Any) -> _Prepared:
        mesh = _mesh.ambient_mesh()
        inputs = inputs_of(self.fn, args, kwargs)
        key = (inputs.key(), mesh, jax.sharding.get_abstract_mesh(), jax.default_backend())
        found = self._made.get(key)
        if found is not None:
            return found
        made = plan(self.fn, *args, **kwargs)
        clients = made.schedule
        with _mesh.mesh_scope(made.mesh):
            mesh = _mesh.ambient_mesh()
        if mesh is not None:
            mesh = _mesh.as_typed(mesh, [x for x in jax.tree.leaves(args) if eqx.is_array(x)])
            clients = _mesh.trace_inside(lambda: Schedule(trace(self.fn, inputs, 1)[0]), mesh)
        at_once = self.at_once or default_at_once()

        def chunks(own: Sequence[Array]) -> Chunks:
            return Chunks(clients, own, own[0].shape[0], at_once, mesh)

        def run(arrays: Sequence[Array]) -> Any:
            own = list(own_values(made.schedule, arrays).values())
            with _mesh.mesh_scope(made.mesh):
                return evaluate(made.schedule, arrays, own[0].shape[0], chunks(own))

        def add(number: int, totals: Any, own: Sequence[Array], received: Any) -> Any:
            with _mesh.mesh_scope(made.mesh):
                parts, results = chunks(own)(number, received)
            moves = made.schedule.steps[number].reductions
            triples = zip(moves, totals, parts, strict=True)
            return [_ACCUMULATE[m.kind](a, b) for m, a, b in triples], results

        if made.schedule.flat.captured:
            return _Prepared(made, run, add)  # of this call alone
        found = _Prepared(made, jax.jit(run), jax.jit(add, static_argnums=0))
        self._made[key] = found
        return found

    def from_host(self, host: HostClients[Any], args: Any, kwargs: Any) -> Any:
        """Round by round over the chunks; each is on its way while the last is computed."""
        first = replace_host(args, kwargs, host.first())
        prepared = self._prepare(*first)
        inputs, schedule = prepared.plan.inputs, prepared.plan.schedule
        steps = schedule.steps

        def work(number: int, received: Mapping[int, Array]) -> Any:
            totals = [_start(m.kind, aval_of(m.result)) for m in steps[number].reductions]
            before, results = totals, []
            for chunk in host.each():
                arrays = inputs.split(replace_host(args, kwargs, chunk))
                own = list(own_values(schedule, arrays).values())
                after, parts = prepared.add(number, totals, own, dict(received))
                jax.block_until_ready(before)  # at most two chunks are on the device
                before, totals = totals, after
                results.append([np.asarray(part) for part in parts])
            return totals, [np.concatenate(parts) for parts in zip(*results, strict=True)]

        arrays = inputs.split(first)
        return prepared.plan.outputs.join(evaluate(schedule, arrays, host.size, work))


class Chunks:
    """Client work in chunks, for `evaluate`.

    - `own`: the clients' inputs, `[clients, ...]`, in the order of the program.
    """

    def __init__(
        self,
        schedule: Schedule,
        own: Sequence[Array],
        size: int,
        at_once: int,
        mesh: _mesh.AnyMesh | None = None,
    ):
        self.schedule, self.size, self.mesh = schedule, size, mesh
        self.steps = schedule.steps
        self.devices = 1 if mesh is None else mesh.shape[CLIENTS]
        per_device = -(-size // self.devices)
        self.chunks = -(-per_device // at_once)
        self.each = -(-per_device // self.chunks)  # evenly: the last chunk is nearly full too
        self.rows = self.devices * self.chunks * self.each
        self.own = [_lengthened(x, self.rows) for x in own]
        # NumPy: a custom derivative must close over no tracer.
        self.valid = None if self.rows == size else np.arange(self.rows) < size

    def __call__(self, number: int, received: Mapping[int, Array]) -> Any:
        """The totals of a round's reductions, and the clients' own results after it."""
        sent = [received[i] for i in sorted(received)]
        run = functools.partial(self._run, number)
        kinds = [m.kind for m in self.steps[number].reductions]
        if set(kinds) <= {"sum"}:
            return run(self.own, sent)

        # An extremum's derivative is the mean of the tangents of those that attain it, so it has a
        # second pass through the cohort, which knows what is attained.
        extremes = [i for i, kind in enumerate(kinds) if kind != "sum"]

        @jax.custom_jvp
        def run_with_extremes(own: Any, sent: Any) -> Any:
            return run(own, sent)

        @run_with_extremes.defjvp
        def derivative(primals: Any, tangents: Any) -> Any:
            out = run_with_extremes(*primals)
            best = {i: jax.lax.stop_gradient(out[0][i]) for i in extremes}
            _, moved = jax.jvp(functools.partial(run, best=best), primals, tangents)
            return out, moved

        return run_with_extremes(self.own, sent)

    def _run(
        self,
        number: int,
        own: Sequence[Array],
        sent: Sequence[Array],
        best: Mapping[int, Array] | None = None,
    ) -> tuple[list[Array], list[Array]]:
        """With `best`, an extremum is the mean over those that attain it: of the same value."""
        best = {} if best is None else best
        moves = self.steps[number].reductions
        kinds = [k for i, m in enumerate(moves) for k in (["sum"] * 2 if i in best else [m.kind])]
        if self.mesh is None:
            totals, results = self._on_device(number, kinds, own, self.valid, sent, best)
        else:
            totals, results = self._on_mesh(number, kinds, own, sent, best)
        totals = iter(totals)
        merged = [
            (next(totals) / next(totals)).astype(aval_of(m.result).dtype)
            if i in best
            else next(totals)
            for i, m in enumerate(moves)
        ]
        if self.mesh is not None:
            results = [_mesh.cut(x, self.size, self.mesh) for x in results]
        return merged, [x[: self.size] for x in results]

    def _on_mesh(
        self, number: int, kinds: list[str], own: Any, sent: Any, best: Any
    ) -> tuple[list[Array], list[Array]]:
        mesh, devices = self.mesh, self.devices
        assert mesh is not None

        def on_device(own: Any, valid: Any, sent: Any) -> Any:
            sent, best = jax.tree.map(lambda x: x[0], sent)
            totals, results = self._on_device(number, kinds, own, valid, sent, best)
            return [total[None] for total in totals], results

        # For each device a copy and a partial result: the devices are a cohort of their own.
        arrays, structure = jax.tree.flatten((sent, best))
        spread = jax.tree.unflatten(structure, prims.fed_broadcast(arrays, devices))
        valid = None if self.valid is None else jnp.asarray(self.valid)
        partial, results = _mesh.on_each_device(on_device, (own, valid, spread), mesh)
        totals: list[Array] = list(partial)
        for kind in dict.fromkeys(kinds):
            at = [i for i, k in enumerate(kinds) if k == kind]
            whole = prims.fed_reduce(_PRIMITIVES[kind], [partial[i] for i in at], devices)
            for i, total in zip(at, whole, strict=True):
                totals[i] = total
        return totals, results

    def _on_device(
        self, number: int, kinds: list[str], own: Any, valid: Any, sent: Any, best: Any
    ) -> tuple[list[Array], list[Array]]:
        """Of `[rows, ...]` inputs, the totals and the rows of the results."""

        # In a scan nothing can be merged across the two passes, so XLA needs no barrier for it.
        @functools.partial(jax.checkpoint, prevent_cse=self.chunks == 1)
        def chunk(own: Any, valid: Any, sent: Any) -> Any:
            contributions, results = self._together(number, own, sent)
            totals: list[Array] = []
            for i, (m, x) in enumerate(
                zip(self.steps[number].reductions, contributions, strict=True)
            ):
                if i in best:
                    attained = x == jnp.broadcast_to(best[i], x.shape)
                    parts = [jnp.where(attained, x, jnp.zeros_like(x)), attained.astype(x.dtype)]
                    totals += [_reduced("sum", part, valid) for part in parts]
                else:
                    totals.append(_reduced(m.kind, x, valid))
            return totals, results

        if self.chunks == 1:
            return chunk(own, valid, sent)

        def body(carry: Any, inputs: Any) -> Any:
            totals, results = chunk(*inputs, sent)
            steps = zip(kinds, carry, totals, strict=True)
            return [_ACCUMULATE[kind](a, b) for kind, a, b in steps], results

        split = lambda x: x.reshape(self.chunks, self.each, *x.shape[1:])
        inputs = jax.tree.map(split, (own, valid))
        shapes, _ = jax.eval_shape(chunk, *jax.tree.map(lambda x: x[0], inputs), sent)
        start = [_start(kind, shape) for kind, shape in zip(kinds, shapes, strict=True)]
        totals, results = jax.lax.scan(body, start, inputs)
        return totals, [x.reshape(-1, *x.shape[2:]) for x in results]

    def _together(self, number: int, own: Any, sent: Any) -> tuple[list[Array], list[Array]]:
        """`[each, 1, ...]` of what each client of a chunk contributes, `[each, ...]` of results."""
        schedule = self.schedule
        stage = schedule.client_work(number)
        names = schedule.own(Placement.CLIENTS)
        broadcasts = [m.result for m in schedule.broadcasts]
        arrived = [v for v in broadcasts if schedule.levels[v] <= number]
        count = len(self.steps[number].reductions)

        def one_client(own: Any, sent: Any) -> Any:
            values = dict(zip(names, own, strict=True))
            values |= {v: x[None] for v, x in zip(arrived, sent, strict=True)}
            outs = stage(*(values[v] for v in stage.inputs))
            return outs[:count], [x[0] for x in outs[count:]]

        if self.each == 1:
            contributions, results = one_client(own, sent)
            return [x[None] for x in contributions], [x[None] for x in results]
        return jax.vmap(one_client, in_axes=(0, None))([x[:, None] for x in own], sent)


def _start(kind: str, like: Any) -> Array:
    return jnp.full(like.shape, _mesh.identity(kind, like.dtype), like.dtype)


def _reduced(kind: str, values: Array, valid: Bool[Array, " each"] | None) -> Array:
    if valid is not None:
        values = _mesh.where_row(valid, values, _mesh.identity(kind, values.dtype))
    return reduce_over(kind, values, axis=(0, 1))


def _lengthened(x: Array, rows: int) -> Array:
    """More rows, by repeating the last: a client function never meets made-up data."""
    missing = rows - x.shape[0]
    if missing == 0:
        return x
    last = jax.lax.stop_gradient(x[-1:])
    return jnp.concatenate([x, jnp.broadcast_to(last, (missing, *x.shape[1:]))])
