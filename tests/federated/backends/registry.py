"""Every way to run a federated program, as a function from one call to its result.

`run(program, arguments)` must return what `program(*arguments)` does. A new backend is one line.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from federated.helpers import CASES

import fedeqx as fx

Backend = Callable[[Callable[..., Any], tuple[Any, ...]], Any]


def _streamed(at_once: int, devices: int = 1) -> Backend:
    def run(program, arguments):
        with _devices(devices):
            return fx.stream(program, at_once=at_once)(*arguments)

    return run


def _on_mesh(devices: int) -> Backend:
    def run(program, arguments):
        with _devices(devices):
            return program(*arguments)

    return run


def _devices(count: int):
    if count == 1:
        return contextlib.nullcontext()
    axis = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((count,), ("clients",), axis_types=axis, devices=jax.devices()[:count])
    return jax.set_mesh(mesh)


BACKENDS: dict[str, Backend] = {
    "mesh of 2": _on_mesh(2),
    "mesh of 8": _on_mesh(8),
    "plan": lambda program, arguments: fx.plan(program, *arguments)(*arguments),
    "stream, 1 at once": _streamed(1),
    "stream, 3 at once": _streamed(3),
    "stream, all at once": _streamed(100),
    "stream on a mesh of 2": _streamed(2, devices=2),
    "stream on a mesh of 4": _streamed(1, devices=4),
}

PLANNED = [name for name in BACKENDS if "mesh" not in name or "stream" in name]
PAIRS = [
    (case, name) for case in CASES for name in BACKENDS if case.plannable or name not in PLANNED
]
