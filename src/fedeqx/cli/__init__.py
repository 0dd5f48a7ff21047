"""The `fedeqx` command. Each subcommand is a file with `add_parser` and `run`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ._errors import CommandError

_COMMANDS = ("demo", "flower", "group", "plan", "stats", "verify")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    0 for success, 1 for an error that the message explains, 2 for unusable arguments and 130 for
    an interruption.
    """
    parser = argparse.ArgumentParser(
        prog="fedeqx",
        description="Federated and group-structured machine learning in JAX.",
    )
    parser.add_argument("--version", action="version", version=f"fedeqx {version('fedeqx')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in _COMMANDS:
        _module(name).add_parser(subparsers)
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        return _module(arguments.command).run(arguments)
    except KeyboardInterrupt:
        print("\nfedeqx: interrupted", file=sys.stderr)
        return 130
    except (CommandError, OSError) as e:
        print(f"fedeqx: {e}", file=sys.stderr)
        return 1


def _module(name: str):
    return importlib.import_module(f"._{name}", __name__)
