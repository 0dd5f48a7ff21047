"""Why something cannot be planned, and where in the user's source it stands."""

from pathlib import Path

import beartype
import equinox
import jaxtyping
from jax.extend import source_info_util
from jax.extend.core import JaxprEqn

# Frames of the language and of wrappers around functions do not tell a user where to look.
source_info_util.register_exclusion(str(Path(__file__).parents[1]))
for _package in (beartype, equinox, jaxtyping):
    source_info_util.register_exclusion(str(Path(_package.__file__ or "").parent))


class PlanError(ValueError):
    """A function that is no federated program: what is wrong, at which operation, on which line."""


def where(equation: JaxprEqn) -> str:
    """An equation as an error names it: `reduce_sum at model.py:12:8 (loss)`."""
    name = equation.params.get("name") if equation.primitive.name == "jit" else None
    operation = f"{equation.primitive.name}[{name}]" if name else equation.primitive.name
    return f"{operation} at {line(equation)}"


def line(equation: JaxprEqn) -> str:
    summary = source_info_util.summarize(equation.source_info)
    path, colon, rest = summary.partition(":")
    return f"{Path(path).name}{colon}{rest}"
