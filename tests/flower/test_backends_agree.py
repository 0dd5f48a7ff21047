"""Every registered program gives on Flower the value and the gradient that it gives locally."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from federated.helpers import CASES, assert_same
from federated.helpers._case import split
from flower.deployment import deployed

import fedeqx as fx
from fedeqx.federated.backends import flower
from fedeqx.federated.backends.flower._arrays import read_arrays, to_host

pytestmark = pytest.mark.flower

ROWS = {"node0": (0, 2), "node1": (2, 5), "node2": (5, 7)}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three nodes that find the data of each case under its name."""
    folder = tmp_path_factory.mktemp("federation")
    nodes = {
        name: {
            **{case.name: str(folder / name / case.name) for case in CASES},
            "results": str(folder / name / "results"),
        }
        for name in ROWS
    }
    with deployed(folder / "flower", nodes, python_path=HERE) as deployment:
        deployment.wait_for_nodes(3)
        yield folder, deployment


@pytest.mark.parametrize("case", [c for c in CASES if c.plannable], ids=lambda case: case.name)
def test_value_and_gradient(case, federation, tmp_path):
    folder, deployment = federation
    arguments = case.sample()
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    is_float = lambda leaf: eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)

    def of_floats(arrays):
        """The floats of the program's result, clients' in `Clients`, and of its arguments."""
        inexact, others = split(eqx.combine(arrays, rest), case.differentiable)
        return lambda x: eqx.filter(case.program(*eqx.combine(x, others)), is_float), inexact

    random = np.random.default_rng(1)
    like = lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype)
    fn, inexact = of_floats(arrays)
    cotangents = jtu.tree_map(like, jax.eval_shape(fn, inexact))

    def value_and_gradient(arrays, cotangents):
        fn, inexact = of_floats(arrays)
        value = eqx.filter(case.program(*eqx.combine(arrays, rest)), eqx.is_array)
        return value, jax.vjp(fn, inexact)[1](cotangents)[0]

    plan = fx.plan(value_and_gradient, arrays, cotangents)
    plan.export(tmp_path / "plan")
    loaded = fx.load_plan(tmp_path / "plan")
    server = tmp_path / "server"
    server.mkdir()
    flower.save_arguments(loaded, server / flower.ARGUMENTS, arrays, cotangents)
    store(loaded, folder, case.name, loaded.arguments(arrays, cotangents))
    settings = flower.Settings(
        folder=str(server), min_nodes=3, data_key=case.name, round_seconds=300.0
    )
    app = flower.build(
        tmp_path / "plan", tmp_path / "app", settings, clients="stored_clients:clients"
    )
    for name in ROWS:
        for old in (folder / name / "results").glob("*/*"):
            old.unlink()
    assert deployment.run(app) == "finished:completed", deployment.log("superlink")
    found = collect(loaded, folder, server)
    expected = jax.jit(value_and_gradient)(arrays, cotangents)
    assert_same(plan.outputs.join(found), expected, rtol=max(50 * case.rtol, 1e-3), atol=1e-4)


def store(loaded, folder, case, values):
    """Gives each node its clients' arrays."""
    manifest = loaded.manifest
    inputs = [
        entry
        for entry in manifest["inputs"]
        if manifest["values"][entry["value"]]["place"] == "clients"
    ]
    for name, rows in ROWS.items():
        place = folder / name / case
        place.mkdir(parents=True)
        (place / "names.json").write_text(json.dumps([entry["name"] for entry in inputs]))
        for row in range(*rows):
            stored = {}
            for number, entry in enumerate(inputs):
                host = to_host(values[entry["value"]])[row]
                stored[str(number)] = host.view(f"u{host.dtype.itemsize}")
            np.savez(place / f"{row:03d}.npz", **stored)


def collect(loaded, folder, server):
    """All arrays of the result, the clients' from the folders of their nodes."""
    manifest = loaded.manifest
    values = manifest["values"]
    files = [
        file for name in ROWS for file in sorted((folder / name / "results").glob("run-*/*.npz"))
    ]
    arrays = []
    for entry in manifest["outputs"]:
        name, value = entry["name"], entry["value"]
        if isinstance(value, dict) or values[value]["place"] == "server":
            with np.load(server / "result.npz", allow_pickle=False) as stored:
                found = stored[name]
            kind = value["dtype"] if isinstance(value, dict) else values[value]["dtype"]
            shape = list(found.shape) if isinstance(value, dict) else values[value]["shape"]
            arrays.append(
                read_arrays(server / "result.npz", {name: {"dtype": kind, "shape": shape}})[name]
            )
        else:
            each = [read_arrays(file, {name: values[value]})[name] for file in files]
            assert len(each) == 7
            arrays.append(jnp.stack(each))
    return arrays
