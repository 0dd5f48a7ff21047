"""What the server and a node tell each other. Everything that is not listed here is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import Array

from ._arrays import RAW, ArrayError, from_bytes, num_bytes, to_bytes, to_host

_TASK, _VALUES = "fedeqx", "values"
_LONGEST_REFUSAL = 500
_MOST_CLIENTS = 2**31 - 1
# What names, shapes and the records around the arrays may take on their way.
_BYTES_AROUND, _BYTES_AROUND_AN_ARRAY = 1 << 16, 1 << 10


class MessageError(ValueError):
    """A message that is not what the plan lists."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The server's: do the client stage of one exchange.

    - `plan`: the hash of the plan's manifest.
    - `attempt`: names this run of the program; what a node keeps belongs to one.
    - `run`: how often the program ran before; the clients of a node depend on it.
    - `exchange`: the round of the plan.
    - `values`: what the plan broadcasts in it, by the number of the client value.
    """

    plan: str
    attempt: str
    run: int
    exchange: int
    values: Mapping[int, Array] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Answer:
    """A node's: how many clients it has, and their values, reduced, by the server value."""

    clients: int
    values: Mapping[int, Array] = dataclasses.field(default_factory=dict)


def request_records(request: Request) -> RecordDict:
    """A request as Flower's records."""
    task = {
        "plan": request.plan,
        "attempt": request.attempt,
        "run": request.run,
        "exchange": request.exchange,
    }
    return RecordDict({_TASK: ConfigRecord(task), _VALUES: array_record(request.values)})


def read_request(records: RecordDict, manifest: Mapping[str, Any]) -> Request:
    """The request in a message from the server."""
    task = dict(records.config_records[_TASK])
    exchange = int(task["exchange"])  # pyright: ignore[reportArgumentType]
    if task["plan"] != manifest["sha256"]:
        raise MessageError(
            f"this node has the plan {manifest['sha256'][:12]}, and the server runs "
            f"{str(task['plan'])[:12]}"
        )
    if not -1 <= exchange < len(manifest["rounds"]):
        raise MessageError(f"the plan has no exchange {exchange}")
    moves = manifest["rounds"][exchange]["broadcasts"] if exchange >= 0 else []
    wanted = {move["to"]: manifest["values"][move["to"]] for move in moves}
    values = read_array_record(records.array_records[_VALUES], wanted)
    return Request(str(task["plan"]), str(task["attempt"]), int(task["run"]), exchange, values)  # pyright: ignore[reportArgumentType]


def answer_records(answer: Answer) -> RecordDict:
    """An answer as Flower's records."""
    task = ConfigRecord({"clients": answer.clients})
    return RecordDict({_TASK: task, _VALUES: array_record(answer.values)})


def refusal_records(why: str) -> RecordDict:
    """A node's refusal as Flower's records."""
    return RecordDict({_TASK: ConfigRecord({"refused": why[:_LONGEST_REFUSAL]})})


def read_answer(records: RecordDict, wanted: Mapping[int, Mapping[str, Any]]) -> Answer:
    """A node's answer, checked to be exactly what was asked for.

    `wanted` describes the values. Raises `MessageError` with what is wrong.
    """
    unknown = sorted(set(records) - {_TASK, _VALUES})
    if unknown or _TASK not in records.config_records:
        raise MessageError(f"the answer has other records than asked for: {unknown[:3]}")
    task = dict(records.config_records[_TASK])
    if "refused" in task:
        raise MessageError(f"the node refused: {str(task['refused'])[:_LONGEST_REFUSAL]}")
    clients = task.get("clients")
    if set(task) != {"clients"} or type(clients) is not int or not 0 <= clients <= _MOST_CLIENTS:
        raise MessageError(f"the number of clients is {str(clients)[:40]!r}")
    if _VALUES not in records.array_records:
        raise MessageError("the answer has no arrays")
    return Answer(
        clients, read_array_record(records.array_records[_VALUES], wanted if clients else {})
    )


def require_numbers(answer: Answer, reductions: list[Mapping[str, Any]]) -> None:
    """Refuse NaN, and infinities where they would be added up."""
    for move in reductions if answer.clients else ():
        value = np.asarray(to_host(answer.values[move["to"]]))
        if value.dtype.kind not in "fcV":
            continue
        value = value.astype(np.float32) if value.dtype.kind == "V" else value
        bad = np.isnan(value) if move["how"] != "sum" else ~np.isfinite(value)
        if bad.any():
            raise MessageError(
                f"{move['name']} has {int(bad.sum())} elements that are NaN or infinite, of "
                f"{bad.size}"
            )


def answer_bytes(wanted: Mapping[int, Mapping[str, Any]]) -> int:
    """The most bytes that an answer with these values may have on its way."""
    arrays = sum(num_bytes(entry) + _BYTES_AROUND_AN_ARRAY for entry in wanted.values())
    return arrays + _BYTES_AROUND


def array_record(values: Mapping[Any, Array]) -> ArrayRecord:
    """Values by number as Flower's record of arrays."""
    return ArrayRecord({str(number): _to_flower(value) for number, value in values.items()})


def read_array_record(
    record: ArrayRecord, wanted: Mapping[Any, Mapping[str, Any]]
) -> dict[Any, Array]:
    """The values of a record, checked to be those wanted, to the byte."""
    names = {str(number): number for number in wanted}
    missing, unknown = sorted(set(names) - set(record)), sorted(set(record) - set(names))
    if missing or unknown:
        raise MessageError(f"arrays are missing ({missing[:3]}) or not asked for ({unknown[:3]})")
    return {
        number: _from_flower(name, record[name], wanted[number]) for name, number in names.items()
    }


def _to_flower(x: Array) -> FlowerArray:
    return FlowerArray(str(x.dtype), tuple(x.shape), RAW, to_bytes(x))


def _from_flower(name: str, array: FlowerArray, wanted: Mapping[str, Any]) -> Array:
    found = array.stype, array.dtype, tuple(array.shape)
    expected = RAW, wanted["dtype"], tuple(wanted["shape"])
    if found != expected:
        told = (
            f"{str(array.dtype)[:40]}{list(array.shape)[:8]} in the form {str(array.stype)[:40]!r}"
        )
        raise MessageError(
            f"array {name} must be {wanted['dtype']}{list(wanted['shape'])} in the form {RAW!r}, "
            f"but is {told}"
        )
    try:
        return from_bytes(wanted, array.data)
    except ArrayError as e:
        raise MessageError(f"array {name}: {e}") from None
