"""Names for what a plan moves: of arguments, of results, or of the operation that made it."""

from collections.abc import Sequence

from jax.extend.core import Literal, Var

from ._errors import line
from ._flat import COMMUNICATION, Atom, aval_of
from ._stages import Schedule


class Names:
    def __init__(self, schedule: Schedule, inputs: Sequence[str], outputs: Sequence[str]):
        self._made = {v: e for e in schedule.equations for v in e.outvars}
        self._inputs = dict(zip(schedule.flat.inputs, inputs, strict=True))
        self._inputs |= {v: f"closed-over value {i}" for i, v in enumerate(schedule.flat.captured)}
        self._outputs: dict[Var, str] = {}
        for v, name in zip(schedule.flat.outputs, outputs, strict=True):
            if isinstance(v, Var):
                self._outputs.setdefault(v, name)
        # From the results backwards: what becomes a result of its own shape bears its name.
        for e in reversed(schedule.equations):
            for out in e.outvars:
                if out not in self._outputs:
                    continue
                for v in e.invars:
                    if isinstance(v, Var) and aval_of(v).shape == aval_of(out).shape:
                        self._outputs.setdefault(v, self._outputs[out])

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
