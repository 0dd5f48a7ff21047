"""Exported plans: files that run elsewhere, and refusals of files that are not what was written."""

import json
import subprocess
import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import fedeqx as fx
from fedeqx.federated.backends import _export

W = jnp.array([0.5, -1.0, 2.0])
X = fx.Clients(jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32))


class Model(eqx.Module):
    weight: Float[Array, "features"]
    activation: object = jnp.tanh


def local_loss(model, x):
    return jnp.sum(model.activation(model.weight * x) ** 2)


def loss(model, x):
    return fx.reduce_mean(fx.client_map(local_loss, model, x))


def step(model, x):
    value, gradient = eqx.filter_value_and_grad(loss)(model, x)
    return {"loss": value, "model": eqx.apply_updates(model, gradient)}


def exported(tmp_path, fn=step, args=None, **options):
    fx.plan(fn, *(args or (Model(W), X))).export(tmp_path / "plan", **options)
    return tmp_path / "plan"


def test_a_loaded_plan_gives_the_values(tmp_path):
    loaded = fx.load_plan(exported(tmp_path))
    found, expected = loaded(Model(W), X), step(Model(W), X)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    np.testing.assert_allclose(found["model"]["weight"], expected["model"].weight, rtol=1e-6)
    assert loaded.inputs == ("model.weight", "x")


@pytest.mark.parametrize("clients", [1, 7])
def test_at_any_cohort_size(tmp_path, clients):
    x = fx.Clients(jnp.asarray(np.random.default_rng(1).normal(size=(clients, 3)), jnp.float32))
    found = eqx.filter_jit(fx.load_plan(exported(tmp_path)))(Model(W), x)
    np.testing.assert_allclose(found["loss"], loss(Model(W), x), rtol=1e-6)


