"""Making a Flower app of a plan, and all of it that needs no Flower."""

import base64
import json
import sys
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedeqx as fx
from fedeqx.federated.backends import flower
from fedeqx.federated.backends.flower import _arrays as arrays
from fedeqx.federated.backends.flower._files import ServerFiles

SETTINGS = flower.Settings(folder="somewhere")


def step(state, x):
    mean = fx.reduce_mean(fx.client_map(lambda w, x: w * x, state["w"], x))
    return {"w": state["w"] - mean, "n": state["n"] + 1}, mean


STATE = {"w": np.ones(3, np.float32), "n": np.int32(0)}
X = fx.Clients(jnp.ones((2, 3)))


@pytest.fixture
def exported(tmp_path):
    fx.plan(step, STATE, X).export(tmp_path / "plan")
    return tmp_path / "plan"


VALUES = [
    np.float32(1.5),
    np.arange(6, dtype=np.int8).reshape(2, 3),
    np.array([True, False]),
    np.zeros((0, 2), np.float32),
    np.array([1.5, np.nan, -0.0], np.float16),
    jnp.arange(4, dtype=jnp.bfloat16),
    jnp.arange(3, dtype=jnp.float8_e4m3fn),
    jax.random.key(3),
    jax.random.split(jax.random.key(3, impl="rbg"), 2),
]


def entry_of(x):
    x = jnp.asarray(x)
    return {"shape": list(x.shape), "dtype": str(x.dtype)}


def same(one, two):
    assert one.dtype == two.dtype
    np.testing.assert_array_equal(
        arrays.to_host(one).reshape(-1).view(np.uint8),
        arrays.to_host(two).reshape(-1).view(np.uint8),
    )


@pytest.mark.parametrize("x", VALUES, ids=lambda x: str(x.dtype))
def test_arrays_go_through_bytes_and_files_unchanged(x, tmp_path):
    x, entry = jnp.asarray(x), entry_of(x)
    data = arrays.to_bytes(x)
    assert len(data) == arrays.num_bytes(entry)
    same(arrays.from_bytes(entry, data), x)
    arrays.write_arrays(tmp_path / "a.npz", {"a[0].b": x})
    same(arrays.read_arrays(tmp_path / "a.npz", {"a[0].b": entry})["a[0].b"], x)


@pytest.mark.parametrize("x", [x for x in VALUES if x.size], ids=lambda x: str(x.dtype))
def test_too_few_and_too_many_bytes_are_refused(x):
    data, entry = arrays.to_bytes(jnp.asarray(x)), entry_of(x)
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(arrays.ArrayError, match="bytes"):
            arrays.from_bytes(entry, wrong)


def test_a_bool_that_is_none_is_refused():
    with pytest.raises(arrays.ArrayError, match="neither 0 nor 1"):
        arrays.from_bytes({"shape": [2], "dtype": "bool"}, b"\1\2")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "folder is missing"),
        ({"folder": "x", "round": 3}, "no setting 'round'; there are folder, rounds"),
        ({"folder": "x", "rounds": 0}, "rounds = 0: give at least 1"),
        ({"folder": "x", "rounds": True}, "rounds = True: give a int"),
        ({"folder": "x", "rounds": "3"}, "rounds = '3': give a int"),
        ({"folder": "x", "min-nodes": 0}, "min-nodes = 0: give at least 1"),
        ({"folder": "x", "round-seconds": 0}, "round-seconds = 0.0: give more than 0"),
        ({"folder": ""}, "folder must not be empty"),
        ({"folder": "x", "carry": {"state": 3}}, "carry.state = 3: give the name of a result"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, config, message):
    file = tmp_path / "flower.toml"
    lines = [f"{key} = {_toml(value)}" for key, value in config.items()]
    file.write_text("\n".join(lines))
    with pytest.raises(flower.SettingsError, match=message):
        flower.read_settings_file(file)


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def test_an_app_holds_the_plan_its_settings_and_two_small_programs(exported, tmp_path):
    settings = flower.Settings(
        folder='a "quoted" \\ folder', rounds=3, carry={"state": "result[0]"}, round_seconds=2.5
    )
    app = flower.build(exported, tmp_path / "my-app", settings, clients="mine.data:clients")
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    config = project["tool"]["flwr"]["app"]["config"]
    (tmp_path / "again.toml").write_text(
        "\n".join(f"{key} = {_toml(value)}" for key, value in config.items())
    )
    assert flower.read_settings_file(tmp_path / "again.toml") == settings
    for file in exported.glob("*.stablehlo"):
        stored = json.loads((app / "fedeqx_app" / "plan" / f"{file.name}.json").read_text())
        assert base64.b64decode(stored["base64"]) == file.read_bytes()
    for name in ("server_app.py", "client_app.py"):
        compile((app / "fedeqx_app" / name).read_text(), name, "exec")
    assert "from mine.data import clients" in (app / "fedeqx_app" / "client_app.py").read_text()
    assert (
        json.loads((exported / "manifest.json").read_text())["sha256"]
        in (app / "README.md").read_text()
    )


