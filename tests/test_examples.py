"""The examples and the README run as they are written."""

import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import fedeqx as fx

ROOT = Path(__file__).parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    # Those for other frameworks are tested in tests/data/test_interop.py.
    names = {name for name in names if not name.startswith("interop_")}
    assert names == {"hypergradient", "own_data"}


def test_hypergradient_descent_descends():
    first, last = load("hypergradient").main()
    assert last < 0.2 * first


def test_own_data():
    order = load("own_data").main()
    assert sorted(order) == [f"user-{i}" for i in range(7)]


def readme_blocks():
    text = (ROOT / "README.md").read_text()
    return re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL)


def test_the_readmes_program_runs_and_its_gradient_is_right():
    code = next(code for language, code in readme_blocks() if language == "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 17
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    x, y = np.asarray(names["x"].value, np.float64), np.asarray(names["y"].value, np.float64)
    weight = np.asarray(names["model"].weight, np.float64)[0]
    bias = float(names["model"].bias[0])
    error = x @ weight + bias - y
    np.testing.assert_allclose(names["loss"], (error**2).mean(), rtol=1e-5)
    expected = 2 * np.einsum("cb,cbd->d", error, x) / error.size
    np.testing.assert_allclose(names["gradient"].weight[0], expected, rtol=1e-4)


def test_all_code_of_the_readme_runs(tmp_path, monkeypatch):
    """Block after block, with what the reader is to bring: a loss, data, a mesh."""
    monkeypatch.chdir(tmp_path)
    program, learning, backends, data = (c for kind, c in readme_blocks() if kind == "python")
    names: dict = {"records": [{"user": f"u{i % 40}", "text": "a b c " * 9} for i in range(80)]}
    exec(compile(program, "README.md", "exec"), names)
    exec(compile(data, "README.md", "exec"), names)
    tokens = names["cohorts"][7].batches["tokens"]
    assert (tokens.shape, tokens.dtype) == ((16, 4, 8, 65), np.int32)

    names |= {
        "mesh": jax.make_mesh(
            (2,), ("clients",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2]
        ),
        "key": jax.random.key(0),
        "cohort": fx.training.to_clients(names["cohorts"][0]),
        "loss_of_a_batch": lambda model, batch, key: jnp.mean(
            (jnp.mean(model.weight) * jnp.mean(batch["tokens"].astype(jnp.float32)) - 1.0) ** 2
        ),
    }
    exec(compile(backends, "README.md", "exec"), names)
    exec(compile(learning.replace("stop=100", "stop=3"), "README.md", "exec"), names)
    assert int(names["state"].round) == 4


def test_the_readmes_error_is_the_one_that_is_raised():
    blocks = readme_blocks()
    names: dict = {}
    exec(compile(next(code for kind, code in blocks if kind == "python"), "README", "exec"), names)
    shown = next(code for kind, code in blocks if kind == "text")
    with pytest.raises(TypeError) as caught:
        names["federated_loss"](names["model"], names["x"].value, names["y"])
    assert shown.strip() == f"TypeError: {caught.value}"


def test_the_readme_gives_the_commands_that_ci_runs():
    command = "python3 -m venv .venv && .venv/bin/pip install nox && .venv/bin/nox -s tests"
    assert ("sh", f"{command}\n") in readme_blocks()
    assert command in (ROOT / ".ci" / "run").read_text()
