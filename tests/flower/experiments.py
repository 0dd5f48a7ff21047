"""Programs with their data on nodes: what a test runs on Flower, and locally to compare."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedeqx as fx
from fedeqx import data, learning, nn, training
from fedeqx.federated.backends import flower
from fedeqx.learning import Optimizer


@dataclasses.dataclass
class Experiment:
    """A program, the server's arguments, and the grouped data of each node."""

    folder: Path
    program: Callable[..., Any]
    server: tuple[Any, ...]
    nodes: dict[str, Path]
    # The clients' argument of a run of the program, of some nodes.
    cohort: Callable[[int, list[str]], fx.Clients[Any]]

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        return {name: {"data": str(path)} for name, path in self.nodes.items()}

    @property
    def server_folder(self) -> Path:
        return self.folder / "server"

    def export(self) -> fx.LoadedPlan:
        example = self.cohort(0, list(self.nodes))
        fx.plan(self.program, *self.server, example).export(self.folder / "plan")
        loaded = fx.load_plan(self.folder / "plan")
        self.server_folder.mkdir()
        arguments = self.server_folder / flower.ARGUMENTS
        flower.save_arguments(loaded, arguments, *self.server, example)
        return loaded

    def app(self, name: str = "app", **settings: Any) -> Path:
        """The Flower app, for all nodes and impatient unless told otherwise."""
        if not (self.folder / "plan").exists():
            self.export()
        given = {"min_nodes": len(self.nodes), "wait_seconds": 120.0, "round_seconds": 300.0}
        chosen = flower.Settings(folder=str(self.server_folder), **{**given, **settings})
        return flower.build(self.folder / "plan", self.folder / name, chosen)

    def result(self) -> dict[str, np.ndarray]:
        with np.load(self.server_folder / "result.npz", allow_pickle=False) as stored:
            return dict(stored)


def named(tree: Any) -> dict[str, np.ndarray]:
    """A program's result by the names that a plan gives its leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    return {f"result{jax.tree_util.keystr(path)}": np.asarray(x) for path, x in leaves}


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> None:
    """Every array of a result, by name, to an absolute tolerance."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance, err_msg=name)


def node_folders(
    folder: Path, groups: Mapping[str, list[dict[str, Any]]], by: str
) -> dict[str, Path]:
    """Groups each node's examples into a folder of its own."""
    for name, examples in groups.items():
        data.group(examples, by=by, out=folder / name)
    return {name: folder / name for name in groups}


# -- small programs on columns of numbers ----------------------------------------------------------

ROWS = {"node0": (0, 2), "node1": (2, 5), "node2": (5, 7)}
EXAMPLES, FEATURES = 5, 3


def numbers() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    x = random.normal(size=(7, EXAMPLES, FEATURES)).astype(np.float32)
    y = random.normal(size=(7, EXAMPLES)).astype(np.float32)
    return x, y


def small(folder: Path, program: Callable[..., Any], *server: Any) -> Experiment:
    """A program whose clients have `x` [examples, features] and `y` [examples]."""
    x, y = numbers()
    groups = {
        name: [
            {"who": who, "x": x[who, i].tolist(), "y": float(y[who, i])}
            for who in range(*rows)
            for i in range(EXAMPLES)
        ]
        for name, rows in ROWS.items()
    }

    def cohort(run: int, nodes: list[str]) -> fx.Clients[Any]:
        who = [number for name in nodes for number in range(*ROWS[name])]
        return fx.Clients({"x": jnp.asarray(x[who]), "y": jnp.asarray(y[who])})

    return Experiment(folder, program, server, node_folders(folder / "data", groups, "who"), cohort)


def client_loss(w, own):
    return jnp.mean((own["x"] @ w - own["y"]) ** 2)


def descent(w, rate, cohort):
    """A round of FedSGD by hand, weighted by what the clients have."""
    weights = fx.client_map(lambda own: jnp.abs(own["y"]).sum(), cohort)
    gradients = fx.client_map(jax.grad(client_loss), w, cohort)
    return w - rate * fx.reduce_mean(gradients, weights=weights)


def loss_after_a_round(rate, w, cohort):
    losses = fx.client_map(client_loss, descent(w, rate, cohort), cohort)
    return fx.reduce_mean(losses)


hypergradient = jax.value_and_grad(loss_after_a_round, argnums=(0, 1))


# -- the demo's model on real text ----------------------------------------------------------------

STEPS, BATCH, LENGTH = 4, 8, 64


def token_loss(model: Any, batch: Any, key: Any) -> Any:
    del key
    return nn.next_token_loss(model, batch)


def text(folder: Path, algorithm: learning.AbstractAlgorithm) -> Experiment:
    """An algorithm on the demo's transformer, and packages of the standard library on each node."""
    packages = {
        "node0": ["json", "wsgiref"],
        "node1": ["dbm", "curses"],
        "node2": ["urllib", "zipfile"],
    }
    data.group(data.python_stdlib(), by=data.stdlib_package, out=folder / "all")
    everything = data.open(folder / "all")
    groups = {
        name: [{"package": p, "text": e["text"]} for p in some for e in everything.group(p)]
        for name, some in packages.items()
    }
    nodes = node_folders(folder / "data", groups, "package")
    model = nn.Transformer(
        nn.TransformerConfig.preset("tiny", vocab_size=data.BYTE_VOCAB_SIZE, depth=5),
        key=jax.random.key(0),
    )
    state, key = algorithm.init(model, key=jax.random.key(1)), jax.random.key(2)
    arrays, static = eqx.partition(state, eqx.is_array)

    def program(state, key, cohort):
        whole = eqx.combine(state, static)
        after, report = algorithm.step(whole, cohort, key=jax.random.fold_in(key, whole.round))
        return eqx.filter(after, eqx.is_array), report

    def cohort(run: int, names: list[str]) -> fx.Clients[Any]:
        parts = []
        for name in names:
            dataset = data.open(nodes[name])
            cohorts = data.cohorts(
                dataset,
                size=len(dataset),
                steps=STEPS,
                batch_size=BATCH,
                sequence_length=LENGTH,
                seed=0,
                sampling=[[group.id for group in dataset]],
            )
            parts.append(training.to_clients(cohorts[run]))
        return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)

    return Experiment(folder, program, (arrays, key), nodes, cohort)


def fedavg() -> learning.AbstractAlgorithm:
    return learning.FedAvg(
        token_loss,
        client_optimizer=Optimizer(optax.sgd, learning_rate=0.1),
        server_optimizer=Optimizer(optax.sgd, learning_rate=1.0, momentum=0.9),
    )


def fedsgd() -> learning.AbstractAlgorithm:
    return learning.FedSGD(token_loss, server_optimizer=Optimizer(optax.sgd, learning_rate=0.3))
