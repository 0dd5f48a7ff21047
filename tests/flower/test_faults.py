"""What goes wrong on a real deployment: nodes that die, dawdle or lie, and a server that stops."""

import json
import re
import time
from pathlib import Path

import pytest
from flower.deployment import deployed
from flower.experiments import assert_close, descent, hypergradient, named, small
from flower.misbehaviour import CLIENT_APP
from flower.test_runs import RATE, W, read_report

pytestmark = pytest.mark.flower


def misbehaving(app: Path) -> Path:
    """The app, with clients that do to their answers what their node's configuration says."""
    (app / "fedeqx_app" / "client_app.py").write_text(CLIENT_APP)
    return app


def with_behaviour(experiment, behaviour, node="node1"):
    configs = experiment.configs
    configs[node] = {**configs[node], "behave": behaviour}
    return configs


def honest(experiment):
    """What the program gives without the clients of node1."""
    return named(experiment.program(*experiment.server, experiment.cohort(0, ["node0", "node2"])))


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("nan", "NaN or infinite"),
        ("shape", r"must be float32\[3\]"),
        ("dtype", r"must be float32\[3\]"),
        ("short", "has 12 bytes, but there are 11"),
        ("pickle", "in the form 'fedeqx.raw'"),
        ("more", "not asked for"),
        ("fewer", "are missing"),
        ("huge", "longer than the plan allows"),
        ("records", "other records"),
        ("raise", "RuntimeError; see the node's own log"),
        ("clients", "number of clients"),
    ],
)
def test_a_wrong_answer_is_rejected_by_name_and_the_run_goes_on(tmp_path, behaviour, why):
    experiment = small(tmp_path, descent, W, RATE)
    app = misbehaving(experiment.app(min_nodes=2, round_seconds=120.0))
    with deployed(tmp_path / "flower", with_behaviour(experiment, behaviour)) as deployment:
        deployment.wait_for_nodes(3)
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
        assert "secret of the node" not in deployment.log("superlink")
    assert_close(experiment.result(), honest(experiment), 1e-6)
    (line,) = read_report(experiment)
    (dropped,) = line["dropped"]
    assert dropped["node"] not in line["nodes"]
    assert_says(dropped["why"], why)
    assert sorted(line["nodes"].values()) == [2, 2]
    assert line["attempts"] == 1


@pytest.mark.parametrize("how", ["killed", "straggling"])
def test_a_node_lost_in_mid_round_is_named_and_the_others_weights_are_right(tmp_path, how):
    experiment = small(tmp_path, descent, W, RATE)
    app = misbehaving(experiment.app(min_nodes=2, round_seconds=45.0))
    behaviour = f"wait:{tmp_path / 'arrived'}"
    with deployed(tmp_path / "flower", with_behaviour(experiment, behaviour)) as deployment:
        deployment.wait_for_nodes(3)
        run = deployment.submit(app)
        wait_for_file(tmp_path / "arrived")
        if how == "killed":
            deployment.kill("node1")
        assert deployment.finish(run) == "finished:completed", deployment.log("superlink")
    assert_close(experiment.result(), honest(experiment), 1e-6)
    (line,) = read_report(experiment)
    (dropped,) = line["dropped"]
    assert dropped["exchange"] == 0
    assert_says(dropped["why"], "no answer within 45 seconds|Flower reports")


def test_a_node_lost_between_exchanges_makes_the_program_run_again_without_it(tmp_path):
    experiment = small(tmp_path, hypergradient, RATE, W)
    app = misbehaving(experiment.app(min_nodes=2, round_seconds=120.0))
    nodes = with_behaviour(experiment, "nan at 1")
    with deployed(tmp_path / "flower", nodes) as deployment:
        deployment.wait_for_nodes(3)
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
    assert_close(experiment.result(), honest(experiment), 1e-5)
    (line,) = read_report(experiment)
    assert line["attempts"] == 2
    assert [dropped["exchange"] for dropped in line["dropped"]] == [1]


def test_fewer_nodes_than_the_minimum_are_waited_for_and_then_an_error(tmp_path):
    experiment = small(tmp_path, descent, W, RATE)
    app = experiment.app(min_nodes=3, wait_seconds=15.0)
    two = dict(list(experiment.configs.items())[:2])
    with deployed(tmp_path / "flower", two) as deployment:
        deployment.wait_for_nodes(2)
        run = deployment.submit(app)
        assert deployment.finish(run) == "finished:failed"
        told = deployment.flwr("log", run, "test", "--show").stdout
    assert "Waiting: 2 of at least 3 nodes are there" in told
    assert_says(" ".join(told.split()), "After 15 seconds 2 of at least 3 nodes are there")
    assert not (experiment.server_folder / "result.npz").exists()


def test_a_server_that_was_killed_goes_on_after_its_last_finished_run(tmp_path):
    experiment = small(tmp_path, descent, W, RATE)
    app = experiment.app(rounds=4, carry={"w": "result"})
    report = experiment.server_folder / "report.jsonl"
    with deployed(tmp_path / "first", experiment.configs) as deployment:
        deployment.submit(app)
        wait_for_lines(report, 2)
        deployment.kill("superlink")
    done = len(report.read_text().splitlines())
    assert 2 <= done < 4
    with deployed(tmp_path / "second", experiment.configs) as deployment:
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
    assert [line["run"] for line in read_report(experiment)] == [0, 1, 2, 3]
    expected = W
    for run in range(4):
        expected = descent(expected, RATE, experiment.cohort(run, list(experiment.nodes)))
    assert_close(experiment.result(), named(expected), 1e-5)


def test_a_node_runs_only_the_plan_that_it_was_told_to(tmp_path):
    experiment = small(tmp_path, descent, W, RATE)
    loaded = experiment.export()
    app = experiment.app(min_nodes=2)
    nodes = experiment.configs
    nodes["node0"]["plan"] = loaded.manifest["sha256"][:12]
    nodes["node1"]["plan"] = "0123456789ab"
    with deployed(tmp_path / "flower", nodes) as deployment:
        deployment.wait_for_nodes(3)
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
    assert_close(experiment.result(), honest(experiment), 1e-6)
    (dropped,) = read_report(experiment)[0]["dropped"]
    assert_says(dropped["why"], "refused: this node runs the plan 0123456789ab only")


def test_an_altered_stage_is_refused_and_nothing_runs(tmp_path):
    experiment = small(tmp_path, descent, W, RATE)
    app = experiment.app()
    stage = app / "fedeqx_app" / "plan" / "round-0-client.stablehlo.json"
    content = json.loads(stage.read_text())["base64"]
    middle = len(content) // 2
    altered = content[:middle] + ("A" if content[middle] != "A" else "B") + content[middle + 1 :]
    stage.write_text(json.dumps({"base64": altered}))
    with deployed(tmp_path / "flower", experiment.configs) as deployment:
        run = deployment.submit(app)
        assert deployment.finish(run) == "finished:failed"
        told = deployment.flwr("log", run, "test", "--show").stdout
        logs = "".join(deployment.log(name) for name in experiment.nodes)
    assert_says(" ".join(told.split()), "round-0-client.stablehlo was altered")
    assert "Receiving: train" not in logs
    assert not (experiment.server_folder / "report.jsonl").exists()


def assert_says(text, pattern):

    assert re.search(pattern, text), text


def wait_for_file(file, seconds=120):
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"no {file}"
        time.sleep(0.2)


def wait_for_lines(file, count, seconds=300):
    deadline = time.monotonic() + seconds
    while not file.exists() or len(file.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, f"no {count} lines in {file}"
        time.sleep(0.2)
