"""The server of a plan on Flower: server stages, exchanges with nodes, checkpoints, a report."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from jaxtyping import Array

from .._export import LoadedPlan
from ._arrays import combined, to_host
from ._files import ServerFiles
from ._guard import AnswerTooLargeError, Guard
from ._messages import (
    Answer,
    MessageError,
    Request,
    answer_bytes,
    read_answer,
    request_records,
    require_numbers,
)
from ._plan_files import load_app_plan, placed
from ._settings import Settings, read_settings

_LOG = logging.getLogger("flwr")
_POLL_SECONDS = 0.5
_TELL_SECONDS = 10.0


class NotEnoughNodesError(RuntimeError):
    """Fewer nodes than the minimum, for longer than the run may wait."""


def server_app(folder: Path) -> ServerApp:
    """The ServerApp that runs the plan of an app's folder; see `build`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = read_settings(context.run_config)
        _Server(grid, load_app_plan(folder), settings, run_id=context.run_id).run()

    return app


class _DroppedError(Exception):
    """Nodes were lost where the others' values depend on them: the program must run again."""


class _Server:
    def __init__(self, grid: Grid, plan: LoadedPlan, settings: Settings, *, run_id: int):
        self.grid, self.guard, self.plan, self.settings = grid, Guard(grid), plan, settings
        self.manifest = plan.manifest
        self.values: list[Mapping[str, Any]] = self.manifest["values"]
        self.run_id = run_id
        self.files = ServerFiles(Path(settings.folder), plan, settings.carry)
        self.sizes: list[int] = self.manifest["cohort_sizes"]
        # Otherwise the clients are counted with their first answers, and a node that is lost then
        # costs nothing.
        self.size_is_needed_first = (
            not self.manifest["rounds"] or self.manifest["size_is_sent_first"]
        )

    def run(self) -> None:
        """All runs of the program that are left, each followed by a checkpoint."""
        inputs, start = self.files.start()
        at_clients = placed(self.manifest, "outputs", "clients")
        if start:
            _LOG.info("Going on after %d of %d runs", start, self.settings.rounds)
        for number in range(start, self.settings.rounds):
            began = time.monotonic()
            env, told = self._run_program(number, inputs)
            results = {
                entry["name"]: self.plan.value(entry["value"], env)
                for entry in self.manifest["outputs"]
                if entry["name"] not in at_clients
            }
            inputs = self.files.finish(number, inputs, results)
            told |= {"seconds": round(time.monotonic() - began, 3), "result": _scalars(results)}
            self.files.report(number, told)
            _LOG.info("Run %d of %d: %s", number + 1, self.settings.rounds, told)

    def _run_program(
        self, number: int, inputs: Mapping[int, Array]
    ) -> tuple[dict[int, Array], dict[str, Any]]:
        """One run of the program, with as many nodes as are left in the end."""
        dropped: dict[int, dict[str, Any]] = {}
        attempts = 0
        while True:
            nodes = self._wait(dropped)
            attempts += 1
            try:
                env, answered = self._attempt(number, attempts, dict(inputs), nodes, dropped)
            except _DroppedError:
                continue
            return env, {
                "attempts": attempts,
                "nodes": {str(node): clients for node, clients in answered.items()},
                "dropped": [{"node": str(node), **why} for node, why in dropped.items()],
            }

    def _attempt(
        self,
        number: int,
        attempt: int,
        env: dict[int, Array],
        nodes: list[int],
        dropped: dict[int, dict[str, Any]],
    ) -> tuple[dict[int, Array], dict[int, int]]:
        """The exchanges of one run; every node must take part in all of them."""
        name = f"{self.run_id}/{number}/{attempt}"
        clients: dict[int, int] = {}
        if self.size_is_needed_first:
            answers = self._ask(Request(self.plan_hash, name, number, -1), {}, [], nodes, dropped)
            clients = {node: answer.clients for node, answer in answers.items()}
            nodes = self._require_enough(list(answers), dropped)
            env |= self._sizes(clients)
        else:
            env |= {v: jnp.asarray(1, jnp.int32) for v in self.sizes}  # nothing sent depends on it
        for exchange, step in enumerate(self.manifest["rounds"]):
            env |= self.plan.run(step["server"], env)
            values = {m["to"]: self.plan.value(m["from"], env) for m in step["broadcasts"]}
            wanted = {m["to"]: self.values[m["to"]] for m in step["reductions"]}
            request = Request(self.plan_hash, name, number, exchange, values)
            answers = self._ask(request, wanted, step["reductions"], nodes, dropped, clients)
            if len(answers) < len(nodes) and (exchange or self.size_is_needed_first):
                raise _DroppedError
            nodes = self._require_enough(list(answers), dropped)
            if not clients:
                clients = {node: answer.clients for node, answer in answers.items()}
                env |= self._sizes(clients)
                env |= self.plan.run(step["server"], env)
            env |= _combined(step["reductions"], list(answers.values()))
        return env | self.plan.run(self.manifest["end"], env), clients

    @property
    def plan_hash(self) -> str:
        return self.manifest["sha256"]

    def _ask(
        self,
        request: Request,
        wanted: Mapping[int, Mapping[str, Any]],
        reductions: list[Mapping[str, Any]],
        nodes: list[int],
        dropped: dict[int, dict[str, Any]],
        clients: Mapping[int, int] | None = None,
    ) -> dict[int, Answer]:
        """The answers of the nodes that gave a right one in time. Others are added to `dropped`."""
        seconds = self.settings.round_seconds
        kind = "query" if request.exchange < 0 else "train"
        waiting: dict[str, int] = {}
        for node in nodes:
            message = Message(
                request_records(request), node, kind, ttl=seconds, group_id=request.attempt
            )
            (message_id,) = self.grid.push_messages([message]) or (None,)
            if message_id is None:
                self._drop(dropped, node, request, "Flower could not send it the message")
            else:
                waiting[message_id] = node
        answers: dict[int, Answer] = {}
        deadline, limit = time.monotonic() + seconds, answer_bytes(wanted)
        while waiting and time.monotonic() < deadline:
            for message_id, node in list(waiting.items()):
                try:
                    message = next(iter(self.guard.pull(message_id, limit)), None)
                    if message is None:
                        continue
                    answer = self._read(message, wanted, reductions)
                    if clients and clients[node] != answer.clients:
                        raise MessageError(
                            f"it has {answer.clients} clients, and had {clients[node]} before"
                        )
                    answers[node] = answer
                except (AnswerTooLargeError, MessageError) as e:
                    self._drop(dropped, node, request, str(e))
                except httpx.HTTPError:
                    raise  # the SuperLink itself cannot be reached
                except Exception as e:  # whatever a hostile message makes Flower raise
                    self._drop(dropped, node, request, f"its answer is no message: {e!r:.200}")
                del waiting[message_id]
            time.sleep(_POLL_SECONDS)
        for node in waiting.values():
            self._drop(dropped, node, request, f"no answer within {seconds:g} seconds")
        return {node: answers[node] for node in nodes if node in answers}

    @staticmethod
    def _read(message: Message, wanted: Any, reductions: Any) -> Answer:
        if message.has_error():
            raise MessageError(f"Flower reports: {str(message.error.reason)[:200]}")
        answer = read_answer(message.content, wanted)
        require_numbers(answer, reductions)
        return answer

    @staticmethod
    def _drop(dropped: dict[int, dict[str, Any]], node: int, request: Request, why: str) -> None:
        where = "before the first exchange" if request.exchange < 0 else request.exchange
        dropped[node] = {"exchange": where, "why": why}
        _LOG.warning("Run %d goes on without node %d: %s", request.run + 1, node, why)

    def _wait(self, dropped: Mapping[int, dict[str, Any]]) -> list[int]:
        """The nodes that are there, once they are enough."""
        settings = self.settings
        began, told = time.monotonic(), -_TELL_SECONDS
        while True:
            nodes = sorted(set(self.grid.get_node_ids()) - set(dropped))
            if len(nodes) >= settings.min_nodes:
                return nodes
            waited = time.monotonic() - began
            state = f"{len(nodes)} of at least {settings.min_nodes} nodes are there"
            if waited > settings.wait_seconds:
                others = "".join(f"; without node {n}: {w['why']}" for n, w in dropped.items())
                raise NotEnoughNodesError(
                    f"After {settings.wait_seconds:g} seconds {state}{others}. Start more "
                    "SuperNodes, or give a smaller min-nodes, and start the run again: it goes on "
                    "after the last finished run of the program."
                )
            if waited - told >= _TELL_SECONDS:
                told = waited
                _LOG.info("Waiting: %s", state)
            time.sleep(_POLL_SECONDS)

    def _require_enough(self, nodes: list[int], dropped: Any) -> list[int]:
        if len(nodes) < self.settings.min_nodes:
            self._wait(dropped)
            raise _DroppedError
        return nodes

    def _sizes(self, clients: Mapping[int, int]) -> dict[int, Array]:
        total = sum(clients.values())
        if not 0 < total < 2**31:
            raise RuntimeError(
                f"The nodes have {total} clients together. Check the path of the data in the "
                f"nodes' configuration ({self.settings.data_key!r})."
            )
        return {v: jnp.asarray(total, jnp.int32) for v in self.sizes}


def _combined(reductions: list[Mapping[str, Any]], answers: list[Answer]) -> dict[int, Array]:
    """The nodes' values, reduced. Nodes without clients have none."""
    result: dict[int, Array] = {}
    for answer in answers:
        for move in reductions if answer.clients else ():
            to = move["to"]
            result[to] = combined(move["how"], result.get(to), answer.values[to])
    return result


def _scalars(results: Mapping[str, Any]) -> dict[str, Any]:
    """What of a result can be told in a line."""
    hosts = {name: np.asarray(to_host(x)) for name, x in results.items()}
    return {
        name: x.astype(object).item()
        for name, x in hosts.items()
        if x.ndim == 0 and x.dtype.kind in "biuf"
    }
