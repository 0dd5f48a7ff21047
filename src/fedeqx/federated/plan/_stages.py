"""A flat program cut into stages: at the server, at the clients, round by round.

By what depends on what, and not by the order in which it was written: a round is as early as its
data allow, and a value is sent down in the round that first needs it.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax.core import eval_jaxpr
from jax.extend.core import JaxprEqn, Literal, Var

from .. import _primitives as prims
from ._errors import PlanError, where
from ._flat import COMMUNICATION, REDUCTIONS, Atom, Flat, Placement


@dataclasses.dataclass(frozen=True)
class Stage:
    """Equations that run at one place without communication.

    Called with the values of its `inputs`, returns those of its `outputs`. At a client, values
    have a clients axis of length 1.
    """

    equations: tuple[JaxprEqn, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Atom, ...]
    constants: Mapping[Var, Any] = dataclasses.field(repr=False)
    template: Any = dataclasses.field(repr=False)

    def __call__(self, *values: Any) -> list[Any]:
        names = self.template.debug_info
        jaxpr = self.template.replace(
            constvars=[],
            invars=[*self.constants, *self.inputs],
            outvars=list(self.outputs),
            eqns=list(self.equations),
            effects=frozenset().union(*(e.effects for e in self.equations)),
            debug_info=None if names is None else names.with_unknown_names(),
        )
        return eval_jaxpr(jaxpr, [], *self.constants.values(), *values)


@dataclasses.dataclass(frozen=True)
class Move:
    """A communication of one array: what is moved, what arrives, and how (`"broadcast"`, ...)."""

    kind: str
    source: Any
    result: Var


@dataclasses.dataclass(frozen=True)
class Step:
    """What is done in one round, by its moves and what each side computes and keeps."""

    server: Stage
    broadcasts: tuple[Move, ...]
    client: Stage
    reductions: tuple[Move, ...]
    server_keeps: tuple[Var, ...]
    client_keeps: tuple[Var, ...]


class Schedule:
    """When everything of a flat program happens."""

    def __init__(self, flat: Flat):
        self.flat = flat
        self._made = {v: e for e in flat.equations for v in e.outvars}
        live = self._live()
        for e in flat.equations:
            if e.effects and not any(v in live for v in e.outvars):
                raise PlanError(
                    f"{where(e)} has a side effect and nothing needs what it returns, so a plan "
                    "cannot say where it runs. Have it in the function that `client_map` runs, "
                    "next to what is returned, or leave it out."
                )
        self.equations = [e for e in flat.equations if any(v in live for v in e.outvars)]
        self.levels = self._levels()
        self._send_late()
        self.num_rounds = self._num_rounds()
        self._used = self._last_uses()

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._step(number) for number in range(self.num_rounds))

    def end(self) -> Stage:
        """What the server computes after the last round."""
        return self._server(self.num_rounds)[0]

    def stage(self, outputs: Iterable[Atom], inputs: Iterable[Var]) -> Stage:
        """All that leads from some values to others; of the inputs, those that are needed."""
        outputs, known = tuple(outputs), set(inputs)
        needed, todo = set(), [v for v in outputs if not isinstance(v, Literal)]
        while todo:
            v = todo.pop()
            if v in needed:
                continue
            needed.add(v)
            if v not in known and v in self._made:
                todo += [a for a in self._made[v].invars if not isinstance(a, Literal)]
        equations = tuple(
            e for e in self.equations if any(v in needed and v not in known for v in e.outvars)
        )
        made = {v for e in equations for v in e.outvars} | set(self.flat.constants)
        return Stage(
            equations,
            tuple(v for v in self._order(needed) if v not in made),
            outputs,
            {v: value for v, value in self.flat.constants.items() if v in needed},
            self.flat.template,
        )

    def client_work(self, number: int) -> Stage:
        """A client's part in a round from its own inputs and all that was sent so far, no more.

        What an earlier round computed is computed again: nothing is kept from round to round.
        """
        moved = [m for m in self.broadcasts if self.levels[m.result] <= number]
        outputs = [m.source for m in self._reductions(number)] + self.client_results(number)
        return self.stage(outputs, [*self.own(Placement.CLIENTS), *(m.result for m in moved)])

    def client_results(self, number: int) -> list[Var]:
        """Results of the program that clients have after this round's work."""
        results = [v for v in self.flat.outputs if isinstance(v, Var)]
        at_clients = [v for v in results if self.flat.placements[v] == Placement.CLIENTS]
        return [v for v in dict.fromkeys(at_clients) if self._level(v) == number]

    def own(self, placement: Placement) -> list[Var]:
        """Inputs of the program at one place; what it closes over is the server's."""
        inputs = [*self.flat.inputs, *self.flat.captured]
        return [v for v in inputs if self.flat.placements[v] == placement]

    @functools.cached_property
    def sizes(self) -> tuple[Var, ...]:
        """Values that are the cohort size."""
        return tuple(e.outvars[0] for e in self.equations if e.primitive is prims.fed_size_p)

    @functools.cached_property
    def size_is_sent_first(self) -> bool:
        """Whether what is sent in the first round depends on the cohort size."""
        sent = [m.source for m in self.broadcasts if self.levels[m.result] == 0]
        return any(v in self.sizes for v in self.stage(sent, self.sizes).inputs)

    @functools.cached_property
    def moves(self) -> tuple[Move, ...]:
        """All communication, in the order of the program."""
        names = {prims.fed_broadcast_p: "broadcast", **REDUCTIONS}
        return tuple(
            Move(names[e.primitive], e.invars[0], e.outvars[0])
            for e in self.equations
            if e.primitive in COMMUNICATION
        )

    @functools.cached_property
    def broadcasts(self) -> tuple[Move, ...]:
        return tuple(m for m in self.moves if m.kind == "broadcast")

    def _order(self, variables: set[Var]) -> Iterator[Var]:
        """Variables in the order of the program, so that a plan does not vary from run to run."""
        heads = [*self.flat.inputs, *self.flat.captured, *self.flat.constants]
        yield from (v for v in heads if v in variables)
        yield from (v for e in self.equations for v in e.outvars if v in variables)

    def _live(self) -> set[Var]:
        live = {v for v in self.flat.outputs if not isinstance(v, Literal)}
        for e in reversed(self.flat.equations):
            if any(v in live for v in e.outvars):
                live |= {v for v in e.invars if not isinstance(v, Literal)}
        return live

    def _level(self, atom: Atom) -> int:
        return 0 if isinstance(atom, Literal) else self.levels.get(atom, 0)

    def _levels(self) -> dict[Var, int]:
        self.levels: dict[Var, int] = {}
        for e in self.equations:
            level = max(map(self._level, e.invars), default=0) + (e.primitive in REDUCTIONS)
            self.levels |= dict.fromkeys(e.outvars, level)
        return self.levels

    def _send_late(self) -> None:
        first: dict[Var, int] = {}
        for user, level in self._uses():
            first[user] = min(level, first.get(user, level))
        for m in self.broadcasts:
            self.levels[m.result] = first.get(m.result, self.levels[m.result])

    def _uses(self) -> Iterator[tuple[Var, int]]:
        """Every use of a value, and the round that it is in."""
        for e in self.equations:
            level = self._level(e.outvars[0]) - (e.primitive in REDUCTIONS)
            yield from ((v, level) for v in e.invars if not isinstance(v, Literal))
        for v in self.flat.outputs:
            if not isinstance(v, Literal):
                at_clients = self.flat.placements[v] == Placement.CLIENTS
                yield v, self._level(v) if at_clients else self._end()

    def _end(self) -> int:
        return max((self._level(m.result) + (m.kind == "broadcast") for m in self.moves), default=0)

    def _num_rounds(self) -> int:
        clients = [
            self._level(v) + 1
            for v in self.flat.outputs
            if self.flat.placement(v) == Placement.CLIENTS
        ]
        return max([self._end(), *clients])

    def _last_uses(self) -> dict[Var, int]:
        last: dict[Var, int] = {}
        for v, level in self._uses():
            last[v] = max(level, last.get(v, level))
        return last

    def _reductions(self, number: int) -> list[Move]:
        moves = [m for m in self.moves if m.kind != "broadcast"]
        return [m for m in moves if self.levels[m.result] == number + 1]

    def _kept(self, placement: Placement, number: int) -> list[Var]:
        """What one side made or got up to this round, and uses after it."""
        return [
            v
            for v in self._order(set(self._used))
            if self.flat.placements[v] == placement
            and v not in self.flat.inputs
            and v not in self.flat.captured
            and v not in self.sizes
            and self._level(v) <= number < self._used[v]
        ]

    def _server(self, number: int) -> tuple[Stage, list[Var]]:
        broadcasts = [m for m in self.broadcasts if self.levels[m.result] == number]
        kept = self._kept(Placement.SERVER, number)
        if number == self.num_rounds:
            outputs = [v for v in self.flat.outputs if self.flat.placement(v) != Placement.CLIENTS]
        else:
            outputs = list(dict.fromkeys([*(m.source for m in broadcasts), *kept]))
        before = self._kept(Placement.SERVER, number - 1) if number else []
        arrived = [m.result for m in (self._reductions(number - 1) if number else [])]
        known = [*self.own(Placement.SERVER), *before, *arrived, *self.sizes]
        return self.stage(outputs, known), kept

    def _step(self, number: int) -> Step:
        server, server_keeps = self._server(number)
        broadcasts = [m for m in self.broadcasts if self.levels[m.result] == number]
        reductions = self._reductions(number)
        keeps = self._kept(Placement.CLIENTS, number)
        before = self._kept(Placement.CLIENTS, number - 1) if number else []
        made = [v for v in keeps if v not in before and v not in {m.result for m in broadcasts}]
        outputs = [m.source for m in reductions] + self.client_results(number) + made
        known = [*self.own(Placement.CLIENTS), *before, *(m.result for m in broadcasts)]
        return Step(
            server,
            tuple(broadcasts),
            self.stage(dict.fromkeys(outputs), known),
            tuple(reductions),
            tuple(server_keeps),
            tuple(keeps),
        )


def values_of(atoms: Sequence[Atom], env: Mapping[Var, Any]) -> list[Any]:
    return [a.val if isinstance(a, Literal) else env[a] for a in atoms]
