"""A plan as files: each stage as serialized StableHLO, and a manifest that says how to run them.

The format is described in `plan_format.md` beside this file.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax.extend.core import Literal, Var
from jaxtyping import Array

from .._placement import find_cohort_size
from ..plan._errors import PlanError
from ..plan._evaluate import reduce_over
from ..plan._flat import Atom, Placement, aval_of
from ..plan._plan import Plan
from ..plan._stages import Stage
from ..plan._tree import build_tree, describe_tree, leaves_of

FORMAT, VERSION = "fedeqx-plan", 1
MANIFEST = "manifest.json"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    platforms: Sequence[str] = ("cpu",),
    derivatives: int = 0,
) -> None:
    """Writes a plan to a folder that is not there yet; see `Plan.export`."""
    _require_flatbuffers()
    place = Path(folder)
    if not platforms or not set(platforms) <= set(PLATFORMS):
        raise ValueError(
            f"export(platforms={tuple(platforms)}): choose among {', '.join(PLATFORMS)}."
        )
    if place.exists():
        raise FileExistsError(f"{place} exists; export a plan to a new folder, or remove that one.")
    if plan.schedule.flat.captured:
        raise PlanError(
            "This plan closes over values of a transformation around it, and so belongs to that "
            "call alone. Pass them as arguments, and plan the function outside of it."
        )
    building = place.with_name(f".{place.name}.building-{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        manifest = _Writer(plan, building, platforms, derivatives).manifest()
        (building / MANIFEST).write_text(json.dumps(_sealed(manifest), indent=1))
        building.rename(place)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


class _Writer:
    def __init__(self, plan: Plan, folder: Path, platforms: Sequence[str], derivatives: int):
        self.plan, self.folder = plan, folder
        self.platforms, self.derivatives = tuple(platforms), derivatives
        self.values: dict[Var, int] = {}
        self.described: list[dict[str, Any]] = []

    def manifest(self) -> dict[str, Any]:
        plan, schedule = self.plan, self.plan.schedule
        inputs = [
            {"value": self.value(v), "name": name}
            for v, name in zip(schedule.flat.inputs, plan.inputs.names, strict=True)
        ]
        rounds = []
        for number, (step, shown) in enumerate(zip(schedule.steps, plan.rounds, strict=True)):
            rounds.append(
                {
                    "server": self.stage(f"round-{number}-server", step.server),
                    "broadcasts": [
                        {"from": self.atom(m.source), "to": self.value(m.result), "name": s.name}
                        for m, s in zip(step.broadcasts, shown.broadcasts, strict=True)
                    ],
                    "client": self.stage(f"round-{number}-client", step.client),
                    "reductions": [
                        {
                            "from": self.value(m.source),
                            "to": self.value(m.result),
                            "how": m.kind,
                            "name": s.name,
                        }
                        for m, s in zip(step.reductions, shown.reductions, strict=True)
                    ],
                    "client_keeps": [self.value(v) for v in step.client_keeps],
                    "server_keeps": [self.value(v) for v in step.server_keeps],
                    "client_results": [self.value(v) for v in schedule.client_results(number)],
                }
            )
        end = self.stage("end-server", schedule.end())
        outputs = [
            {"value": self.atom(v), "name": name}
            for v, name in zip(schedule.flat.outputs, plan.outputs.names, strict=True)
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": plan.name,
            "fedeqx": version("fedeqx"),
            "jax": jax.__version__,
            "platforms": list(self.platforms),
            "derivatives": self.derivatives,
            "values": self.described,
            "inputs": inputs,
            "cohort_sizes": [self.value(v) for v in schedule.sizes],
            "size_is_sent_first": schedule.size_is_sent_first,
            "rounds": rounds,
            "end": end,
            "outputs": outputs,
            "result": describe_tree(plan.outputs.join(range(len(outputs)))),
        }

    def value(self, v: Var) -> int:
        if v not in self.values:
            at_clients = self.plan.schedule.flat.placements[v] == Placement.CLIENTS
            self.values[v] = len(self.described)
            self.described.append(
                {
                    "place": "clients" if at_clients else "server",
                    "shape": list(_outside(v, at_clients)),
                    "dtype": str(aval_of(v).dtype),
                }
            )
        return self.values[v]

    def atom(self, atom: Atom) -> Any:
        """The number of a value, or a constant of the program itself."""
        constants = self.plan.schedule.flat.constants
        if isinstance(atom, Var) and atom not in constants:
            return self.value(atom)
        constant = np.asarray(atom.val if isinstance(atom, Literal) else constants[atom])
        return {"constant": constant.tolist(), "dtype": str(constant.dtype)}

    def stage(self, name: str, stage: Stage) -> dict[str, Any]:
        placements = self.plan.schedule.flat.placements
        at_client = name.endswith("client")
        outputs = [v for v in stage.outputs if isinstance(v, Var) and v in placements]
        outputs = [v for v in outputs if v not in self.plan.schedule.flat.constants]
        at = [list(stage.outputs).index(v) for v in outputs]

        def run(*values: Array) -> list[Array]:
            shaped = [
                x.reshape(aval_of(v).shape) for x, v in zip(values, stage.inputs, strict=True)
            ]
            results = stage(*shaped)
            return [
                jnp.asarray(results[i]).reshape(_outside(v, at_client))
                for i, v in zip(at, outputs, strict=True)
            ]

        avals = [
            jax.ShapeDtypeStruct(_outside(v, at_client), aval_of(v).dtype) for v in stage.inputs
        ]
        exported = jax_export.export(jax.jit(run, keep_unused=True), platforms=self.platforms)(
            *avals
        )
        data = bytes(exported.serialize(vjp_order=self.derivatives))
        file = f"{name}.stablehlo"
        (self.folder / file).write_bytes(data)
        return {
            "file": file,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "calling_convention": exported.calling_convention_version,
            "inputs": [self.value(v) for v in stage.inputs],
            "outputs": [self.value(v) for v in outputs],
        }


def _outside(v: Var, at_client: bool) -> tuple[int, ...]:
    """The shape that a value has outside of a stage: one client's has no clients axis."""
    shape = aval_of(v).shape
    return shape[1:] if at_client and shape[:1] == (1,) else shape


