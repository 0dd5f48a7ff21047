"""Statistics of groups, against counting in Python."""

import csv
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedeqx.data as data

RECORDS = [
    {"g": f"g{n % 7 if n % 3 else 0}", "label": (n * n) % 5, "t": "word " * (n % 11)}
    for n in range(700)
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return data.group(RECORDS, by="g", out=tmp_path_factory.mktemp("stats") / "out")


def counts_by_hand():
    counts = {}
    for record in RECORDS:
        old = counts.get(record["g"], (0, 0, 0))
        words = 1 + len(record["t"].split())
        size = len(record["g"]) + 8 + len(record["t"])
        counts[record["g"]] = (old[0] + 1, old[1] + size, old[2] + words)
    return {name: counts[name] for name in sorted(counts)}


def test_stats(dataset):
    told = data.stats(dataset, percentiles=(0, 50, 100))
    columns = zip(*counts_by_hand().values(), strict=True)
    for name, values in zip(("examples", "bytes", "words"), columns, strict=True):
        assert told[name] == {
            "total": sum(values),
            "mean": pytest.approx(np.mean(values)),
            "p0": min(values),
            "p50": np.median(values),
            "p100": max(values),
        }
    with pytest.raises(ValueError, match="no groups"):
        data.stats(dataset.select([]))


def test_counts_of_a_part_as_csv_and_parquet(tmp_path, dataset):
    part = dataset.select(["g2", "g5"])
    expected = [[name, *counts_by_hand()[name]] for name in ("g2", "g5")]
    data.write_counts(part, tmp_path / "counts.csv")
    with (tmp_path / "counts.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["group_id", "examples", "bytes", "words"]
    assert rows[1:] == [list(map(str, row)) for row in expected]
    data.write_counts(dataset, tmp_path / "counts.parquet")
    table = pq.read_table(tmp_path / "counts.parquet")
    assert list(zip(*table.to_pydict().values(), strict=True)) == [
        (name, *counts) for name, counts in counts_by_hand().items()
    ]
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        data.write_counts(dataset, tmp_path / "counts.txt")


def test_label_skew(dataset):
    skew = data.label_skew(dataset, "label")
    overall = Counter(record["label"] for record in RECORDS)
    assert skew.labels == sorted(overall)
    np.testing.assert_allclose(skew.overall, [overall[k] / 700 for k in skew.labels])
    for number, name in enumerate(dataset.ids()):
        own = Counter(record["label"] for record in RECORDS if record["g"] == name)
        distance = sum(abs(own[k] / own.total() - overall[k] / 700) for k in skew.labels)
        assert skew.distances[number] == pytest.approx(distance / 2)
        assert skew.num_labels[number] == len(own)
    with pytest.raises(ValueError, match="label='none'"):
        data.label_skew(dataset, "none")


def test_letter_values():
    values = np.arange(1, 161)
    boxes = data.letter_values(values)
    # 160 values: 40, 20, 10 and 5 lie below the boxes; 2.5 would be too few.
    assert boxes == [
        pytest.approx(tuple(np.quantile(values, (tail, 1 - tail))))
        for tail in (1 / 4, 1 / 8, 1 / 16, 1 / 32)
    ]
    assert len(data.letter_values(np.arange(3))) == 1


def test_plot(tmp_path, dataset):
    pytest.importorskip("matplotlib")
    data.plot_sizes({"all": dataset, "some": dataset.select(["g1", "g2"])}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
