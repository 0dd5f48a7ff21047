"""Names for what a plan moves: of arguments, of results, or of the operation that made it."""

from collections.abc import Sequence

from jax.extend.core import JaxprEqn, Literal, Var

from ._errors import line
from ._flat import COMMUNICATION, Atom, aval_of, call_body
from ._stages import Schedule


class Names:
    def __init__(self, schedule: Schedule, inputs: Sequence[str], outputs: Sequence[str]):
        self._made = {v: e for e in schedule.equations for v in e.outvars}
        self._inputs = dict(zip(schedule.flat.inputs, inputs, strict=True))
        self._inputs |= {v: f"closed-over value {i}" for i, v in enumerate(schedule.flat.captured)}
        self._outputs: dict[Var, str] = {}
        # Result by result, so that what several are made of bears the name of the first.
        for v, name in zip(schedule.flat.outputs, outputs, strict=True):
            found = {v: name} if isinstance(v, Var) else {}
            _name_backwards(schedule.equations, found)
            self._outputs = found | self._outputs

    def sent(self, atom: Atom) -> str:
        """Of what goes down: the argument that it is, or what made it."""
        if isinstance(atom, Literal):
            return str(atom.val)
        if atom in self._inputs:
            return self._inputs[atom]
        e = self._made[atom]
        if e.primitive in COMMUNICATION:
            return self.arrived(atom)
        if e.primitive.name in ("convert_element_type", "copy") and isinstance(e.invars[0], Var):
            return self.sent(e.invars[0])
        return f"{e.primitive.name} ({line(e)})"

    def arrived(self, v: Var) -> str:
        """Of what comes up: the result that it becomes, or what made it."""
        if v in self._outputs:
            return self._outputs[v]
        e = self._made[v]
        source = e.invars[0]
        maker = self._made.get(source, e) if isinstance(source, Var) else e
        return f"{maker.primitive.name} ({line(maker)})"

    def kept(self, v: Var) -> str:
        e = self._made[v]
        if e.primitive in COMMUNICATION:
            return self.sent(e.invars[0])
        return f"{e.primitive.name} ({line(e)})"


def _name_backwards(equations: Sequence[JaxprEqn], names: dict[Var, str]) -> None:
    """From the results backwards: what becomes a result of its own shape bears its name."""
    for e in reversed(equations):
        named = [out for out in e.outvars if out in names]
        if not named:
            continue
        body = call_body(e)
        if body is not None:
            inner = {
                v: names[out]
                for v, out in zip(body.outvars, e.outvars, strict=True)
                if out in names and isinstance(v, Var)
            }
            _name_backwards(body.eqns, inner)
            pairs = [(v, inner.get(x)) for v, x in zip(e.invars, body.invars, strict=True)]
        else:
            shape = aval_of(named[0]).shape
            pairs = [(v, names[named[0]] if aval_of(v).shape == shape else None) for v in e.invars]
        for v, name in pairs:
            if isinstance(v, Var) and name is not None:
                names.setdefault(v, name)
