"""A cohort that stays on the host, and reaches the device chunk by chunk."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, final

import jax.tree_util as jtu
from jax.core import Tracer

from .._placement import Clients, is_clients

T = TypeVar("T")


@final
class HostClients(Generic[T]):
    """Clients' values that do not fit the device: an argument of a streamed program.

    Stands for a `Clients` of all chunks, one after the other. Since chunks are read in Python, the
    program can be neither jitted nor differentiated around `stream`; stream its derivative:
    `stream(jax.value_and_grad(f))(model, HostClients(...))`.

    **Arguments:**

    - `chunks`: `Clients` of some clients each, all alike but for the number of clients; a Grain
        data set, a list, or anything that can be iterated again: a program of several rounds goes
        through the cohort several times. Chunks of one size, but for the last, compile once.
    - `size`: how many clients there are in all. The server knows it before it has seen them.
    """

    def __init__(self, chunks: Iterable[Clients[T]], size: int):
        if isinstance(chunks, Iterator):
            raise TypeError(
                "HostClients needs chunks that can be iterated more than once, such as a list or a "
                f"Grain data set, but got a {type(chunks).__name__}, which is spent after one pass."
            )
        if size < 1:
            raise ValueError(f"HostClients(size={size}): a cohort needs at least one client.")
        self._chunks, self.size = chunks, size

    def first(self) -> Clients[T]:
        for chunk in self._chunks:
            return _require_clients(chunk, 0)
        raise ValueError("HostClients has no chunks; a cohort needs at least one client.")

    def each(self) -> Iterator[Clients[T]]:
        """All chunks; raises a `ValueError` at the end unless they have `size` clients."""
        count = 0
        for number, chunk in enumerate(self._chunks):
            count += _require_clients(chunk, number).size
            yield chunk
        if count != self.size:
            raise ValueError(
                f"HostClients(size={self.size}): its chunks have {count} clients. Means would be "
                "wrong; give the size that they have."
            )


def find_host_clients(args: Any, kwargs: Any) -> HostClients[Any] | None:
    """The one cohort on the host among the arguments, if there is one."""
    leaves = jtu.tree_leaves((args, kwargs), is_leaf=is_clients)
    found = [leaf for leaf in leaves if isinstance(leaf, HostClients)]
    if not found:
        return None
    if len(found) > 1 or any(map(is_clients, leaves)):
        raise ValueError(
            "A streamed program takes one HostClients and no Clients beside it; put all that a "
            "client holds in the trees of its chunks."
        )
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise ValueError(
            "A program that reads a HostClients cannot be traced: its chunks are read in Python. "
            "Transform the function inside of `stream`, and jit nothing around it."
        )
    return found[0]


def replace_host(args: Any, kwargs: Any, chunk: Clients[Any]) -> tuple[Any, Any]:
    """The arguments with a chunk in the place of the cohort on the host."""
    put = lambda leaf: chunk if isinstance(leaf, HostClients) else leaf
    return jtu.tree_map(put, (args, kwargs))


def _require_clients(chunk: Any, number: int) -> Clients[Any]:
    if not is_clients(chunk):
        raise TypeError(
            f"HostClients: chunk {number} is a {type(chunk).__name__}; each must be a Clients, "
            "such as `training.to_clients(cohort)`."
        )
    return chunk
