"""Partition functions as they are written on the command line."""

import csv
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._errors import CommandError

SYNTAX = """\
partition functions, for --by:
  NAME                           the value of the field NAME
  field:NAME                     the same, for a name that holds a colon or is one of those below
  url-domain:FIELD               the domain of the URL in FIELD (default: url)
  sql:EXPRESSION                 an SQL expression of the fields, such as sql:"year // 10"
  MODULE:FUNCTION                a Python function of an example, found from this folder
  function:MODULE:FUNCTION,batched=true
                                 a Python function of a pyarrow.RecordBatch: many times faster
  iid:GROUPS,seed=N              at random, groups of equal size
  power-law:GROUPS,seed=N        at random, sizes by a power law (exponent=1, min_size=1)
  lognormal:GROUPS,seed=N        at random, log-normal sizes (sigma=1, min_size=1)
  dirichlet:LABEL,GROUPS,alpha=X,seed=N
                                 a Dirichlet mix of labels per group (mix=labels), or of groups
                                 per label (mix=groups)
  pachinko:COARSE,FINE,GROUPS,seed=N
                                 Pachinko allocation (alpha=0.1, beta=10)
  shards:LABEL,GROUPS,seed=N     shards of the examples sorted by label (shards_per_group=2)
Given twice, the second --by splits each group of the first. Every argument may be written
NAME=VALUE; one that holds a comma goes in double quotes: "label=a,b"."""

# What is written to the left of the colon, and the function of fedeqx.data that it calls. The text
# to the right of some is one argument, whatever is in it.
_KINDS = {
    "field": "by_field",
    "url-domain": "by_url_domain",
    "sql": "by_expression",
    "function": "by_function",
    "iid": "iid",
    "power-law": "power_law",
    "lognormal": "lognormal",
    "dirichlet": "dirichlet",
    "pachinko": "pachinko",
    "shards": "shards",
}
_WHOLE = ("field", "url-domain", "sql")


def parse_by(texts: Sequence[str]) -> Any:
    """The partition that one or two `--by` ask for, as `fedeqx.data.group(by=...)` takes it.

    Raises `CommandError` that names what cannot be understood.
    """
    from .. import data

    if len(texts) > 2:
        raise CommandError(f"--by was given {len(texts)} times; give it once, or twice to nest.")
    parts = [_parse(text) for text in texts]
    if len(parts) == 1:
        return parts[0]
    # A function of an example is a partition only once it is wrapped.
    outer, inner = (data.by_function(part) if callable(part) else part for part in parts)
    return data.nested(outer, inner)


def _parse(text: str) -> Any:
    from .. import data

    kind, colon, rest = text.partition(":")
    if kind not in _KINDS:
        return _load(text, f"--by {text}") if colon else data.by_field(text)
    make = getattr(data, _KINDS[kind])
    where = f"--by {text}"
    try:
        if kind in _WHOLE:
            return make(rest) if rest else make()
        return _call(make, next(csv.reader([rest])) if rest else [], where)
    except TypeError as error:
        # What the call lacks, has twice, or does not know.
        raise CommandError(f"{where}: {error}. The form is {_form(kind, make)}.") from error
    except ValueError as error:
        raise CommandError(f"{where}: {error}") from error


def _call(make: Callable[..., Any], arguments: list[str], where: str) -> Any:
    parameters = inspect.signature(make).parameters
    positional: list[Any] = []
    named: dict[str, Any] = {}
    in_order = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for argument in arguments:
        name, equals, value = argument.strip().partition("=")
        if equals and name in parameters:
            named[name] = _value(value, parameters[name], where)
        elif equals:
            raise TypeError(f"it has no argument {name!r}")
        elif len(positional) == len(in_order):
            raise TypeError(f"{argument!r} is one too many; the others are written NAME=VALUE")
        else:
            positional.append(_value(argument, parameters[in_order[len(positional)]], where))
    return make(*positional, **named)


def _value(text: str, parameter: inspect.Parameter, where: str) -> Any:
    kind = parameter.annotation
    if kind is str:
        return text
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{parameter.name}={text}: give true or false.")
        return text == "true"
    if kind is int or kind == float | int:
        try:
            return int(text)
        except ValueError:
            if kind is not int:
                return _number(text, parameter.name)
            raise ValueError(f"{parameter.name}={text}: give a whole number.") from None
    return _load(text, where)


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}={text}: give a number.") from None


def _load(text: str, where: str) -> Any:
    """What `MODULE:NAME` names, looked up from the current folder too, as `python -m` does."""
    from .. import data

    module, _, name = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise CommandError(
            f"{where}: {error}. Give a field's name, MODULE:FUNCTION of a module that Python finds "
            f"from this folder, or one of {', '.join(_KINDS)} with a colon after it."
        ) from error
    if not callable(found) and not isinstance(found, data.AbstractPartition):
        raise CommandError(
            f"{where}: {text} is a {type(found).__name__}, not a function or a partition."
        )
    return found


def _form(kind: str, make: Callable[..., Any]) -> str:
    parameters = inspect.signature(make).parameters.values()
    return f"{kind}:" + ",".join(
        f"{p.name}={'...' if p.default is p.empty else p.default}" for p in parameters
    )
