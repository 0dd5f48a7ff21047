"""Plans on a real deployment give the values of a local run, and only what they list travels."""

import contextlib
import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flower.deployment import Deployment, deployed
from flower.experiments import (
    assert_close,
    client_loss,
    descent,
    fedavg,
    fedsgd,
    hypergradient,
    named,
    small,
    text,
)

import fedeqx as fx

# Flower imports Typer, which uses what Click deprecates.
pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore:'click.utils:DeprecationWarning"),
]

W, RATE = jnp.asarray([0.5, -1.0, 2.0]), jnp.float32(0.1)


@pytest.mark.parametrize(
    ("algorithm", "secure"),
    [(fedavg, False), (fedsgd, False), (fedavg, True)],
    ids=["FedAvg", "FedSGD", "FedAvg with TLS and node authentication"],
)
def test_three_rounds_of_the_demos_model_equal_the_local_run(tmp_path, algorithm, secure):
    experiment = text(tmp_path, algorithm())
    app = experiment.app(rounds=3, carry={"state": "result[0]"})
    state, key = experiment.server
    step = jax.jit(experiment.program)
    told, report = [], None
    for run in range(3):
        state, report = step(state, key, experiment.cohort(run, list(experiment.nodes)))
        told.append(float(report.client.loss))
    start = authenticated if secure else deployed
    with start(tmp_path / "flower", experiment.configs) as deployment:
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
    assert_close(experiment.result(), named((state, report)), 1e-5)
    lines = read_report(experiment)
    assert [line["run"] for line in lines] == [0, 1, 2]
    np.testing.assert_allclose(
        [line["result"]["result[1].client.loss"] for line in lines], told, rtol=0, atol=1e-5
    )
    # Three nodes: under authentication, the one that nobody registered was not let in.
    assert all(sorted(line["nodes"].values()) == [2, 2, 2] for line in lines)
    assert all(line["dropped"] == [] for line in lines)


@contextlib.contextmanager
def authenticated(folder, nodes):
    """A deployment with TLS and node authentication, and one node more that nobody registered."""
    from flower.tls import Tls

    tls = Tls(folder.with_name("tls"))
    deployment = Deployment(folder, tls=tls)
    try:
        deployment.start_superlink()
        deployment.start_supernode("stranger", next(iter(nodes.values())), may_end=True)
        for name, config in nodes.items():
            tls.node_key(name)
            done = deployment.flwr("supernode", "register", str(tls.public_key(name)), "test")
            assert done.returncode == 0, done.stdout + done.stderr
            deployment.start_supernode(name, config)
        yield deployment
    finally:
        deployment.stop()


def test_a_hypergradient_of_three_exchanges_with_values_kept_at_the_nodes(tmp_path):
    experiment = small(tmp_path, hypergradient, RATE, W)
    loaded = experiment.export()
    assert len(loaded.manifest["rounds"]) == 3
    assert any(step["client_keeps"] for step in loaded.manifest["rounds"])
    app = experiment.app()
    expected = hypergradient(RATE, W, experiment.cohort(0, list(experiment.nodes)))
    with deployed(tmp_path / "flower", experiment.configs) as deployment:
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
    assert_close(experiment.result(), named(expected), 1e-5)


def test_results_of_clients_stay_on_their_nodes(tmp_path):
    def losses(w, cohort):
        """What each client keeps, and what the server gets."""
        own = fx.client_map(client_loss, w, cohort)
        return own, fx.reduce_max(own), fx.cohort_size(own)

    experiment = small(tmp_path, losses, W)
    app = experiment.app()
    nodes = {
        name: {**config, "results": str(tmp_path / f"results-{name}")}
        for name, config in experiment.configs.items()
    }
    with deployed(tmp_path / "flower", nodes) as deployment:
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
    own, greatest, size = losses(W, experiment.cohort(0, list(experiment.nodes)))
    assert_close(experiment.result(), {"result[1]": greatest, "result[2]": size}, 1e-6)
    found = [
        np.load(file)["result[0]"]
        for name in experiment.nodes
        for file in sorted((tmp_path / f"results-{name}" / "run-00000").iterdir())
    ]
    np.testing.assert_allclose(found, own.value, rtol=1e-5)


def test_only_what_the_plan_lists_travels(tmp_path):
    from flower.recorder import Recorder
    from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest

    experiment = small(tmp_path, descent, W, RATE)
    loaded = experiment.export()
    app = experiment.app()
    deployment = Deployment(tmp_path / "flower")
    try:
        deployment.start_superlink()
        recorder = Recorder("127.0.0.1", deployment.port)
        for name, config in experiment.configs.items():
            superlink = recorder.address if name == "node1" else None
            deployment.start_supernode(name, config, superlink=superlink)
        assert deployment.run(app) == "finished:completed", deployment.log("superlink")
        recorder.close()
    finally:
        deployment.stop()
    pushed = [PushObjectRequest.FromString(b) for path, b in recorder.sent if "push-object" in path]
    pulled = [
        PullObjectResponse.FromString(b) for path, b in recorder.received if "pull-object" in path
    ]
    (step,) = loaded.manifest["rounds"]
    values = loaded.manifest["values"]
    up = [values[m["to"]] for m in step["reductions"]]
    down = [values[m["to"]] for m in step["broadcasts"]]
    assert arrays_in(o.object_content for o in pushed) == described(up)
    assert arrays_in(o.object_content for o in pulled) == described(down)
    # Nothing else: no more bytes of arrays, one small record, and not one row of the data.
    assert chunk_bytes(o.object_content for o in pushed) == size_of(up)
    assert chunk_bytes(o.object_content for o in pulled) == size_of(down)
    records = [o.object_content for o in pushed if o.object_content.startswith(b"ConfigRecord")]
    assert len(records) == 1
    assert len(records[0]) < 200
    sent = b"".join(body for _, body in recorder.sent)
    own = experiment.cohort(0, ["node1"]).value
    rows = [row.tobytes() for x in own.values() for row in np.asarray(x)]
    assert rows
    assert not any(row in sent for row in rows)
    assert len(sent) > size_of(up)


def read_report(experiment):
    lines = (experiment.server_folder / "report.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def arrays_in(objects):
    """How many arrays of each dtype and shape there are among Flower's objects."""
    bodies = [body(o) for o in objects if o.startswith(b"Array ")]
    return Counter((b["dtype"], tuple(b["shape"])) for b in map(json.loads, bodies))


def described(entries):
    return Counter((entry["dtype"], tuple(entry["shape"])) for entry in entries)


def chunk_bytes(objects):
    """How many bytes the arrays have; equal chunks travel once."""
    return sum(len(body(o)) for o in objects if o.startswith(b"ArrayChunk "))


def size_of(entries):
    return sum(
        int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize for entry in entries
    )


def body(content):
    return content[content.index(b"\0") + 1 :]