class LoadedPlan:
    """A plan read from files; called, it runs the program that was exported.

    - `name`, `platforms`: of the program, and what it was compiled for.
    - `inputs`: names of the arrays that it takes, in order.
    - `manifest`: all that the manifest says.
    """

    def __init__(self, manifest: dict[str, Any], stages: Mapping[str, Any]):
        self.manifest, self._stages = manifest, stages
        self._calls = {file: jax.jit(exported.call) for file, exported in stages.items()}
        self.name: str = manifest["name"]
        self.platforms: tuple[str, ...] = tuple(manifest["platforms"])
        self.inputs: tuple[str, ...] = tuple(entry["name"] for entry in manifest["inputs"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The program's result for arguments of the shapes that it was planned with.

        The clients run one after the other. Arrays must come in the order in which they were
        planned, in trees of any kind, clients' values in `Clients`; leaves that are no arrays are
        part of the program and are not looked at. In the result a module or a named tuple is a
        dict of its fields, and a leaf that is no array is what `repr` says of it.
        """
        return build_tree(self.manifest["result"], self.arrays(*args, **kwargs))

    def arrays(self, *args: Any, **kwargs: Any) -> list[Array]:
        """The arrays of the result alone, in the order of the program's own result."""
        size = find_cohort_size([("args", args), ("kwargs", kwargs)])
        if size is None:
            raise PlanError(f"The plan {self.name!r} needs clients' values, in `Clients`.")
        env = self.arguments(*args, **kwargs)
        env |= {v: jnp.asarray(size, jnp.int32) for v in self.manifest["cohort_sizes"]}
        received: dict[int, Array] = {}
        for step in self.manifest["rounds"]:
            env |= self.run(step["server"], env)
            received |= {m["to"]: self.value(m["from"], env) for m in step["broadcasts"]}
            env |= self._run_clients(step["client"], env, received, size)
            for move in step["reductions"]:
                env[move["to"]] = reduce_over(move["how"], env[move["from"]])
        env |= self.run(self.manifest["end"], env)
        results = [self.value(entry["value"], env) for entry in self.manifest["outputs"]]
        return [jnp.asarray(x) for x in results]

    def stage(self, file: str) -> Any:
        """One stage, a `jax.export.Exported`."""
        return self._stages[file]

    def arguments(self, *args: Any, **kwargs: Any) -> dict[int, Array]:
        """A call's arrays by the number of their value, checked to be what the plan takes."""
        found = leaves_of((args, kwargs))
        entries = self.manifest["inputs"]
        if len(found) != len(entries):
            raise PlanError(
                f"The plan {self.name!r} takes {len(entries)} arrays, but got {len(found)}: "
                f"{', '.join(self.inputs)}."
            )
        env: dict[int, Array] = {}
        for (array, at_clients), entry in zip(found, entries, strict=True):
            wanted = self.manifest["values"][entry["value"]]
            shape = array.shape[1:] if at_clients else array.shape
            place = "clients" if at_clients else "server"
            if (place, list(shape), str(array.dtype)) != tuple(
                wanted[key] for key in ("place", "shape", "dtype")
            ):
                raise PlanError(
                    f"{entry['name']} must be {wanted['dtype']}{wanted['shape']} at the "
                    f"{wanted['place']}, but is {array.dtype}{list(shape)} at the {place}."
                )
            env[entry["value"]] = array
        return env

    def run(self, stage: Mapping[str, Any], env: Mapping[int, Array]) -> dict[int, Array]:
        """Runs one stage, which the manifest describes, on values by number."""
        results = self._calls[stage["file"]](*(env[v] for v in stage["inputs"]))
        return dict(zip(stage["outputs"], results, strict=True))

    @staticmethod
    def value(entry: Any, env: Mapping[int, Array]) -> Any:
        """What an entry of the manifest stands for: a value's number, or a constant."""
        if isinstance(entry, dict):
            return jnp.asarray(np.asarray(entry["constant"], entry["dtype"]))
        return env[entry]

    def _run_clients(
        self, stage: Mapping[str, Any], env: Mapping[int, Array], received: Any, size: int
    ) -> dict[int, Array]:
        call = self._calls[stage["file"]]

        def one_client(i: Array) -> Any:
            return call(*(received[v] if v in received else env[v][i] for v in stage["inputs"]))

        results = jax.lax.map(one_client, jnp.arange(size))
        return dict(zip(stage["outputs"], results, strict=True))


def load_plan(folder: str | os.PathLike[str]) -> LoadedPlan:
    """Reads a plan that `Plan.export` wrote; needs neither its source nor its classes.

    **Arguments:**

    - `folder`: the folder.

    **Returns:**

    A `LoadedPlan`. Raises a `PlanError` that names the file where one is missing, truncated or
    altered, or of a newer format, before anything is run.
    """
    place = Path(folder)
    return load_plan_files(place, lambda name: (place / name).read_bytes())


def load_plan_files(place: Path, read: Callable[[str], bytes]) -> LoadedPlan:
    """`load_plan` where the stages are stored in another way: `read` gives a file of the format."""
    _require_flatbuffers()
    manifest = _read_manifest(place / MANIFEST)
    loaded = {}
    for entry in stages_of(manifest):
        file = place / entry["file"]
        if file.parent != place:
            raise PlanError(f"{place / MANIFEST} names a file outside of its folder: {file}.")
        try:
            data = read(entry["file"])
        except FileNotFoundError:
            raise PlanError(f"{file} is missing; export the plan again.") from None
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            how = "truncated" if len(data) < entry["bytes"] else "altered"
            raise PlanError(f"{file} was {how} after it was written; export the plan again.")
        loaded[entry["file"]] = jax_export.deserialize(bytearray(data))
    return LoadedPlan(manifest, loaded)


def stages_of(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All stages, in the order in which they run."""
    steps = [stage for step in manifest["rounds"] for stage in (step["server"], step["client"])]
    return [*steps, manifest["end"]]


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text())
    except FileNotFoundError:
        raise PlanError(f"{file} is missing: {file.parent} is no exported plan.") from None
    except ValueError as e:
        raise PlanError(f"{file} is truncated or altered: {e}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise PlanError(f"{file} is not the manifest of a {FORMAT}.")
    if not isinstance(manifest.get("version"), int) or manifest["version"] > VERSION:
        raise PlanError(
            f"{file} is of version {manifest.get('version')} of the format, and this fedeqx reads "
            f"up to {VERSION}. It was written by fedeqx {manifest.get('fedeqx')}; install that."
        )
    if _sealed(manifest)["sha256"] != manifest.get("sha256"):
        raise PlanError(f"{file} was altered after it was written; export the plan again.")
    return manifest


def _sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with a hash of all else in it."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _require_flatbuffers() -> None:
    try:
        import flatbuffers  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as e:
        raise ImportError(
            "Exported plans need the package flatbuffers, which the core installation leaves out: "
            "pip install 'fedeqx[export]'."
        ) from e
