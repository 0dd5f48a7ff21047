"""What every benchmark prints: the machine, a table, and whether the limits hold."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

from fedeqx.cli._tables import table


def show_machine(*packages: str) -> None:
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}")


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n{table(header, rows)}", flush=True)


def judge(limits: Sequence[tuple[str, float, float]]) -> bool:
    """Prints (what, found, limit) for each limit; whether all are kept."""
    print()
    for what, found, limit in limits:
        mark = "kept" if found <= limit else "MISSED"
        print(f"{mark:6}  {what}: {found:.3g} (limit {limit:.3g})")
    return all(found <= limit for _, found, limit in limits)
