"""A proof by interpretation that clients mix nowhere but in the `fed_*` primitives.

A jaxpr is evaluated equation by equation for two sets of inputs at once: clean ones, and ones in
which the data of client `j` are perturbed. What a `fed_sum`, `fed_max` or `fed_min` returns is the
clean value in both. If no other equation mixes clients, then whatever differs between the two runs
differs in row `j` of a clients axis and nowhere else. The cohort size is chosen so that no other
axis has that length.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal

from ._compare import as_numpy

REDUCTIONS = ("fed_sum", "fed_max", "fed_min")
_CALLS = {  # primitive -> the parameter that holds its jaxpr
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}

Pair = tuple[Any, Any]  # a value in the clean and in the perturbed run


class ClientsMixError(AssertionError):
    """Some equation outside of the reductions let one client's data reach another or the server."""


class Checker:
    """Evaluates jaxprs on pairs of values and checks each value that an equation makes.

    After a run, `reductions` counts the federated reductions met and `differing` the values that
    depended on client `j`: a proof that saw none of either proves nothing.
    """

    def __init__(self, clients: int, j: int):
        self.clients, self.j = clients, j
        self.reductions = self.differing = 0

    def run(self, jaxpr: Any, pairs: Sequence[Pair]) -> list[Pair]:
        """Evaluates a jaxpr, closed or without constants."""
        consts = [(const, const) for const in getattr(jaxpr, "consts", ())]
        return self._jaxpr(getattr(jaxpr, "jaxpr", jaxpr), consts, pairs)

    def _jaxpr(self, jaxpr: Jaxpr, consts: Sequence[Pair], pairs: Sequence[Pair]) -> list[Pair]:
        values: dict[Any, Pair] = {}
        values.update(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, pairs, strict=True))

        def read(var: Any) -> Pair:
            return (var.val, var.val) if isinstance(var, Literal) else values[var]

        for eqn in jaxpr.eqns:
            outs = self._equation(eqn, [read(var) for var in eqn.invars])
            values.update(zip(eqn.outvars, outs, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _equation(self, eqn: Any, pairs: list[Pair]) -> list[Pair]:
        name = eqn.primitive.name
        if name in _CALLS:
            return self.run(eqn.params[_CALLS[name]], pairs)
        if name == "scan":
            return self._scan(eqn.params, pairs)
        if name == "while":
            return self._while(eqn.params, pairs)
        if name == "cond":
            return self._cond(eqn, pairs)
        # Of another size is the communication among what one client has of its own.
        cohort = eqn.params.get("size") == self.clients
        if cohort and name == "fed_broadcast":
            self._require(eqn, pairs, rows=False, what="sends")
        clean = self._bind(eqn, [c for c, _ in pairs])
        if cohort and name in REDUCTIONS:
            self.reductions += 1
            self._require(eqn, pairs, rows=True, what="reduces")
            return [(out, out) for out in clean]
        if all(c is p for c, p in pairs):
            return [(out, out) for out in clean]
        outs = list(zip(clean, self._bind(eqn, [p for _, p in pairs]), strict=True))
        for pair in outs:
            if not self._confined(pair, range(np.ndim(pair[0]))):
                raise ClientsMixError(f"{name} mixes clients: {eqn}")
        return outs

    @staticmethod
    def _bind(eqn: Any, args: list[Any]) -> list[Any]:
        out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
        return list(out) if eqn.primitive.multiple_results else [out]

    def _require(self, eqn: Any, pairs: list[Pair], *, rows: bool, what: str) -> None:
        """Operands of a reduction differ in row j of the first axis, those of a broadcast never."""
        for pair in pairs:
            if not self._confined(pair, (0,) if rows else ()):
                raise ClientsMixError(f"{eqn.primitive.name} {what} what clients mixed: {eqn}")

    def _confined(self, pair: Pair, axes: Any) -> bool:
        """Whether the two values are equal but for row j of one of these axes, the clients axis."""
        if pair[0] is pair[1]:
            return True
        clean, perturbed = as_numpy(pair[0]), as_numpy(pair[1])
        differs = ~((clean == perturbed) | ((clean != clean) & (perturbed != perturbed)))
        if not differs.any():
            return True
        self.differing += 1
        for axis in axes:
            if clean.shape[axis] != self.clients:
                continue
            if not np.delete(differs, self.j, axis).any():
                return True
        return False

    def _scan(self, params: dict[str, Any], pairs: list[Pair]) -> list[Pair]:
        if "num_carry" in params:
            n_consts, n_carry = params["num_consts"], params["num_carry"]
        else:  # JAX 0.12
            n_consts, n_carry, _ = (len(part) for part in params["ft_in"].unpack())
        consts, carry = pairs[:n_consts], pairs[n_consts : n_consts + n_carry]
        xs, rows = pairs[n_consts + n_carry :], []
        order = range(params["length"])
        for t in reversed(order) if params["reverse"] else order:
            outs = self.run(params["jaxpr"], [*consts, *carry, *(_slices(x, t) for x in xs)])
            carry = outs[:n_carry]
            rows.append(outs[n_carry:])
        if params["reverse"]:
            rows.reverse()
        return [*carry, *(_stack(column) for column in zip(*rows, strict=True))]

    def _while(self, params: dict[str, Any], pairs: list[Pair]) -> list[Pair]:
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        of_cond, of_body = pairs[:n_cond], pairs[n_cond : n_cond + n_body]
        carry = pairs[n_cond + n_body :]
        while True:
            ((clean, perturbed),) = self.run(params["cond_jaxpr"], [*of_cond, *carry])
            if bool(clean) != bool(perturbed):
                raise ClientsMixError("a loop runs for as long as one client's data say")
            if not clean:
                return list(carry)
            carry = self.run(params["body_jaxpr"], [*of_body, *carry])

    def _cond(self, eqn: Any, pairs: list[Pair]) -> list[Pair]:
        (clean, perturbed), operands = pairs[0], pairs[1:]
        if int(clean) != int(perturbed):
            raise ClientsMixError(f"one client's data choose a branch: {eqn}")
        return self.run(eqn.params["branches"][int(clean)], operands)


def _slices(pair: Pair, t: int) -> Pair:
    if pair[0] is pair[1]:
        return (pair[0][t],) * 2
    return pair[0][t], pair[1][t]


def _stack(pairs: Sequence[Pair]) -> Pair:
    clean = jax.numpy.stack([c for c, _ in pairs])
    if all(c is p for c, p in pairs):
        return clean, clean
    return clean, jax.numpy.stack([p for _, p in pairs])