@pytest.mark.parametrize(
    ("carry", "message"),
    [
        ({"stat": "result[0]"}, "no argument 'stat'; it has state"),
        ({"state": "result[1]"}, r"state\['n'\] needs the result result\[1\]\['n'\]; there are"),
        ({"state['n']": "result[1]"}, r"state\['n'\] is .*int32.*, and result\[1\] is .*float32"),
    ],
)
def test_a_carry_that_does_not_fit_is_refused(exported, tmp_path, carry, message):
    with pytest.raises(ValueError, match=message):
        flower.build(exported, tmp_path / "app", flower.Settings(folder="x", carry=carry))
    assert {path.name for path in tmp_path.iterdir()} == {"plan"}


def test_an_altered_plan_and_a_wrong_place_are_refused(exported, tmp_path):
    for name in ("2late", "a" * 33, "under_score", "tool.v1"):
        with pytest.raises(ValueError, match="no name for a Flower app"):
            flower.build(exported, tmp_path / name, SETTINGS)
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match="there exists"):
        flower.build(exported, tmp_path / "there", SETTINGS)
    with pytest.raises(ValueError, match="give MODULE:FUNCTION"):
        flower.build(exported, tmp_path / "app", SETTINGS, clients="mine")
    stage = exported / "end-server.stablehlo"
    stage.write_bytes(stage.read_bytes()[:-1] + b"!")
    with pytest.raises(fx.PlanError, match=r"end-server\.stablehlo was altered"):
        flower.build(exported, tmp_path / "app", SETTINGS)
    assert {path.name for path in tmp_path.iterdir()} == {"plan", "there"}


def test_a_plan_too_large_for_a_bundle_is_refused(tmp_path):
    large = np.random.default_rng(0).normal(size=(3 << 20,)).astype(np.float32)
    program = lambda x: fx.reduce_sum(fx.client_map(lambda x: (x * large).sum(), x))
    fx.plan(program, fx.Clients(jnp.ones(2))).export(tmp_path / "plan")
    with pytest.raises(fx.PlanError, match="MiB, and Flower takes up to 10"):
        flower.build(tmp_path / "plan", tmp_path / "app", SETTINGS)
    assert {path.name for path in tmp_path.iterdir()} == {"plan"}


def test_without_flower_an_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(ImportError, match=r"pip install 'fedeqx\[flower\]'"):
        _ = flower.server_app
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = flower.nothing_of_the_kind  # pyright: ignore[reportAttributeAccessIssue]


def server_files(exported, folder, carry=None):
    folder.mkdir(exist_ok=True)
    return ServerFiles(folder, fx.load_plan(exported), carry or {"state": "result[0]"})


def test_the_server_goes_on_from_what_it_finished(exported, tmp_path):
    folder = tmp_path / "server"
    with pytest.raises(FileNotFoundError, match=r"arguments\.npz is missing.*save_arguments"):
        server_files(exported, folder).start()
    plan = fx.load_plan(exported)
    flower.save_arguments(plan, folder / "arguments.npz", STATE, X)
    inputs, start = server_files(exported, folder).start()
    assert start == 0
    for run in range(3):
        results = {"result[0]['w']": jnp.full(3, run + 0.5), "result[0]['n']": jnp.int32(run)}
        inputs = server_files(exported, folder).finish(
            run, inputs, {**results, "result[1]": X.value}
        )
    found, start = server_files(exported, folder).start()
    assert start == 3
    names = {entry["name"]: entry["value"] for entry in plan.manifest["inputs"]}
    np.testing.assert_array_equal(found[names["state['w']"]], np.full(3, 2.5, np.float32))
    assert int(found[names["state['n']"]]) == 2
    kept = sorted(path.name for path in folder.glob("state-*"))
    assert kept == ["state-00001.npz", "state-00002.npz"]
    (folder / "state-00002.npz").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"state-00002\.npz is missing or damaged"):
        server_files(exported, folder).start()


def test_a_folder_of_another_plan_and_wrong_arguments_are_refused(exported, tmp_path):
    folder = tmp_path / "server"
    files = server_files(exported, folder)
    flower.save_arguments(fx.load_plan(exported), folder / "arguments.npz", STATE, X)
    results = {"result[0]['w']": jnp.ones(3), "result[0]['n']": jnp.int32(0)}
    files.finish(0, {}, results)
    other = lambda state, x: step(state, x)[0]
    fx.plan(other, STATE, X).export(tmp_path / "other")
    with pytest.raises(ValueError, match="holds a run of another plan"):
        server_files(tmp_path / "other", folder, {"state": "result"}).start()
    arrays.write_arrays(
        folder / "arguments.npz", {"state['w']": jnp.ones(4), "state['n']": jnp.int32(1)}
    )
    with pytest.raises(ValueError, match=r"state\['w'\] must be float32\[3\], but is float32\[4\]"):
        files.start()
    arrays.write_arrays(folder / "arguments.npz", {"state['n']": jnp.int32(1)})
    with pytest.raises(ValueError, match=r"no array"):
        files.start()
