"""`fedeqx verify`: check a grouped data set against its manifest."""

import argparse
import sys
from pathlib import Path

from ._errors import explained


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="re-check counts, order, index and checksums of a grouped data set",
        description="Read a whole grouped data set again and check its checksums, counts, order "
        "and index. Damaged files and groups are named, and the exit status is 1.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `fedeqx group` wrote")


def run(arguments: argparse.Namespace) -> int:
    from .. import data

    with explained(ValueError, OSError):
        found = data.verify(arguments.folder)
    for problem in found.problems:
        print(f"fedeqx: {arguments.folder}: {problem}", file=sys.stderr)
    if not found.ok:
        return 1
    print(f"{arguments.folder} is sound: {found.groups:,} groups, {found.examples:,} examples")
    return 0