def test_a_loaded_plan_is_differentiated(tmp_path):
    loaded = fx.load_plan(exported(tmp_path, loss, derivatives=1))
    gradient = jax.grad(lambda w: loaded(Model(w), X))(W)
    expected = jax.grad(lambda w: loss(Model(w), X))(W)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_loading_needs_neither_source_nor_classes(tmp_path):
    """In a process that has only the folder, with a plain dict in the model's place."""
    code = f"""
    import fedeqx as fx, jax.numpy as jnp, numpy as np
    x = fx.Clients(jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32))
    loaded = fx.load_plan({str(exported(tmp_path))!r})
    print(float(loaded({{"weight": jnp.array([0.5, -1.0, 2.0])}}, x)["loss"]))
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(float(out.stdout), loss(Model(W), X), rtol=1e-6)


def test_one_artifact_for_several_platforms(tmp_path):
    folder = exported(tmp_path, platforms=("cpu", "cuda", "tpu"))
    loaded = fx.load_plan(folder)
    assert loaded.platforms == ("cpu", "cuda", "tpu")
    for entry in loaded.manifest["rounds"]:
        assert loaded.stage(entry["client"]["file"]).platforms == ("cpu", "cuda", "tpu")


def test_the_manifest_says_what_is_sent(tmp_path):
    manifest = json.loads((exported(tmp_path) / "manifest.json").read_text())
    (only,) = manifest["rounds"]
    values = manifest["values"]
    assert [m["name"] for m in only["broadcasts"]][:1] == ["model.weight"]
    assert [(values[m["from"]]["shape"], m["how"]) for m in only["reductions"]] == [
        ([], "sum"),
        ([3], "sum"),
    ]
    assert manifest["result"]["dict"]["model"]["dict"].keys() == {"weight", "activation"}


def test_a_client_stage_is_one_clients_work(tmp_path):
    """What a client in another language would run: flat arrays in, flat arrays out."""
    loaded = fx.load_plan(exported(tmp_path))
    (only,) = loaded.manifest["rounds"]
    stage = loaded.stage(only["client"]["file"])
    shapes = [tuple(loaded.manifest["values"][v]["shape"]) for v in only["client"]["inputs"]]
    assert [aval.shape for aval in stage.in_avals] == shapes
    names = {m["to"]: m["name"] for m in only["broadcasts"]}
    values = {"model.weight": W}
    arguments = [
        X.value[2] if v not in names else values.get(names[v], jnp.float32(0.2))
        for v in only["client"]["inputs"]
    ]
    outputs = dict(zip(only["client"]["outputs"], stage.call(*arguments), strict=True))
    sent = outputs[only["reductions"][0]["from"]]
    np.testing.assert_allclose(sent, local_loss(Model(W), X.value[2]), rtol=1e-6)


def test_keys_and_low_precision_travel(tmp_path):
    def noisy(key, x):
        noise = lambda key, x: x + jax.random.normal(key, x.shape, x.dtype)
        return fx.reduce_mean(fx.client_map(noise, key, x)), jax.random.fold_in(key, 1)

    args = jax.random.key(3), fx.Clients(X.value.astype(jnp.bfloat16))
    mean, key = fx.load_plan(exported(tmp_path, noisy, args))(*args)
    expected = noisy(*args)
    assert mean.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(mean, np.float32), np.asarray(expected[0], np.float32))
    assert (jax.random.key_data(key) == jax.random.key_data(expected[1])).all()


def test_results_at_the_clients_and_none(tmp_path):
    fn = lambda w, x: (fx.client_map(jnp.multiply, w, x), None, "name", [w])
    found = fx.load_plan(exported(tmp_path, fn, (W, X)))(W, X)
    assert isinstance(found[0], fx.Clients)
    np.testing.assert_allclose(found[0].value, np.asarray(W) * np.asarray(X.value), rtol=1e-6)
    assert found[1:3] == (None, "name")


DAMAGES = {
    "a truncated stage": (
        lambda folder: _cut(folder / "round-0-client.stablehlo"),
        r"round-0-client\.stablehlo was truncated",
    ),
    "an altered stage": (
        lambda folder: _flip(folder / "end-server.stablehlo"),
        r"end-server\.stablehlo was altered",
    ),
    "a missing stage": (
        lambda folder: (folder / "round-0-server.stablehlo").unlink(),
        r"round-0-server\.stablehlo is missing",
    ),
    "a missing manifest": (lambda folder: (folder / "manifest.json").unlink(), "is no exported"),
    "a truncated manifest": (
        lambda folder: _cut(folder / "manifest.json"),
        r"manifest\.json is truncated",
    ),
    "an altered manifest": (
        lambda folder: _edit(folder, lambda m: m["rounds"][0]["reductions"][0].update(how="max")),
        r"manifest\.json was altered",
    ),
    "a newer format": (
        lambda folder: _edit(folder, lambda m: m.update(version=99), seal=True),
        r"version 99 of the format.* up to 1",
    ),
    "another format": (
        lambda folder: _edit(folder, lambda m: m.update(format="other"), seal=True),
        "not the manifest",
    ),
    "a file elsewhere": (
        lambda folder: _edit(
            folder, lambda m: m["end"].update(file="../end-server.stablehlo"), seal=True
        ),
        "outside of its folder",
    ),
}


def _cut(file):
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def _flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _edit(folder, change, seal=False):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(
        json.dumps(_export._sealed(manifest) if seal else manifest)
    )


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_not_written_so_is_refused(tmp_path, damage):
    folder = exported(tmp_path)
    do, message = DAMAGES[damage]
    do(folder)
    with pytest.raises(fx.PlanError, match=message):
        fx.load_plan(folder)


def test_every_byte_of_every_file_is_checked(tmp_path):
    folder = exported(tmp_path)
    for file in sorted(folder.iterdir()):
        before = file.read_bytes()
        _flip(file)
        with pytest.raises((fx.PlanError, UnicodeDecodeError)):
            fx.load_plan(folder)
        file.write_bytes(before)
    fx.load_plan(folder)


def test_an_existing_folder_is_left_alone(tmp_path):
    folder = exported(tmp_path)
    before = sorted(p.name for p in folder.iterdir())
    with pytest.raises(FileExistsError, match="exists"):
        exported(tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_failed_export_leaves_nothing(tmp_path):
    """A call back into Python cannot leave it."""
    callback = lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    fn = lambda w, x: fx.reduce_sum(fx.client_map(callback, x)) + w
    with pytest.raises(Exception, match="callback"):
        exported(tmp_path, fn, (W, X))
    assert list(tmp_path.iterdir()) == []


def test_unknown_platforms_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"platforms=\('gpu',\).*cpu, cuda, rocm, tpu"):
        exported(tmp_path, platforms=("gpu",))
    assert list(tmp_path.iterdir()) == []


def test_other_arguments_are_refused(tmp_path):
    loaded = fx.load_plan(exported(tmp_path))
    with pytest.raises(fx.PlanError, match=r"takes 2 arrays, but got 1: model\.weight, x"):
        loaded(X)
    with pytest.raises(fx.PlanError, match=r"model\.weight must be float32\[3\] at the server"):
        loaded(Model(jnp.zeros(4)), X)
    with pytest.raises(fx.PlanError, match="needs clients' values"):
        loaded(Model(W), X.value)


def test_a_plan_inside_of_a_transformation_is_not_exported(tmp_path):
    def inner(w):
        plan = fx.plan(lambda x: loss(Model(w), x), X)
        plan.export(tmp_path / "plan")
        return w

    with pytest.raises(fx.PlanError, match="closes over values"):
        jax.jit(inner)(W)
