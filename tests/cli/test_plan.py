"""`fedeqx plan MODULE:FUNCTION`."""

import subprocess
import sys

import pytest

PROGRAM = """
import fedeqx as fx, jax, jax.numpy as jnp

def mean(w, x):
    return fx.reduce_mean(fx.client_map(lambda w, x: jnp.sum(w * x), w, x))

def gradient():
    return jax.grad(mean), jnp.zeros(3), fx.Clients(jnp.zeros((4, 3)))

def leak():
    return (lambda x: x.value[0]), fx.Clients(jnp.zeros((4, 3)))

def plan():
    return fx.plan(mean, jnp.zeros(3), fx.Clients(jnp.zeros((4, 3))))

def nothing():
    return 3
"""


@pytest.fixture
def fedeqx(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "fedeqx.cli", "plan", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )

    return run


def test_it_prints_the_rounds(fedeqx):
    result = fedeqx("mine:gradient")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].endswith("1 round")
    assert lines[-1] == "in total, for each client: 4 B down, 12 B up"
    assert fedeqx("mine:plan").stdout.splitlines()[-1].endswith("12 B down, 4 B up")


def test_a_diagram_and_files(fedeqx, tmp_path):
    result = fedeqx("mine:plan", "--mermaid", "--export", "out")
    assert result.stdout.startswith("sequenceDiagram\n")
    assert (tmp_path / "out" / "manifest.json").exists()
    again = fedeqx("mine:plan", "--export", "out")
    assert (again.returncode, "out exists" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine:leak", "mixes the clients"),
        ("mine:nothing", "returned a int"),
        ("mine:nonesuch", "has no function 'nonesuch'; it has mean, gradient"),
        ("nonesuch:f", "no module 'nonesuch'"),
        ("mine", "no MODULE:FUNCTION"),
    ],
)
def test_mistakes_are_explained(fedeqx, name, message):
    result = fedeqx(name)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
