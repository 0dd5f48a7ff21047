"""`fedeqx plan`: what a federated program communicates, round by round."""

import argparse
import importlib
import os
import sys
from typing import Any

from ._errors import CommandError, explained


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="show what a program communicates",
        description=(
            "Prints the rounds of a federated program: what goes down, what each client computes "
            "and keeps, and what comes up, with shapes and bytes."
        ),
    )
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="a function without arguments that returns the program and its arguments, as a tuple "
        "(shapes are enough), or a Plan",
    )
    parser.add_argument("--mermaid", action="store_true", help="print a Mermaid diagram instead")
    parser.add_argument("--export", metavar="DIR", help="also write the plan as StableHLO")
    parser.add_argument(
        "--arguments",
        metavar="FILE",
        help="with --export: also write the server's arguments, for a server to begin with",
    )


def run(arguments: argparse.Namespace) -> int:
    from ..federated import Plan, PlanError, load_plan, plan
    from ..federated.backends.flower import save_arguments

    if arguments.arguments and not arguments.export:
        raise CommandError("--arguments needs --export DIR, the plan that they belong to.")
    made, rest = _call(arguments.function), None
    if not isinstance(made, Plan):
        if not isinstance(made, tuple) or not made or not callable(made[0]):
            raise CommandError(
                f"{arguments.function} returned a {type(made).__name__}; it must return the "
                "program and its arguments, as in `return program, model, data`."
            )
        program, *rest = made
        with explained(PlanError):
            made = plan(program, *rest)
    print(made.to_mermaid() if arguments.mermaid else made)
    if arguments.export:
        with explained(PlanError, ImportError, FileExistsError):
            made.export(arguments.export)
    if arguments.arguments:
        if rest is None:
            raise CommandError(
                f"{arguments.function} returned a Plan, which has no arguments; it must return the "
                "program and its arguments, as in `return program, model, data`."
            )
        with explained(PlanError):
            save_arguments(load_plan(arguments.export), arguments.arguments, *rest)
    return 0


def _call(name: str) -> Any:
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise CommandError(f"{name!r} is no MODULE:FUNCTION, such as experiments.fedavg:program.")
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module}.".startswith(f"{e.name}."):
            raise  # the module is there, and misses one of its own
        raise CommandError(
            f"There is no module {module!r} here ({os.getcwd()}) or installed."
        ) from e
    if not callable(getattr(found, function, None)):
        names = [n for n, value in vars(found).items() if callable(value) and n[0] != "_"]
        raise CommandError(
            f"The module {module!r} has no function {function!r}; it has {', '.join(names)}."
        )
    return getattr(found, function)()
