"""What a Flower app is told besides its plan."""

import dataclasses
from collections.abc import Mapping
from typing import Any

_CARRY = "carry"


class SettingsError(ValueError):
    """A setting that is missing, unknown or impossible."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a run, in TOML with hyphens for underscores.

    - `folder`: on the server's machine: where `arguments.npz` is, and where checkpoints, the report
        and the result go.
    - `rounds`: how often the program runs. Each run has as many exchanges as the plan has rounds.
    - `carry`: which argument of the program gets which part of the last run's result, such as
        `{"state": "result[0]"}`.
    - `min_nodes`: nodes that must be there, and that must answer.
    - `wait_seconds`: how long to wait for them.
    - `round_seconds`: how long a node may take for one exchange.
    - `data_key`: under which key a node's own configuration has the path of its grouped data.
    - `clients_per_node`: how many of its groups a node draws for a run; 0 takes all.
    - `epochs`, `seed`: of the nodes' clients, as for `fedeqx.data.cohorts`.
    """

    folder: str
    rounds: int = 1
    carry: Mapping[str, str] = dataclasses.field(default_factory=dict)
    min_nodes: int = 2
    wait_seconds: float = 300.0
    round_seconds: float = 3600.0
    data_key: str = "data"
    clients_per_node: int = 0
    epochs: int = 1
    seed: int = 0

    def __post_init__(self):
        least = {"rounds": 1, "min_nodes": 1, "clients_per_node": 0, "epochs": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise SettingsError(
                    f"{_key(name)} = {getattr(self, name)}: give at least {number}."
                )
        for name in ("wait_seconds", "round_seconds"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{_key(name)} = {getattr(self, name)}: give more than 0.")
        for name in ("folder", "data_key"):
            if not getattr(self, name):
                raise SettingsError(f"{_key(name)} must not be empty.")


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Settings of a TOML file, or of a run's configuration, whose tables are flattened."""
    fields = {_key(field.name): field for field in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    carry: dict[str, str] = dict(config.get(_CARRY, {}))
    for key, value in config.items():
        if key.startswith(f"{_CARRY}."):
            carry[key.removeprefix(f"{_CARRY}.")] = value
        elif key != _CARRY and key not in fields:
            raise SettingsError(f"There is no setting {key!r}; there are {', '.join(fields)}.")
        elif key != _CARRY:
            values[fields[key].name] = _typed(key, value, fields[key].type)
    for argument, result in carry.items():
        if not isinstance(result, str):
            raise SettingsError(f"carry.{argument} = {result!r}: give the name of a result.")
    if "folder" not in values:
        raise SettingsError(
            "The setting folder is missing: a folder on the server's machine for arguments.npz, "
            "checkpoints and results."
        )
    return Settings(carry=carry, **values)


def write_settings(settings: Settings) -> dict[str, Any]:
    """What `read_settings` reads again."""
    return {_key(name): value for name, value in dataclasses.asdict(settings).items()}


def _typed(key: str, value: Any, kind: Any) -> Any:
    right = isinstance(value, kind) and not isinstance(value, bool)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not right:
        raise SettingsError(f"{key} = {value!r}: give a {kind.__name__}.")
    return value


def _key(name: str) -> str:
    return name.replace("_", "-")
