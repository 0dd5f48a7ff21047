"""From a program to a Flower app, by commands."""

import subprocess
import sys

import numpy as np
import pytest

PROGRAM = """
import fedeqx as fx, jax.numpy as jnp

def mean(w, x):
    return fx.reduce_mean(fx.client_map(lambda w, x: jnp.sum(w * x), w, x))

def program():
    return mean, jnp.arange(3.0), fx.Clients(jnp.zeros((4, 3)))

def plan():
    return fx.plan(*program())
"""


@pytest.fixture
def fedeqx(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "flower.toml").write_text('folder = "run"\nrounds = 3\nmin-nodes = 5\n')

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "fedeqx.cli", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )

    return run


def test_from_a_program_to_an_app(fedeqx, tmp_path):
    done = fedeqx("plan", "mine:program", "--export", "plan", "--arguments", "arguments.npz")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "arguments.npz", allow_pickle=False) as stored:
        assert list(stored) == ["w"]
        np.testing.assert_array_equal(stored["w"], np.arange(3, dtype=np.float32))
    done = fedeqx("flower", "build", "plan", "--config", "flower.toml", "--out", "app")
    assert done.returncode == 0, done.stderr
    assert "put the server's arguments at run/arguments.npz" in done.stdout
    assert "min-nodes = 5" in (tmp_path / "app" / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "mine:program", "--arguments", "a.npz"), "--arguments needs --export DIR"),
        (("plan", "mine:plan", "--export", "p", "--arguments", "a.npz"), "which has no arguments"),
        (("flower", "build", "none", "--config", "flower.toml", "--out", "app"), "none/manifest"),
        (("flower", "build", "none", "--config", "none.toml", "--out", "app"), "none.toml"),
        (("flower", "build", "none", "--config", "mine.py", "--out", "app"), "mine.py"),
    ],
)
def test_mistakes_are_told_on_one_line(fedeqx, tmp_path, arguments, message):
    done = fedeqx(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "app").exists()
