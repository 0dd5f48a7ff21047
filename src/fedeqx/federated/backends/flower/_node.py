"""What a node's data is asked for, and gives. Needs no Flower."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ._settings import Settings


class NodeError(ValueError):
    """What keeps a node from taking part. Its text goes to the server: it tells no data."""


class Wanted(NamedTuple):
    """What a node's data must give.

    - `path`: of the node's own data, from its configuration.
    - `run`: how often the program ran before.
    - `inputs`: the shape and dtype of each client argument of the program, by its name.
    - `settings`: of the run.
    """

    path: str
    run: int
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    settings: Settings


class NodeClient(NamedTuple):
    """One client of a node: its id, and its argument of each name, as NumPy or JAX arrays."""

    id: Any
    arrays: Mapping[str, Any]


Clients = Callable[[Wanted], Iterable[NodeClient]]
