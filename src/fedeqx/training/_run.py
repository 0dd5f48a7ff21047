"""A run folder: configuration, metrics, checkpoints and the final model, never half written."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, final

import equinox as eqx

T = TypeVar("T")


class RunError(Exception):
    """A run folder that cannot be used as asked; says what is in it and what to do."""


@final
class Run:
    """A folder that holds one run.

    - `config.json`: what the run was asked to do.
    - `metrics.jsonl`: one JSON object a line, in the order in which they were told.
    - `checkpoint.eqx`, `checkpoint.json`: the last saved state and where the run stood.
    - further files by `save`, such as `model.eqx`.

    Each file is written beside its place and then moved there, so that an interruption leaves the
    old one or the new one.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any]):
        """Opens a run: a new one, or one that was interrupted and had the same configuration.

        Raises `RunError` if the folder holds something else: another configuration, or files that
        are no run.
        """
        self.folder = Path(folder)
        self.config = json.loads(json.dumps(config))
        written = self.folder / "config.json"
        if written.exists():
            found = json.loads(written.read_text())
            if found != self.config:
                differs = {
                    k: (found.get(k), self.config.get(k))
                    for k in sorted(found.keys() | self.config.keys())
                    if found.get(k) != self.config.get(k)
                }
                raise RunError(
                    f"{self.folder} holds a run with another configuration; (there, asked): "
                    f"{differs}. Ask for the same, or choose another folder."
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise RunError(f"{self.folder} is not empty and holds no run; choose another folder.")
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.save_text("config.json", json.dumps(self.config, indent=2) + "\n")

    def log(self, **values: Any) -> None:
        """Appends one line to the metrics."""
        with (self.folder / "metrics.jsonl").open("a") as f:
            f.write(json.dumps(values) + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines written so far."""
        path = self.folder / "metrics.jsonl"
        if path.exists():
            with path.open() as f:
                yield from (json.loads(line) for line in f)

    def save(self, name: str, tree: Any) -> Path:
        """Writes a PyTree's leaves; read it back with `eqx.tree_deserialise_leaves`."""
        path = self.folder / name
        partial = path.with_name(path.name + ".partial")
        eqx.tree_serialise_leaves(partial, tree)
        os.replace(partial, path)
        return path

    def checkpoint(self, tree: Any, **where: Any) -> None:
        """Saves a state and where the run stands, together: a restart finds both or neither."""
        lines = sum(1 for _ in self.metrics())
        name = f"checkpoint-{'-'.join(str(value) for value in where.values())}.eqx"
        self.save(name, tree)
        note = {"where": where, "file": name, "metrics": lines}
        self.save_text("checkpoint.json", json.dumps(note) + "\n")
        for old in self.folder.glob("checkpoint-*.eqx"):
            if old.name != name:
                old.unlink()

    def position(self) -> dict[str, Any] | None:
        """Where the last checkpoint stands, or `None` if there is none."""
        path = self.folder / "checkpoint.json"
        return json.loads(path.read_text())["where"] if path.exists() else None

    def restore(self, like: T) -> T:
        """The state of the last checkpoint; what was measured after it is forgotten.

        `like` is a PyTree of the same structure, shapes and dtypes.
        """
        note = json.loads((self.folder / "checkpoint.json").read_text())
        state = eqx.tree_deserialise_leaves(self.folder / note["file"], like)
        lines = list(self.metrics())[: note["metrics"]]
        self.save_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        return state

    def save_text(self, name: str, text: str) -> None:
        """Writes a text file."""
        path = self.folder / name
        partial = path.with_name(path.name + ".partial")
        partial.write_text(text)
        os.replace(partial, path)
