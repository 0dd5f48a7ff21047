"""A Flower node's clients are what a cohort of the same groups has."""

import numpy as np
import pytest

from fedeqx import data
from fedeqx.federated.backends.flower import NodeError, Settings, Wanted
from fedeqx.training import client_seed, node_clients, to_clients

TEXT = {
    "cohort.batches['tokens']": ((2, 3, 9), "int32"),
    "cohort.batches['mask']": ((2, 3, 8), "bool"),
    "cohort.step_mask": ((2,), "bool"),
    "cohort.num_examples": ((), "int32"),
    "cohort.seed": ((), "uint32"),
}


@pytest.fixture
def texts(tmp_path):
    examples = [
        {"user": u, "text": f"{u} writes {i} times " * u} for u in range(1, 6) for i in "abc"
    ]
    data.group(examples, by="user", out=tmp_path / "texts")
    return str(tmp_path / "texts")


@pytest.fixture
def columns(tmp_path):
    examples = [{"user": u, "x": [u + 0.5, i], "n": i} for u in range(3) for i in range(4)]
    data.group(examples, by="user", out=tmp_path / "columns")
    return str(tmp_path / "columns")


@pytest.mark.parametrize("run", [0, 3])
def test_text_is_that_of_a_cohort(texts, run):
    settings = Settings(folder="x", seed=5, epochs=2)
    found = list(node_clients(Wanted(texts, run, TEXT, settings)))
    dataset = data.open(texts)
    ids = [group.id for group in dataset]
    cohorts = data.cohorts(
        dataset,
        size=5,
        steps=2,
        batch_size=3,
        sequence_length=8,
        seed=5,
        epochs=2,
        sampling=[ids],
    )
    expected = to_clients(cohorts[run]).value
    assert [client.id for client in found] == ids
    for number, client in enumerate(found):
        np.testing.assert_array_equal(
            client.arrays["cohort.batches['tokens']"], expected.batches["tokens"][number]
        )
        np.testing.assert_array_equal(
            client.arrays["cohort.batches['mask']"], expected.batches["mask"][number]
        )
        assert (client.arrays["cohort.step_mask"] == expected.step_mask[number]).all()
        assert client.arrays["cohort.num_examples"] == expected.num_examples[number]
        assert client.arrays["cohort.seed"] == expected.seed[number]


def test_columns_are_stacked(columns):
    wanted = {
        "own['x']": ((4, 2), "float32"),
        "own['n']": ((4,), "int32"),
        "count.num_examples": ((), "int32"),
        "seed": ((), "uint32"),
    }
    found = list(node_clients(Wanted(columns, 0, wanted, Settings(folder="x"))))
    assert [client.id for client in found] == [0, 1, 2]
    for client in found:
        x = [[client.id + 0.5, i] for i in range(4)]
        np.testing.assert_array_equal(client.arrays["own['x']"], np.asarray(x, np.float32))
        np.testing.assert_array_equal(client.arrays["own['n']"], np.arange(4, dtype=np.int32))
        assert client.arrays["count.num_examples"] == 4
        assert client.arrays["seed"] == client_seed(client.id)


@pytest.mark.parametrize("kind", ["texts", "columns"])
def test_some_are_drawn_anew_for_each_run_and_the_same_ones_for_the_same(kind, request):
    path = request.getfixturevalue(kind)
    wanted = TEXT if kind == "texts" else {"x": ((4, 2), "float32")}
    settings = Settings(folder="x", clients_per_node=2)
    drawn = [
        tuple(client.id for client in node_clients(Wanted(path, run, wanted, settings)))
        for run in [*range(8), *range(8)]
    ]
    assert drawn[:8] == drawn[8:]
    assert len(set(drawn)) > 1
    assert all(len(set(ids)) == 2 for ids in drawn)


@pytest.mark.parametrize(
    ("kind", "wanted", "settings", "message"),
    [
        ("columns", {"y": ((4,), "float32")}, {}, "no column 'y'; it has user, x, n"),
        ("columns", {"n": ((4,), "int32")}, {"clients_per_node": 9}, "this node has 3 groups"),
        ("texts", {"tokens": ((8,), "int32")}, {}, r"takes tokens of shape \[8\]"),
        ("texts", {**TEXT, "other": ((8,), "int32")}, {}, "other"),
    ],
)
def test_what_the_data_cannot_give_is_told(kind, wanted, settings, message, request):
    path = request.getfixturevalue(kind)
    with pytest.raises(NodeError, match=message):
        list(node_clients(Wanted(path, 0, wanted, Settings(folder="x", **settings))))
