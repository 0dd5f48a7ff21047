"""Programs in a module whose annotations are strings at run time."""

# ruff: noqa: UP037  (the quotes are jaxtyping's, inside of the string that the annotation is)

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Array, Float

import fedeqx as fx

if TYPE_CHECKING:
    from federated.helpers import Case


@fx.program
def late_mean(x: fx.Clients[Float[Array, "features"]]) -> fx.Server[Float[Array, "features"]]:
    return fx.reduce_mean(x)


class Late:
    @fx.program
    def method(self, x: fx.Clients[Float[Array, "n"]]) -> fx.Server[Float[Array, "n"]]:
        return fx.reduce_mean(x)


LATE = Late()


@fx.program
def undefined_name(x: fx.Clients[Case]) -> fx.Server[Case]:
    return fx.reduce_mean(x)
