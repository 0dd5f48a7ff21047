"""A plan inside a Flower app, whose bundles hold text files only: stages as Base64 in JSON."""

import base64
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._export import MANIFEST, LoadedPlan, load_plan_files, stages_of

PLAN = "plan"


def write_app_plan(plan_folder: Path, manifest: dict, app: Path) -> None:
    """Copy an exported plan into an app's folder."""
    place = app / PLAN
    place.mkdir()
    shutil.copy(plan_folder / MANIFEST, place / MANIFEST)
    for entry in stages_of(manifest):
        data = (plan_folder / entry["file"]).read_bytes()
        text = json.dumps({"base64": base64.b64encode(data).decode()})
        (place / f"{entry['file']}.json").write_text(text)


def load_app_plan(app: Path) -> LoadedPlan:
    """The plan of an app's folder; a `PlanError` if it was altered."""
    place = app / PLAN

    def read(name: str) -> bytes:
        try:
            return base64.b64decode(json.loads((place / f"{name}.json").read_text())["base64"])
        except (ValueError, KeyError, TypeError):
            return b""  # then the hash is wrong, and the file is named

    return load_plan_files(place, read)


def placed(manifest: Mapping[str, Any], which: str, place: str) -> dict[str, int]:
    """The `"inputs"` or `"outputs"` of a plan at one place, by name: the numbers of their values.

    A result that is a constant of the program is at neither.
    """
    values = manifest["values"]
    return {
        entry["name"]: entry["value"]
        for entry in manifest[which]
        if not isinstance(entry["value"], dict) and values[entry["value"]]["place"] == place
    }
