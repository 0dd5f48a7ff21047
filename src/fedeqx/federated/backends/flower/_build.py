"""Makes a Flower app of an exported plan."""

import re
import shutil
import tomllib
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...plan._errors import PlanError
from .._export import LoadedPlan, load_plan
from ._arrays import write_arrays
from ._files import carried_leaves
from ._plan_files import placed, write_app_plan
from ._settings import Settings, SettingsError, read_settings, write_settings

PACKAGE = "fedeqx_app"
DEFAULT_CLIENTS = "fedeqx.training:node_clients"
FLOWER = "flwr>=1.42,<1.43"
_LARGEST_BUNDLE = 10 << 20

_SERVER = '''\
"""The server: evaluates the plan's server stages."""

from pathlib import Path

from fedeqx.federated.backends.flower import server_app

app = server_app(Path(__file__).parent)
'''

_CLIENT = '''\
"""A node: evaluates the plan's client stages on its own data."""

from pathlib import Path

from {module} import {function}

from fedeqx.federated.backends.flower import client_app

app = client_app(Path(__file__).parent, clients={function})
'''

_README = """\
# {name}

A federated program, `{program}`, as a Flower app. Its plan has the hash

    {hash}

Run it with `flwr run .` on a SuperLink and SuperNodes that have `fedeqx[flower]` installed.

- The server's folder is `{folder}`: put `arguments.npz` there.
- A node's configuration needs `{data_key}`, the path of its grouped data{results}. With
  `plan="{short}"` a node runs this plan and no other.
"""


def build(
    plan: str | Path,
    out: str | Path,
    settings: Settings,
    *,
    name: str | None = None,
    clients: str = DEFAULT_CLIENTS,
) -> Path:
    """Writes a Flower app, ready for `flwr run`, that runs an exported plan.

    **Arguments:**

    - `plan`: the folder that `Plan.export` wrote.
    - `out`: the app's folder, which must not be there yet. Flower wants its name to begin with a
        letter and to have at most 32 letters, digits and hyphens.
    - `settings`: how often, with how many nodes and how long; see `Settings`.
    - `name`: the app's name; by default that of its folder.
    - `clients`: `MODULE:FUNCTION`, what gives a node's clients there; by default from grouped data.

    **Returns:** the app's folder. Raises a `PlanError` for a plan that was altered or that is too
    large for a Flower app, and a `ValueError` for settings that do not fit the plan.
    """
    source, place = Path(plan), Path(out)
    if place.exists():
        raise FileExistsError(f"{place} exists; give a new folder, or remove that one.")
    name = place.resolve().name if name is None else name
    for told in (name, place.resolve().name):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", told):
            raise ValueError(
                f"{told!r} is no name for a Flower app: give a letter, and then up to 31 letters, "
                "digits and hyphens."
            )
    module, colon, function = clients.partition(":")
    if not (colon and module and function):
        raise ValueError(f"clients={clients!r}: give MODULE:FUNCTION.")
    manifest = load_plan(source).manifest
    carried_leaves(manifest, settings.carry)
    building = place.with_name(f".{place.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    try:
        package = building / PACKAGE
        package.mkdir(parents=True)
        write_app_plan(source, manifest, package)
        (package / "__init__.py").write_text(f'"""The Flower app {name}."""\n')
        (package / "server_app.py").write_text(_SERVER)
        (package / "client_app.py").write_text(_CLIENT.format(module=module, function=function))
        (building / "pyproject.toml").write_text(_project(name, manifest, settings))
        (building / "README.md").write_text(_readme(name, manifest, settings))
        _require_small(building)
        building.rename(place)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return place


def save_arguments(plan: LoadedPlan, file: str | Path, *args: Any, **kwargs: Any) -> None:
    """Writes the server's arguments of an exported program for `arguments.npz`.

    The arguments are those of a call of the plan; what is at the clients is checked and left out.
    """
    arrays = plan.arguments(*args, **kwargs)
    server = placed(plan.manifest, "inputs", "server")
    write_arrays(Path(file), {name: arrays[v] for name, v in server.items()})


def read_settings_file(file: str | Path) -> Settings:
    """The settings in a TOML file."""
    try:
        with Path(file).open("rb") as opened:
            return read_settings(tomllib.load(opened))
    except tomllib.TOMLDecodeError as e:
        raise SettingsError(f"{file} is no TOML: {e}.") from e


def _project(name: str, manifest: Mapping[str, Any], settings: Settings) -> str:
    config = write_settings(settings)
    carry = config.pop("carry")
    lines = [f"{key} = {_toml(value)}" for key, value in config.items()]
    if carry:
        lines += ["", "[tool.flwr.app.config.carry]"]
        lines += [f"{_toml(key)} = {_toml(value)}" for key, value in carry.items()]
    return "\n".join(
        [
            "[build-system]",
            'requires = ["hatchling"]',
            'build-backend = "hatchling.build"',
            "",
            "[project]",
            f'name = "{name}"',
            'version = "1.0.0"',
            f"description = {_toml('The federated program ' + manifest['name'])}",
            f'dependencies = ["fedeqx[flower]>={version("fedeqx")}"]',
            "",
            "[tool.hatch.build.targets.wheel]",
            'packages = ["."]',
            "",
            "[tool.flwr.app]",
            'publisher = "fedeqx"',
            "",
            "[tool.flwr.app.components]",
            f'serverapp = "{PACKAGE}.server_app:app"',
            f'clientapp = "{PACKAGE}.client_app:app"',
            "",
            "[tool.flwr.app.config]",
            *lines,
            "",
        ]
    )


def _readme(name: str, manifest: Mapping[str, Any], settings: Settings) -> str:
    at_clients = placed(manifest, "outputs", "clients")
    return _README.format(
        name=name,
        program=manifest["name"],
        hash=manifest["sha256"],
        short=manifest["sha256"][:12],
        folder=settings.folder,
        data_key=settings.data_key,
        results=", and `results`, a folder for its clients' results" if at_clients else "",
    )


def _toml(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def _require_small(folder: Path) -> None:
    sizes = {
        file: len(zlib.compress(file.read_bytes())) for file in folder.rglob("*") if file.is_file()
    }
    if sum(sizes.values()) > _LARGEST_BUNDLE:
        largest = max(sizes, key=sizes.__getitem__)
        raise PlanError(
            f"The app would have {sum(sizes.values()) / 2**20:.1f} MiB, and Flower takes up to 10. "
            f"The largest file is {largest.name}: make large constants of the program arguments."
        )
