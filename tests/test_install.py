"""What an installation costs, and that nothing heavy is loaded before it is needed."""

import re
import subprocess
import sys
from importlib.metadata import distribution

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement


def core_packages(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """All distributions that `pip install name` brings, read from the installed metadata."""
    found: set[tuple[str, frozenset[str]]] = set()
    todo = [(name, extras)]
    while todo:
        current = todo.pop()
        if current in found:
            continue
        found.add(current)
        for line in distribution(current[0]).requires or []:
            requirement = Requirement(line)
            environments = [
                {**default_environment(), "extra": extra} for extra in (current[1] or {""})
            ]
            marker = requirement.marker
            if marker is None or any(marker.evaluate(env) for env in environments):
                todo.append((_canonical(requirement.name), frozenset(requirement.extras)))
    return {package for package, _ in found}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_core_is_at_most_25_packages():
    packages = core_packages("fedeqx") - {"fedeqx"}
    assert len(packages) <= 25, sorted(packages)


@pytest.mark.parametrize("heavy", ["matplotlib", "flwr", "apache-beam", "torch", "tensorflow"])
def test_heavy_packages_are_extras(heavy):
    assert heavy not in core_packages("fedeqx")


@pytest.mark.parametrize("module", ["fedeqx", "fedeqx.data", "fedeqx.cli"])
def test_no_jax_before_it_is_needed(module):
    code = f"import sys, {module}; print('jax' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_importing_the_language_starts_no_backend():
    code = (
        "import fedeqx as fx, fedeqx.learning, fedeqx.nn, fedeqx.training; fx.client_map\n"
        "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
