"""Pulls answers one at a time, and never more bytes than an honest answer has."""

import threading
from collections.abc import Iterable
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

_PULLS = ("/pull-object", "/pull-messages")


class AnswerTooLargeError(Exception):
    """An answer with more bytes than the plan allows. It was not read."""


class Guard:
    """A Flower grid's answers, bounded in memory.

    Flower takes what a node sends whole, up to 2 GiB an object. The responses' announced lengths
    are therefore added up before their bodies are read, and the connection given up at the limit.
    """

    def __init__(self, grid: Grid):
        self._grid = grid
        self._lock = threading.Lock()
        self._left: int | None = None
        client = self._http_client(grid)
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks["response"], self._admit]}

    def pull(self, message_id: str, limit: int) -> Iterable[Message]:
        """The answer to a message, if it is there; of at most `limit` bytes."""
        with self._lock:
            self._left = limit
        try:
            return list(self._grid.pull_messages([message_id]))
        finally:
            with self._lock:
                self._left = None

    def _admit(self, response: httpx.Response) -> None:
        if not response.request.url.path.endswith(_PULLS):
            return
        length = response.headers.get("content-length")
        with self._lock:
            if self._left is None:
                return
            if length is None:
                raise AnswerTooLargeError("the answer does not say how long it is")
            self._left -= int(length)
            if self._left < 0:
                raise AnswerTooLargeError(
                    f"the answer is at least {-self._left} bytes longer than the plan allows"
                )

    @staticmethod
    def _http_client(grid: Any) -> httpx.Client:
        client = getattr(getattr(grid, "_runtime_client", None), "_client", None)
        if not isinstance(client, httpx.Client):
            raise RuntimeError(
                f"A {type(grid).__name__} of this Flower is not known to fedeqx, which could not "
                "bound what nodes send. Use Flower 1.42 with a SuperLink."
            )
        return client
