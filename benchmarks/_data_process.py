"""Runs a program of a benchmark as a process of its own: its time and memory, as the system saw."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class Ran(NamedTuple):
    """A process from start to end: seconds, those of its cores, peak RSS in bytes, what it told."""

    seconds: float
    cpu: float
    peak: int
    told: dict[str, Any]


def run(python: str | Path, script: str, *arguments: Any) -> Ran:
    """Run `script` of this folder. It prints a line of JSON last."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [str(python), str(HERE / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"},
        text=True,
    )
    assert child.stdout is not None
    lines = child.stdout.read().splitlines()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    cpu = usage.ru_utime + usage.ru_stime
    return Ran(seconds, cpu, usage.ru_maxrss * 1024, json.loads(lines[-1]) if lines else {})
