"""A node of a plan on Flower: client stages on its own data, and what its clients keep."""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from jaxtyping import Array

from ...plan._errors import PlanError
from ...plan._evaluate import reduce_over
from .._export import LoadedPlan
from ._arrays import combined, from_host, stored_dtype, stored_shape, to_host, write_arrays
from ._messages import (
    Answer,
    MessageError,
    Request,
    answer_records,
    array_record,
    read_array_record,
    read_request,
    refusal_records,
)
from ._node import Clients, NodeClient, NodeError, Wanted
from ._plan_files import load_app_plan, placed
from ._settings import SettingsError, read_settings

_LOG = logging.getLogger("flwr")
# Keys of a node's own configuration.
PIN, RESULTS = "plan", "results"
_KEPT, _KEPT_OF = "fedeqx-kept", "fedeqx-kept-of"


def client_app(folder: Path, *, clients: Clients) -> ClientApp:
    """The ClientApp that runs the client stages of an app's folder; see `build`.

    **Arguments:**

    - `folder`: of the app, with its plan.
    - `clients`: gives the node's clients, one after the other, the same ones each time that it is
        called for the same run of the program.
    """
    app = ClientApp()

    @app.train()
    @app.query()
    def answer(message: Message, context: Context) -> Message:
        try:
            records = _Node(folder, context, clients).answer(message.content)
        except (NodeError, PlanError, MessageError, SettingsError) as e:
            _LOG.error("Refused: %s", e)
            records = refusal_records(str(e))
        except Exception as e:  # its text may tell of the data, and stays here
            _LOG.exception("The client stage failed")
            records = refusal_records(f"{type(e).__name__}; see the node's own log")
        return Message(records, reply_to=message)

    return app


class _Node:
    def __init__(self, folder: Path, context: Context, clients: Clients):
        self.plan = _plan(folder)
        self.manifest = self.plan.manifest
        self.context, self.clients = context, clients
        pinned = str(context.node_config.get(PIN, ""))
        if pinned and not self.manifest["sha256"].startswith(pinned):
            raise NodeError(
                f"this node runs the plan {pinned[:12]} only, and was sent "
                f"{self.manifest['sha256'][:12]}"
            )

    def answer(self, records: RecordDict) -> RecordDict:
        request = read_request(records, self.manifest)
        if request.exchange < 0:
            return answer_records(Answer(sum(1 for _ in self._own(request))))
        return answer_records(self._exchange(request))

    def _exchange(self, request: Request) -> Answer:
        step = self.manifest["rounds"][request.exchange]
        last = request.exchange + 1 == len(self.manifest["rounds"])
        before, after = self._kept_before(request), self._kept_after(request.exchange)
        kept: dict[str, Array] = {}
        reduced: dict[int, Array] = {}
        number = -1
        for number, client in enumerate(self._own(request)):
            env = self._arguments(client)
            own = set(env)
            env |= {v: before[f"{number}/{v}"] for v in self._kept_after(request.exchange - 1)}
            env |= request.values
            env |= self.plan.run(step["client"], env)
            for move in step["reductions"]:
                value = reduce_over(move["how"], env[move["from"]][None])
                reduced[move["to"]] = combined(move["how"], reduced.get(move["to"]), value)
            if last:
                self._write_results(request, number, env)
            else:
                kept |= {f"{number}/{v}": env[v] for v in after if v not in own}
        self._keep(request, kept)
        if last and self._client_outputs():
            _LOG.info("Wrote the results of %d clients", number + 1)
        return Answer(number + 1, reduced)

    def _own(self, request: Request) -> Iterable[NodeClient]:
        settings = read_settings(self.context.run_config)
        path = self.context.node_config.get(settings.data_key)
        if not isinstance(path, str):
            raise NodeError(
                f"this node's configuration has no {settings.data_key!r}, the path of its data"
            )
        inputs = {
            name: (tuple(entry["shape"]), entry["dtype"])
            for name, _, entry in self._client_inputs()
        }
        return self.clients(Wanted(path, request.run, inputs, settings))

    def _client_inputs(self) -> list[tuple[str, int, Mapping[str, Any]]]:
        inputs = placed(self.manifest, "inputs", "clients")
        return [(name, v, self.manifest["values"][v]) for name, v in inputs.items()]

    def _arguments(self, client: NodeClient) -> dict[int, Array]:
        env = {}
        for name, v, entry in self._client_inputs():
            if name not in client.arrays:
                raise NodeError(f"the node's data gives no {name}")
            host = to_host(client.arrays[name])
            if (host.dtype, host.shape) != (stored_dtype(entry["dtype"]), stored_shape(entry)):
                raise NodeError(
                    f"{name} must be {entry['dtype']}{entry['shape']} for a client, but is "
                    f"{host.dtype}{list(host.shape)}"
                )
            env[v] = from_host(entry, host)
        return env

    def _kept_after(self, exchange: int) -> list[int]:
        """The values that a client holds after an exchange, besides its own arguments."""
        if exchange < 0:
            return []
        own = {v for _, v, _ in self._client_inputs()}
        step = self.manifest["rounds"][exchange]
        until_end = [
            v for s in self.manifest["rounds"][: exchange + 1] for v in s["client_results"]
        ]
        return [v for v in dict.fromkeys([*step["client_keeps"], *until_end]) if v not in own]

    def _kept_before(self, request: Request) -> Mapping[str, Array]:
        needed = self._kept_after(request.exchange - 1)
        if not needed:
            return {}
        state = self.context.state
        told = state.config_records.get(_KEPT_OF)
        if told is None or (told["attempt"], told["exchange"]) != (
            request.attempt,
            request.exchange - 1,
        ):
            raise NodeError(
                f"this node has nothing kept from exchange {request.exchange - 1} of this run: it "
                "was started anew meanwhile"
            )
        record = state.array_records[_KEPT]
        count = len(record) // len(needed)
        values = self.manifest["values"]
        return read_array_record(
            record, {f"{i}/{v}": values[v] for i in range(count) for v in needed}
        )

    def _keep(self, request: Request, kept: Mapping[str, Array]) -> None:
        state = self.context.state
        state[_KEPT_OF] = ConfigRecord({"attempt": request.attempt, "exchange": request.exchange})
        state[_KEPT] = array_record(kept)

    def _client_outputs(self) -> dict[str, int]:
        return placed(self.manifest, "outputs", "clients")

    def _write_results(self, request: Request, number: int, env: Mapping[int, Array]) -> None:
        outputs = self._client_outputs()
        if not outputs:
            return
        place = self.context.node_config.get(RESULTS)
        if not isinstance(place, str):
            raise NodeError(
                f"the program leaves results at its clients ({', '.join(outputs)}), and this "
                f"node's configuration has no {RESULTS!r}, a folder for them"
            )
        folder = Path(place) / f"run-{request.run:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        write_arrays(folder / f"client-{number:06d}.npz", {n: env[v] for n, v in outputs.items()})


@cache
def _plan(folder: Path) -> LoadedPlan:
    return load_app_plan(folder)
