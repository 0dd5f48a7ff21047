"""What the server keeps on disk, so that a run that was stopped goes on where it was."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Array

from .._export import LoadedPlan
from ._arrays import ArrayError, read_arrays, write_arrays
from ._plan_files import placed

ARGUMENTS, PROGRESS, REPORT, RESULT = "arguments.npz", "progress.json", "report.jsonl", "result.npz"


class ServerFiles:
    """A run's folder: `arguments.npz` comes from the user, all else is written here.

    - `state-*.npz`: the arguments that change from run to run; `progress.json` says which one is
        whole, and is replaced last.
    - `report.jsonl`: a line for each run of the program. `result.npz`: the last run's results.
    """

    def __init__(self, folder: Path, plan: LoadedPlan, carry: Mapping[str, str]):
        self._folder, self._plan = folder, plan
        self._inputs = placed(plan.manifest, "inputs", "server")
        self._carried = carried_leaves(plan.manifest, carry)

    def start(self) -> tuple[dict[int, Array], int]:
        """The program's server arguments, and how often it ran already."""
        values = self._plan.manifest["values"]
        entries = {name: values[v] for name, v in self._inputs.items()}
        file = self._folder / ARGUMENTS
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} is missing. Write the server's arguments with "
                "LoadedPlan.save_arguments(file, ...), and put the file there."
            )
        found = read_arrays(file, entries)
        done = self._finished()
        if done is not None:
            names = {name: entries[name] for name in self._carried}
            state = self._folder / done["state"]
            if not state.is_file() or _sha256(state) != done["sha256"]:
                raise ArrayError(
                    f"{state} is missing or damaged. Restore it, or remove {PROGRESS} to start "
                    "from the beginning."
                )
            found |= read_arrays(state, names)
        inputs = {self._inputs[name]: x for name, x in found.items()}
        return inputs, 0 if done is None else done["finished"]

    def finish(
        self, number: int, inputs: Mapping[int, Array], results: Mapping[str, Any]
    ) -> dict[int, Array]:
        """Keep what a run of the program gave; the arguments of the next one."""
        carried = {name: results[result] for name, result in self._carried.items()}
        _replaced(self._folder / RESULT, results)
        state = self._folder / f"state-{number:05d}.npz"
        _replaced(state, carried)
        progress = {
            "plan": self._plan.manifest["sha256"],
            "finished": number + 1,
            "state": state.name,
            "sha256": _sha256(state),
        }
        building = self._folder / f".{PROGRESS}"
        building.write_text(json.dumps(progress, indent=1))
        os.replace(building, self._folder / PROGRESS)
        for old in self._folder.glob("state-*.npz"):
            if old.name < f"state-{number - 1:05d}.npz":
                old.unlink()
        return dict(inputs) | {self._inputs[name]: x for name, x in carried.items()}

    def report(self, number: int, told: Mapping[str, Any]) -> None:
        """Add a line to the report."""
        with (self._folder / REPORT).open("a") as file:
            file.write(json.dumps({"run": number, **told}) + "\n")

    def _finished(self) -> dict[str, Any] | None:
        file = self._folder / PROGRESS
        if not file.is_file():
            return None
        done = json.loads(file.read_text())
        if done["plan"] != self._plan.manifest["sha256"]:
            raise ArrayError(
                f"{self._folder} holds a run of another plan ({done['plan'][:12]}). Give this one "
                "a folder of its own."
            )
        return done


def carried_leaves(manifest: Mapping[str, Any], carry: Mapping[str, str]) -> dict[str, str]:
    """Which result, by name, becomes which argument of the next run; checked to fit."""
    values = manifest["values"]
    results = {entry["name"]: entry["value"] for entry in manifest["outputs"]}
    leaves: dict[str, str] = {}
    for argument, result in carry.items():
        some = {
            entry["name"]: result + entry["name"].removeprefix(argument)
            for entry in manifest["inputs"]
            if entry["name"] == argument
            or entry["name"].startswith((f"{argument}.", f"{argument}["))
        }
        if not some:
            names = ", ".join(entry["name"] for entry in manifest["inputs"])
            raise ArrayError(f"carry: the program has no argument {argument!r}; it has {names}.")
        leaves |= some
    inputs = {entry["name"]: values[entry["value"]] for entry in manifest["inputs"]}
    for argument, result in leaves.items():
        if result not in results:
            names = ", ".join(results)
            raise ArrayError(
                f"carry: the argument {argument} needs the result {result}; there are {names}."
            )
        value = results[result]
        if not isinstance(value, dict) and values[value] != inputs[argument]:
            raise ArrayError(
                f"carry: {argument} is {inputs[argument]}, and {result} is {values[value]}."
            )
    return leaves


def _replaced(file: Path, arrays: Mapping[str, Any]) -> None:
    building = file.with_name(f".{file.name}")
    write_arrays(building, arrays)
    os.replace(building, file)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
