"""Run folders: nothing half written, nothing mixed up, nothing counted twice."""

import json

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from fedeqx.training import Run, RunError


def test_a_new_run_writes_its_configuration(tmp_path):
    run = Run(tmp_path / "a" / "b", {"seed": 1, "sizes": (1, 2)})
    assert json.loads((tmp_path / "a" / "b" / "config.json").read_text()) == run.config
    assert run.config == {"seed": 1, "sizes": [1, 2]}
    assert run.position() is None
    Run(tmp_path / "a" / "b", {"seed": 1, "sizes": (1, 2)})


def test_another_configuration_is_refused_and_the_difference_named(tmp_path):
    Run(tmp_path, {"seed": 1, "rounds": 3})
    with pytest.raises(RunError, match=r"'seed': \(1, 2\)"):
        Run(tmp_path, {"seed": 2, "rounds": 3})
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="holds no run"):
        Run(tmp_path, {})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_restoring_forgets_what_was_measured_after_the_checkpoint(tmp_path):
    run = Run(tmp_path, {})
    for i in range(5):
        run.log(round=i)
        if i in (1, 3):
            run.checkpoint({"x": jnp.full(3, float(i))}, round=i)
    state = Run(tmp_path, {}).restore({"x": jnp.zeros(3)})
    np.testing.assert_array_equal(state["x"], [3.0, 3.0, 3.0])
    assert run.position() == {"round": 3}
    assert [line["round"] for line in run.metrics()] == [0, 1, 2, 3]


@pytest.mark.parametrize("fails_in", ["state", "note"])
def test_a_checkpoint_that_fails_leaves_the_one_before(tmp_path, monkeypatch, fails_in):
    run = Run(tmp_path, {})
    run.checkpoint({"x": jnp.ones(3)}, round=1)

    def broken(*args, **kwargs):
        raise OSError("disk full")

    if fails_in == "state":
        monkeypatch.setattr(eqx, "tree_serialise_leaves", broken)
    else:
        monkeypatch.setattr(run, "save_text", broken)
    with pytest.raises(OSError, match="disk full"):
        run.checkpoint({"x": jnp.zeros(3)}, round=2)
    monkeypatch.undo()
    again = Run(tmp_path, {})
    assert again.position() == {"round": 1}
    np.testing.assert_array_equal(again.restore({"x": jnp.zeros(3)})["x"], np.ones(3))


def test_old_checkpoints_do_not_pile_up(tmp_path):
    run = Run(tmp_path, {})
    for i in range(4):
        run.checkpoint({"x": jnp.ones(3)}, algorithm="FedAvg", round=i)
    assert [p.name for p in tmp_path.glob("*.eqx")] == ["checkpoint-FedAvg-3.eqx"]
    assert not list(tmp_path.glob("*.partial"))
