"""A program as a flat list of equations, each at the server or at the clients.

Calls are inlined and loops over rounds unrolled as far as they communicate; all else stays whole.
What depends on nothing but constants is part of the program's text, and is at both places.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Literal, Var, jaxprs_in_params

from .. import _primitives as prims
from ._errors import PlanError, line, where

REDUCTIONS = {prims.fed_sum_p: "sum", prims.fed_max_p: "max", prims.fed_min_p: "min"}
COMMUNICATION = {prims.fed_broadcast_p, *REDUCTIONS}
UNROLL_LIMIT = 256
"""How many iterations of a loop with communication in it are unrolled, nested loops multiplied."""

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call")
_CALLS += ("custom_vjp_call", "custom_vjp_call_jaxpr")

Atom = Var | Literal


class Placement(enum.IntEnum):
    """Where a value is, from what it depends on."""

    ANYWHERE = 0
    SERVER = 1
    CLIENTS = 2


class Flat:
    """The equations of a traced program, in order, and where every value is.

    - `inputs`, `outputs`: as traced.
    - `constants`: the values that the program's text holds.
    - `captured`: traced values that the program closes over; they are at the server.
    """

    def __init__(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Placement]):
        self.equations: list[JaxprEqn] = []
        self.placements: dict[Var, Placement] = {}
        self.constants: dict[Var, Any] = {}
        self.captured: dict[Var, Any] = {}
        self._moved: dict[tuple[Any, Var], Var] = {}
        self._unrolled = 1
        self._callers: list[JaxprEqn] = []
        self.inputs = [Var(aval_of(v)) for v in jaxpr.invars]
        self.placements |= zip(self.inputs, inputs, strict=True)
        self.template = jaxpr
        self.outputs = self._run(jaxpr, consts, self.inputs)

    def placement(self, atom: Atom) -> Placement:
        return Placement.ANYWHERE if isinstance(atom, Literal) else self.placements[atom]

    def _run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Atom]) -> list[Atom]:
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, args, strict=True))
        env |= {
            v: self._constant(v, value) for v, value in zip(jaxpr.constvars, consts, strict=True)
        }

        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else env[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            env.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _constant(self, like: Var, value: Any) -> Var:
        new = Var(aval_of(like))
        captured = isinstance(value, Tracer)
        (self.captured if captured else self.constants)[new] = value
        self.placements[new] = Placement.SERVER if captured else Placement.ANYWHERE
        return new

    def _equation(self, equation: JaxprEqn, operands: list[Atom]) -> Sequence[Atom]:
        if self._callers and not line(equation):
            # Of JAX's own functions: the line that called them tells more.
            equation = equation.replace(source_info=self._callers[-1].source_info)
        primitive, name = equation.primitive, equation.primitive.name
        if primitive in COMMUNICATION:
            return [
                self._communicate(equation, operand, out)
                for operand, out in zip(operands, equation.outvars, strict=True)
            ]
        if primitive is prims.fed_size_p:
            return self._emit(equation, operands, Placement.SERVER)
        place = max(map(self.placement, operands), default=Placement.ANYWHERE)
        inner = communicates(equation)
        if not inner and (place != Placement.CLIENTS or is_client_call(equation)):
            return self._emit(equation, operands, place)
        if name in _CALLS:
            return self._inline(equation, operands)
        if name == "scan":
            return self._unroll(equation, operands)
        bodies = [] if name.startswith(("scatter", "reduce")) else [*_bodies(equation)]
        if inner or bodies:
            what = "communicates" if inner else "works on clients' values"
            instead = (
                "Communicate outside of it, and choose among the results with `jnp.where`; a loop "
                "over rounds is a `jax.lax.scan`."
                if inner
                else "Put it in the function that `client_map` runs."
            )
            raise PlanError(f"{where(equation)} {what}, which cannot be planned. {instead}")
        return self._emit(equation, operands, place)

    def _emit(
        self, equation: JaxprEqn, operands: Sequence[Atom], place: Placement
    ) -> Sequence[Atom]:
        if place == Placement.CLIENTS and Placement.SERVER in map(self.placement, operands):
            raise PlanError(
                f"{where(equation)} combines clients' values with a value at the server that was "
                "never sent to them. Send it with `broadcast`, or compute in `client_map`, which "
                "broadcasts what it is given."
            )
        results = [Var(aval_of(v)) for v in equation.outvars]
        self.equations.append(equation.replace(invars=list(operands), outvars=results))
        self.placements |= dict.fromkeys(results, place)
        return results

    def _communicate(self, equation: JaxprEqn, operand: Atom, out: Var) -> Atom:
        """One operand of a communication; what was moved already is not moved again."""
        primitive, place = equation.primitive, self.placement(operand)
        down = primitive is prims.fed_broadcast_p
        if place == Placement.ANYWHERE and down:
            rows = aval_of(out).shape[0]
            return self._apply(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), [operand])[0]
        if down and place == Placement.CLIENTS:
            raise PlanError(
                f"{where(equation)} would send a client's own value to the others: nothing has "
                "reduced it. Use `reduce_sum`, `reduce_mean`, `reduce_max` or `reduce_min` first."
            )
        if not down and place == Placement.SERVER:
            raise PlanError(
                f"{where(equation)} reduces a value over the clients that was made at the server "
                "and never sent to them. Send it with `broadcast`, or make it in `client_map`."
            )
        assert not isinstance(operand, Literal) or not down
        key = (primitive, operand) if isinstance(operand, Var) else None
        if key in self._moved:
            return self._moved[key]
        result = Var(aval_of(out))
        self.equations.append(equation.replace(invars=[operand], outvars=[result]))
        self.placements[result] = Placement.CLIENTS if down else Placement.SERVER
        if key is not None:
            self._moved[key] = result
        return result

    def _inline(self, equation: JaxprEqn, operands: Sequence[Atom]) -> list[Atom]:
        body = next(equation.params[key] for key in _BODIES if key in equation.params)
        self._callers.append(equation)
        try:
            return self._run(*_opened(body), operands)
        finally:
            self._callers.pop()

    def _apply(self, fn: Callable[..., Any], operands: Sequence[Atom]) -> list[Atom]:
        """New equations that compute `fn`, which returns an array or a tuple of them."""
        closed = jax.make_jaxpr(fn)(*(shape_of(atom) for atom in operands))
        return self._run(*_opened(closed), operands)

    def _unroll(self, equation: JaxprEqn, operands: Sequence[Atom]) -> list[Atom]:
        length, params = equation.params["length"], equation.params
        self._unrolled *= max(length, 1)
        if self._unrolled > UNROLL_LIMIT:
            raise PlanError(
                f"{where(equation)} has rounds in it and {length} iterations; a plan unrolls up to "
                f"{UNROLL_LIMIT}. Plan the function of one round, and loop over the plan's calls."
            )
        num_consts, num_carry = _scan_counts(params)
        consts, carry = operands[:num_consts], list(operands[num_consts:][:num_carry])
        xs = operands[num_consts + num_carry :]
        stacked: list[list[Atom]] = []
        order = range(length - 1, -1, -1) if params["reverse"] else range(length)
        for i in order:
            now = [
                self._apply(lambda x, i=i: jax.lax.index_in_dim(x, i, 0, False), [x]) for x in xs
            ]
            results = self._run(*_opened(params["jaxpr"]), [*consts, *carry, *(x[0] for x in now)])
            carry = results[:num_carry]
            stacked.append(results[num_carry:])
        if params["reverse"]:
            stacked.reverse()
        self._unrolled //= max(length, 1)
        if length == 0:
            ys = equation.outvars[num_carry:]
            zeros = lambda v: lambda: jnp.zeros(aval_of(v).shape, aval_of(v).dtype)
            return [*carry, *(self._apply(zeros(v), [])[0] for v in ys)]
        columns = zip(*stacked, strict=True)
        return [*carry, *(self._apply(lambda *ys: jnp.stack(ys), ys)[0] for ys in columns)]


def is_client_call(equation: JaxprEqn) -> bool:
    """Whether an equation is the computation that `client_map` runs, or a derivative of it."""
    return equation.primitive.name in ("jit", "pjit") and equation.params["name"] == "fed_map"


def call_body(equation: JaxprEqn) -> Any:
    """The jaxpr of a call, whose operands and results are the call's; `None` for what is none."""
    if equation.primitive.name not in _CALLS:
        return None
    body = next(equation.params[key] for key in _BODIES if key in equation.params)
    return _opened(body)[0]


def communicates(equation: JaxprEqn) -> bool:
    """Whether there is communication inside; what a client does within itself is none."""
    return not is_client_call(equation) and any(
        inner.primitive in COMMUNICATION or communicates(inner)
        for body in _bodies(equation)
        for inner in body.eqns
    )


def aval_of(atom: Atom) -> Any:
    """The shape and dtype of a value of the program; all of them are arrays."""
    return atom.aval


def shape_of(atom: Atom) -> jax.ShapeDtypeStruct:
    aval = aval_of(atom)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _bodies(equation: JaxprEqn) -> Iterator[Any]:
    return iter(jaxprs_in_params(equation.params))


def _opened(body: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr and the constants of a body, closed or open."""
    return getattr(body, "jaxpr", body), getattr(body, "consts", ())


def _scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # newer JAX
    return len(list(consts)), len(list(carry))
