"""Simulated clients: sizes, label mixes and what is impossible, against counting by hand."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import fedeqx.data as data


def labelled(count, labels=10, seed=0):
    generator = np.random.default_rng(seed)
    for n in range(count):
        fine = int(generator.integers(labels))
        yield {"n": n, "label": f"L{fine}", "coarse": fine // 5, "text": "x" * (n % 7)}


def placed(tmp_path, by, records, name="out"):
    """The group of each example, by its number."""
    dataset = data.group(records, by=by, out=tmp_path / name)
    where: dict[int, Any] = {int(e["n"]): group.id for group in dataset for e in group}
    assert sorted(where) == list(range(len(where)))
    return where, dataset


PARTITIONS = {
    "iid": lambda seed: data.iid(7, seed=seed),
    "power law": lambda seed: data.power_law(7, exponent=1.2, seed=seed),
    "lognormal": lambda seed: data.lognormal(7, sigma=1.5, seed=seed),
    "dirichlet over labels": lambda seed: data.dirichlet("label", 7, alpha=0.3, seed=seed),
    "dirichlet over groups": lambda seed: data.dirichlet(
        "label", 7, alpha=0.3, mix="groups", seed=seed
    ),
    "pachinko": lambda seed: data.pachinko("coarse", "label", 7, seed=seed),
    "shards": lambda seed: data.shards("label", 7, seed=seed),
    "nested": lambda seed: data.nested(data.by_field("label"), data.iid(3, seed=seed)),
    "nested planned": lambda seed: data.nested(
        data.iid(3, seed=seed), data.dirichlet("label", 2, alpha=0.5, seed=seed)
    ),
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_example_has_one_group_which_is_a_function_of_the_seed(tmp_path, kind):
    records = list(labelled(1000))
    one, dataset = placed(tmp_path, PARTITIONS[kind](1), iter(records), "1")
    assert len(one) == 1000 == dataset.num_examples
    two, _ = placed(tmp_path, PARTITIONS[kind](1), records, "2")
    three, _ = placed(tmp_path, PARTITIONS[kind](2), records, "3")
    assert one == two
    assert one != three


def test_iid_groups_are_equal_in_size_and_mixed(tmp_path):
    where, _ = placed(tmp_path, data.iid(8, seed=0), labelled(8003))
    counts = Counter(where.values())
    assert sorted(counts) == list(range(8))
    assert set(counts.values()) == {1000, 1001}
    # Were neighbours kept together, consecutive numbers would share a group.
    together = sum(where[n] == where[n + 1] for n in range(8002))
    assert abs(together / 8002 - 1 / 8) < 5 * np.sqrt(1 / 8 * 7 / 8 / 8002)


def test_power_law_sizes(tmp_path):
    where, _ = placed(tmp_path, data.power_law(20, exponent=1.5, seed=0), labelled(5000))
    sizes = np.bincount(list(where.values()))
    weights = np.arange(1, 21) ** -1.5
    np.testing.assert_allclose(sizes, 1 + weights / weights.sum() * 4980, atol=1)


def test_lognormal_sizes(tmp_path):
    where, _ = placed(
        tmp_path, data.lognormal(500, sigma=0.7, min_size=1, seed=0), labelled(50_000)
    )
    logs = np.log(np.bincount(list(where.values())) - 1.0 + 0.5)
    # The standard deviation of 500 normal draws is within 10% of 0.7, three times its own.
    assert abs(logs.std() - 0.7) < 0.07


def test_min_size(tmp_path):
    where, dataset = placed(
        tmp_path, data.power_law(10, exponent=3.0, min_size=5, seed=0), labelled(60)
    )
    assert min(Counter(where.values()).values()) == 5
    assert dataset.manifest["partition"]["empty_groups"] == 0


def label_shares(where, records, num_groups):
    labels = sorted({record["label"] for record in records})
    counts = np.zeros((num_groups, len(labels)))
    for record in records:
        counts[where[record["n"]], labels.index(record["label"])] += 1
    return counts


@pytest.mark.parametrize("mix", ["labels", "groups"])
def test_dirichlet_concentration_goes_from_single_labels_to_iid(tmp_path, mix):
    records = list(labelled(20_000))
    entropies = []
    for alpha in (1e-4, 0.3, 1e6):
        by = data.dirichlet("label", 20, alpha=alpha, mix=mix, seed=0)
        where, _ = placed(tmp_path, by, records, f"{alpha}")
        counts = label_shares(where, records, 20)
        counts = counts[counts.sum(1) > 0]
        shares = counts / counts.sum(1, keepdims=True)
        logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
        entropies.append(float(-(shares * logs).sum(1).mean()))
    # Not zero: the last groups get what the others left.
    assert entropies[0] < 0.5
    assert entropies[0] < entropies[1] - 0.3 < entropies[2] - 0.6
    assert entropies[2] > np.log(10) - 0.02


def test_dirichlet_over_labels_has_equal_sizes_and_its_moments(tmp_path):
    # Many small groups from a large pool: exhaustion is rare, and a group's share of a label has
    # the mean 1/10 and the variance of a Dirichlet distribution with alpha = 0.5 for each label,
    # plus that of a multinomial draw of 20.
    records = [{"n": n, "label": f"L{n % 10}"} for n in range(60_000)]
    where, _ = placed(tmp_path, data.dirichlet("label", 3000, alpha=0.5, seed=3), records)
    counts = label_shares(where, records, 3000)
    assert set(counts.sum(1)) == {20}
    shares = counts[:1000] / 20
    beta_variance = 0.1 * 0.9 / (10 * 0.5 + 1)
    expected = beta_variance + (0.1 - 0.01 - beta_variance) / 20
    np.testing.assert_allclose(shares.var(0), expected, rtol=0.2)
    np.testing.assert_allclose(shares.mean(0), 0.1, atol=0.02)


def test_dirichlet_over_groups_splits_each_label_by_its_own_proportions(tmp_path):
    records = [{"n": n, "label": f"L{n % 400}"} for n in range(80_000)]
    by = data.dirichlet("label", 5, alpha=0.5, mix="groups", seed=3)
    where, _ = placed(tmp_path, by, records)
    shares = label_shares(where, records, 5) / 200
    np.testing.assert_allclose(shares.mean(1), 0.2, atol=0.05)
    np.testing.assert_allclose(shares.var(1), 0.2 * 0.8 / (5 * 0.5 + 1), rtol=0.3)


def test_dirichlet_over_groups_reports_empty_groups(tmp_path):
    by = data.dirichlet("label", 50, alpha=1e-3, mix="groups", seed=0)
    where, dataset = placed(tmp_path, by, labelled(500))
    empty = 50 - len(set(where.values()))
    assert empty > 30
    assert dataset.manifest["partition"]["empty_groups"] == empty


def test_pachinko_mixes_coarse_labels_little_and_fine_ones_well(tmp_path):
    records = [{"n": n, "label": f"L{n % 100:02d}", "coarse": n % 100 // 5} for n in range(50_000)]
    by = data.pachinko("coarse", "label", 500, alpha=0.1, beta=10.0, seed=0)
    where, _ = placed(tmp_path, by, records)
    counts = label_shares(where, records, 500)
    assert set(counts.sum(1)) == {100}
    early = counts[:100]
    by_coarse = early.reshape(100, 20, 5)
    coarse = by_coarse.sum(2) / 100
    # The largest coarse label of Dirichlet(0.1 x 20) holds most; of an iid split, about a tenth.
    assert coarse.max(1).mean() > 0.45
    # Within a coarse label with many examples, its five fine labels are near a fifth each.
    large = by_coarse[by_coarse.sum(2) >= 40]
    np.testing.assert_allclose((large / large.sum(1, keepdims=True)).mean(0), 0.2, atol=0.03)
    assert (large > 0).mean() > 0.98


def test_pachinko_needs_a_tree(tmp_path):
    records = [{"n": 0, "coarse": 1, "label": "a"}, {"n": 1, "coarse": 2, "label": "a"}]
    with pytest.raises(
        data.PartitionError, match=r"label='a' occurs under several coarse \(\[1, 2"
    ):
        data.group(records, by=data.pachinko("coarse", "label", 2, seed=0), out=tmp_path / "x")


def test_shards_give_few_labels_to_each(tmp_path):
    records = [{"n": n, "label": n % 10} for n in range(6000)]
    where, _ = placed(tmp_path, data.shards("label", 100, shards_per_group=2, seed=0), records)
    groups = {}
    for record in records:
        groups.setdefault(where[record["n"]], []).append(record["label"])
    assert len(groups) == 100
    assert {len(labels) for labels in groups.values()} == {60}
    # 200 shards of 30 out of 600 examples a label: no shard crosses a label.
    assert {len(set(labels)) for labels in groups.values()} <= {1, 2}
    assert max(len(set(labels)) for labels in groups.values()) == 2


def test_nested(tmp_path):
    records = list(labelled(3000))
    by = data.nested(data.by_field("label"), data.iid(4, seed=0))
    where, dataset = placed(tmp_path, by, records)
    assert set(dataset.ids()) == {f'["L{k}", {n}]' for k in range(10) for n in range(4)}
    for record in records:
        assert where[record["n"]].startswith(f'["{record["label"]}", ')
    sizes = Counter(where.values())
    for label, total in Counter(record["label"] for record in records).items():
        parts = [sizes[f'["{label}", {n}]'] for n in range(4)]
        assert sum(parts) == total
        assert max(parts) - min(parts) <= 1
    # Each outer group draws anew: the same place in two of them has not the same inner group.
    rows = {k: [where[r["n"]][-2] for r in records if r["label"] == f"L{k}"][:50] for k in (0, 1)}
    assert rows[0] != rows[1]


def test_nested_direct_partitions_and_awkward_ids(tmp_path):
    records = [
        {"n": n, "a": "x/y" if n % 2 else "x", "b": "y" if n % 3 else "y/y"} for n in range(6)
    ]
    by = data.nested(data.by_field("a"), data.by_function(lambda e: e["b"]))
    where, _ = placed(tmp_path, by, records)
    assert where == {r["n"]: f'["{r["a"]}", "{r["b"]}"]' for r in records}


IMPOSSIBLE = {
    "iid": (lambda: data.iid(11, seed=0), "num_groups=11 needs at least 11 examples.*are 10"),
    "power law": (
        lambda: data.power_law(6, min_size=2, seed=0),
        "6 groups of min_size=2 needs .* 12",
    ),
    "lognormal": (lambda: data.lognormal(11, seed=0), "lognormal: num_groups=11"),
    "dirichlet": (lambda: data.dirichlet("label", 11, alpha=1.0, seed=0), "num_groups=11"),
    "pachinko": (lambda: data.pachinko("coarse", "label", 11, seed=0), "num_groups=11"),
    "shards": (
        lambda: data.shards("label", 4, shards_per_group=3, seed=0),
        "num_groups=4 with shards_per_group=3 needs at least 12",
    ),
    "no such label": (lambda: data.shards("labels", 2, seed=0), "no field 'labels'"),
    "no single value": (lambda: data.shards("list", 2, seed=0), "'list' has type list"),
    "null": (lambda: data.shards("null", 2, seed=0), "record 3: the label 'null' is empty"),
    "inner": (
        lambda: data.nested(data.by_field("label"), data.iid(9, seed=0)),
        "iid: num_groups=9",
    ),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_impossible_settings_are_named_and_leave_nothing(tmp_path, kind):
    by, message = IMPOSSIBLE[kind]
    records = [
        {**record, "list": [record["n"]], "null": None if record["n"] == 3 else 1}
        for record in labelled(10)
    ]
    with pytest.raises(data.PartitionError, match=message):
        data.group(records, by=by(), out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: data.iid(0, seed=0),
        lambda: data.power_law(3, exponent=0.0, seed=0),
        lambda: data.lognormal(3, sigma=-1.0, seed=0),
        lambda: data.dirichlet("label", 3, alpha=0.0, seed=0),
        lambda: data.pachinko("coarse", "label", 3, beta=0.0, seed=0),
        lambda: data.shards("label", 3, shards_per_group=0, seed=0),
    ],
)
def test_wrong_settings_are_named_at_once(make):
    with pytest.raises(ValueError, match="give a number above 0"):
        make()


def test_nesting_needs_two_plain_partitions():
    with pytest.raises(ValueError, match="'labels' or 'groups'"):
        data.dirichlet("label", 3, alpha=1.0, mix="both", seed=0)
    inner = data.nested(data.by_field("a"), data.iid(2, seed=0))
    with pytest.raises(TypeError, match="not nested themselves"):
        data.nested(inner, data.iid(2, seed=0))


def test_a_planned_partition_skips_examples_without_a_label(tmp_path):
    records = [{"n": n, "label": None if n == 3 else n % 2} for n in range(100)]
    dataset = data.group(
        records, by=data.shards("label", 3, seed=0), out=tmp_path / "out", on_error="skip"
    )
    assert dataset.num_examples == 99
    assert dataset.manifest["skipped"][0]["where"] == "record 3"
