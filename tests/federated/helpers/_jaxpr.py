"""Reading jaxprs: every equation with where it stands, and the rounds of communication."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, Literal

FED = ("fed_broadcast", "fed_sum", "fed_max", "fed_min", "fed_size")
REDUCTIONS = ("fed_sum", "fed_max", "fed_min")


class Place(NamedTuple):
    """An equation, and whether it stands inside a call named `fed_map`."""

    eqn: Any
    at_client: bool

    @property
    def name(self) -> str:
        return self.eqn.primitive.name


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs among an equation's parameters, also those in tuples of branches."""
    found = []
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns"):  # closed or open: one class or two, as JAX's version has it
                found.append(getattr(item, "jaxpr", item))
    return found


def is_fed_map(eqn: Any) -> bool:
    return eqn.params.get("name") == "fed_map" and bool(inner_jaxprs(eqn))


def equations(jaxpr: Any, at_client: bool = False) -> Iterator[Place]:
    """Every equation that computes, outermost first. Calls and loops are entered, not listed."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inner = inner_jaxprs(eqn)
        for one in inner:
            yield from equations(one, at_client or is_fed_map(eqn))
        if not inner:
            yield Place(eqn, at_client)


def names(jaxpr: Any, *, at_client: bool) -> set[str]:
    """The primitives that run at a client, or those that do not."""
    return {place.name for place in equations(jaxpr) if place.at_client == at_client}


def rounds(closed: Any) -> int:
    """How often the server must hear from clients before it can compute all results.

    A reduction is one more than the values that it reduces; all else is as late as its operands.
    """
    return max(_levels(closed.jaxpr, [0] * len(closed.jaxpr.invars)), default=0)


def _levels(jaxpr: Jaxpr, given: list[int]) -> list[int]:
    level = dict.fromkeys(jaxpr.constvars, 0)
    level.update(zip(jaxpr.invars, given, strict=True))

    def read(var: Any) -> int:
        return 0 if isinstance(var, Literal) else level[var]

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        inner = inner_jaxprs(eqn)
        if len(inner) == 1 and len(inner[0].invars) == len(operands):
            outs = _levels(inner[0], operands)
        else:
            latest = max(operands, default=0) + (eqn.primitive.name in REDUCTIONS)
            outs = [latest] * len(eqn.outvars)
        level.update(zip(eqn.outvars, outs, strict=True))
    return [read(var) for var in jaxpr.outvars]
