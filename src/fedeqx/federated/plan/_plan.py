"""A federated program taken apart: who computes what, and what is sent."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Var

from .._placement import find_cohort_size
from ..backends import AnyMesh, found_meshes
from ._axes import SIZES, check_axes
from ._boundary import Boundary
from ._errors import PlanError
from ._evaluate import evaluate, keeping, own_values
from ._flat import Placement, aval_of
from ._names import Names
from ._show import mermaid, table
from ._stages import Schedule, Stage, Step
from ._trace import inputs_of, trace


@dataclasses.dataclass(frozen=True)
class Message:
    """One array that is sent, or kept.

    - `name`: of the argument or result that it is, or the operation and line that made it.
    - `shape`, `dtype`: of what ONE client gets, sends or keeps.
    - `how`: `"broadcast"`, `"sum"`, `"max"`, `"min"` or `"keep"`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    how: str

    @property
    def bytes(self) -> int:
        """Its size, for one client."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Round:
    """One exchange between the server and the clients.

    - `broadcasts`: what the server sends to each client.
    - `reductions`: what each client sends up, and how it is reduced.
    - `kept`: what each client keeps for a later round of the same program.
    - `server`, `client`: what each computes, before the broadcast and before the reduction.
    """

    broadcasts: tuple[Message, ...]
    reductions: tuple[Message, ...]
    kept: tuple[Message, ...]
    server: Stage = dataclasses.field(repr=False)
    client: Stage = dataclasses.field(repr=False)


class Plan:
    """What a federated program communicates, and who computes what; made by `plan`.

    - `rounds`: the rounds, in order.
    - `end`: what the server computes after them.
    - `bytes_down`, `bytes_up`: totals for one client.

    Printed, it is a table. Called like the function, it runs it by its stages, at any cohort size.
    """

    def __init__(
        self,
        name: str,
        inputs: Boundary,
        outputs: Boundary,
        schedule: Schedule,
        mesh: AnyMesh | None = None,
    ):
        self.name, self.inputs, self.outputs, self.schedule = name, inputs, outputs, schedule
        self.mesh = mesh  # that `program(mesh=...)` declares

    @functools.cached_property
    def rounds(self) -> tuple[Round, ...]:
        names = Names(self.schedule, self.inputs.names, self.outputs.names)
        return tuple(_round(step, names) for step in self.schedule.steps)

    @functools.cached_property
    def end(self) -> Stage:
        return self.schedule.end()

    @property
    def bytes_down(self) -> int:
        return sum(m.bytes for r in self.rounds for m in r.broadcasts)

    @property
    def bytes_up(self) -> int:
        return sum(m.bytes for r in self.rounds for m in r.reductions)

    def __str__(self) -> str:
        return table(self)

    def to_mermaid(self) -> str:
        """The plan as a Mermaid sequence diagram, which Markdown viewers draw."""
        return mermaid(self)

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        platforms: Sequence[str] = ("cpu",),
        derivatives: int = 0,
    ) -> None:
        """Writes the plan as files that `load_plan` reads: StableHLO, and a manifest.

        Needs the extra `fedeqx[export]`.

        **Arguments:**

        - `folder`: a folder that is not there yet. It appears whole or not at all.
        - `platforms`: what the stages are compiled for: `"cpu"`, `"cuda"`, `"rocm"`, `"tpu"`.
        - `derivatives`: how often the loaded plan can be differentiated in reverse. A plan of a
            gradient needs none of it.

        Raises a `FileExistsError` if the folder exists, and a `PlanError` for a plan that was made
        inside of another transformation.
        """
        from ..backends._export import export

        export(self, folder, platforms=platforms, derivatives=derivatives)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the stages, all clients at once. Raises a `PlanError` for other shapes."""
        size = find_cohort_size([("args", args), ("kwargs", kwargs)])
        arrays = self.inputs.split((args, kwargs))
        assert size is not None  # there is an array at the clients, or there were no plan
        work = keeping(self.schedule, own_values(self.schedule, arrays), size)
        return self.outputs.join(evaluate(self.schedule, arrays, size, work))


def plan(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Plan:
    """Takes a federated program apart into rounds, and checks that it is one.

    Everything that crosses between server and clients is found, with its shape and size; and what
    leaves the clients is only what a reduction returns.

    **Arguments:**

    - `fn`: a function of clients' values, such as a `program`, a derivative of one, or the `step`
        of an algorithm. Arrays that it closes over are part of the program itself, at both places.
    - `*args`, `**kwargs`: its arguments, or their shapes (`jax.ShapeDtypeStruct`). The cohort size
        in them does not matter: the plan is right at any.

    **Returns:**

    A `Plan`. Raises a `PlanError` that names the operation and its line, where clients' values
    mix, or reach the server, without a reduction; where the program depends on the cohort size as
    a Python number; and for what cannot be planned (a branch or a `while` loop that communicates).

    ```python
    print(fx.plan(jax.value_and_grad(federated_loss), model, data))  # one round
    ```
    """
    inputs = inputs_of(fn, args, kwargs)
    with found_meshes() as meshes:
        flats, outputs = zip(*(trace(fn, inputs, size) for size in (1, *SIZES)), strict=True)
    check_axes(flats[1:], outputs[0].names)
    for name, place, v in zip(outputs[0].names, outputs[0].places, flats[0].outputs, strict=True):
        found = flats[0].placement(v)
        if place == Placement.SERVER and found == Placement.CLIENTS:
            raise PlanError(
                f"The {name} is to be at the server, but holds clients' values that nothing "
                "reduced. Return them as `Clients`, or reduce them."
            )
    schedule = Schedule(flats[0])
    kinds = [[m.kind for m in Schedule(flat).moves] for flat in flats]
    if kinds.count(kinds[0]) < len(kinds):
        raise PlanError(
            "The program communicates otherwise with one client than with several, and so no plan "
            "is right for both. Treat all cohort sizes alike."
        )
    name = getattr(fn, "__name__", type(fn).__name__)
    return Plan(name, inputs, outputs[0], schedule, next(iter(meshes), None))


def _round(step: Step, names: Names) -> Round:
    def message(name: str, v: Any, how: str, axis: int) -> Message:
        return Message(name, aval_of(v).shape[axis:], aval_of(v).dtype, how)

    return Round(
        tuple(message(names.sent(m.source), m.source, m.kind, 0) for m in step.broadcasts),
        tuple(message(names.arrived(m.result), m.source, m.kind, 1) for m in step.reductions),
        tuple(_kept(v, names) for v in step.client_keeps),
        step.server,
        step.client,
    )


def _kept(v: Var, names: Names) -> Message:
    return Message(names.kept(v), aval_of(v).shape, aval_of(v).dtype, "keep")
