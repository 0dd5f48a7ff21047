"""Every way to run a federated program. A new backend is one line."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from federated.helpers import CASES
from jax.sharding import AxisType

import fedeqx as fx


@dataclasses.dataclass(frozen=True)
class Backend:
    """`run(program, arguments)`, on a mesh of so many devices, returns `program(*arguments)`."""

    run: Callable[[Callable[..., Any], tuple[Any, ...]], Any]
    devices: int = 0
    axis_type: AxisType = AxisType.Auto

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        if self.devices == 0:
            return contextlib.nullcontext()
        types, devices = (self.axis_type,), jax.devices()[: self.devices]
        mesh = jax.make_mesh((self.devices,), ("clients",), axis_types=types, devices=devices)
        return jax.set_mesh(mesh)


def _call(program, arguments):
    return program(*arguments)


def _planned(program, arguments):
    return fx.plan(program, *arguments)(*arguments)


def _streamed(at_once):
    return lambda program, arguments: fx.stream(program, at_once=at_once)(*arguments)


def _exported(program, arguments):
    plan = fx.plan(program, *arguments)
    with tempfile.TemporaryDirectory() as folder:
        plan.export(Path(folder) / "plan", derivatives=1)
        loaded = fx.load_plan(Path(folder) / "plan")
    return plan.outputs.join(loaded.arrays(*arguments))


BACKENDS = {
    "exported": Backend(_exported),
    "mesh of 1": Backend(_call, devices=1),
    "mesh of 2": Backend(_call, devices=2),
    "mesh of 4": Backend(_call, devices=4),
    "mesh of 4, explicit": Backend(_call, devices=4, axis_type=AxisType.Explicit),
    "mesh of 8": Backend(_call, devices=8),
    "plan": Backend(_planned),
    "stream, 1 at once": Backend(_streamed(1)),
    "stream, 3 at once": Backend(_streamed(3)),
    "stream, all at once": Backend(_streamed(100)),
    "stream on a mesh of 2": Backend(_streamed(2), devices=2),
    "stream on a mesh of 4": Backend(_streamed(1), devices=4),
    "stream on a mesh of 4, explicit": Backend(_streamed(2), 4, AxisType.Explicit),
}

PLANNED = [name for name in BACKENDS if "mesh" not in name or "stream" in name]
# The rest is for the slow session: more of the same kinds.
QUICK = ["plan", "exported", "stream, 3 at once", "stream on a mesh of 2", "mesh of 4"]


def crossed(quick: list[str], **wanted: Any) -> pytest.MarkDecorator:
    """A test's cases, each with each backend that can run it."""
    parameters = [
        pytest.param(
            case,
            name,
            id=f"{case.name}, {name}",
            marks=[] if name in quick else pytest.mark.slow,
        )
        for case in CASES
        for name in BACKENDS
        if (case.plannable or name not in PLANNED)
        and all(bool(getattr(case, key)) == value for key, value in wanted.items())
    ]
    return pytest.mark.parametrize(("case", "backend"), parameters)
