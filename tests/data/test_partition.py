"""Partition functions of one example, against Python."""

import urllib.parse

import numpy as np
import pyarrow as pa
import pytest

import fedeqx.data as data

URLS = [
    "https://en.wikipedia.org/wiki/A?b#c",
    "http://a.b:80/x",
    "http://user:pw@host/",
    "//host/path",
    "HTTPS://Host.COM",
    "mailto:a@b.c",
    "no url",
    "",
    "http://",
    "http://é.fr/ü",
    "http://x.y?q=//z",
    "http://x.y#//z",
    "/a//b",
    "ftp://[::1]:21/",
]


def ids_of(dataset, column="n"):
    return {e[column]: group.id for group in dataset for e in group}


def test_url_domains_are_those_of_urllib(tmp_path):
    records = [{"n": n, "url": url} for n, url in enumerate(URLS)]
    dataset = data.group(records, by=data.by_url_domain(), out=tmp_path / "out")
    expected = {n: urllib.parse.urlparse(url).netloc for n, url in enumerate(URLS)}
    assert ids_of(dataset) == expected
    with pytest.raises(data.PartitionError, match="the field has type int64"):
        data.group(records, by=data.by_url_domain("n"), out=tmp_path / "x")
    with pytest.raises(data.PartitionError, match="record 1: the field 'url' is empty"):
        data.group([{"url": ""}, {"url": None}], by=data.by_url_domain(), out=tmp_path / "x")


def test_sql_expressions(tmp_path):
    records = [{"n": n, "author": "Ann" if n % 2 else "ANN "} for n in range(9000)]
    by = data.by_expression("lower(trim(author)) || '-' || (n % 3)")
    dataset = data.group(records, by=by, out=tmp_path / "1")
    assert ids_of(dataset) == {n: f"ann-{n % 3}" for n in range(9000)}
    numbers = data.group(records, by=data.by_expression("n // 1000"), out=tmp_path / "2")
    assert list(numbers.ids()) == list(range(9))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("no_such", "no_such.*The columns are"),
        ("n / 2", r"double.*CAST\(\.\.\. AS VARCHAR\)"),
        ("max(n)", "gave 1 values for 3 examples"),
        ("nullif(n, 1)", r"record 1: .*is NULL here; use coalesce"),
        ("n) FROM examples --", "values for|failed"),
    ],
)
def test_wrong_expressions_are_named(tmp_path, sql, message):
    with pytest.raises(data.PartitionError, match=message):
        data.group([{"n": n} for n in range(3)], by=data.by_expression(sql), out=tmp_path / "out")


@pytest.mark.parametrize(
    "function",
    [
        lambda batch: [n % 4 for n in batch["n"].to_pylist()],
        lambda batch: batch["n"].to_numpy() % 4,
        lambda batch: pa.chunked_array([pa.array(batch["n"].to_numpy() % 4)]),
    ],
    ids=["list", "NumPy", "Arrow"],
)
def test_functions_of_a_batch(tmp_path, function):
    by = data.by_function(function, batched=True)
    dataset = data.group([{"n": n} for n in range(10_000)], by=by, out=tmp_path / "out")
    assert ids_of(dataset) == {n: n % 4 for n in range(10_000)}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: 1 / 0, "raised ZeroDivisionError for a batch"),
        (lambda batch: [1], "returned 1 ids for a batch of 3"),
        (lambda batch: [1, None, 2], "record 1: .*returned None"),
        (lambda batch: pa.array([1, 2, None]), "record 2: .*returned None"),
        (lambda batch: [1, 2, 0.5], "record 2: .*0.5 of type float"),
        (lambda batch: pa.array([0.5] * 3), "type double"),
    ],
)
def test_wrong_functions_of_a_batch_are_named(tmp_path, function, message):
    by = data.by_function(function, batched=True)
    with pytest.raises(data.PartitionError, match=message):
        data.group([{"n": n} for n in range(3)], by=by, out=tmp_path / "out")


def test_examples_without_a_group_are_counted_under_skip(tmp_path):
    def by(example):
        if example["n"] == 4000:
            raise RuntimeError("no")
        return None if example["n"] % 1000 == 1 else example["n"] % 2

    records = [{"n": n} for n in range(5000)]
    dataset = data.group(records, by=by, out=tmp_path / "out", on_error="skip")
    bad = [1, 1001, 2001, 3001, 4000, 4001]
    assert sorted(ids_of(dataset)) == sorted(set(range(5000)) - set(bad))
    assert [item["where"] for item in dataset.manifest["skipped"]] == [f"record {n}" for n in bad]
    assert "RuntimeError: no" in dataset.manifest["skipped"][4]["why"]
    with pytest.raises(data.SourceError, match=r"All 5000 examples were skipped.*returned None"):
        data.group(records, by=lambda e: None, out=tmp_path / "none", on_error="skip")
    with pytest.raises(ValueError, match="on_error='ignore'"):
        data.group(records, by=by, out=tmp_path / "x", on_error="ignore")


def test_many_skips_are_all_counted_and_a_thousand_listed(tmp_path):
    records = [{"n": n} for n in range(5000)]
    dataset = data.group(
        records,
        by=lambda e: e["n"] or None if e["n"] < 9 else None,
        out=tmp_path / "out",
        on_error="skip",
    )
    assert dataset.manifest["num_skipped"] == 4992
    assert len(dataset.manifest["skipped"]) == 1000


def test_progress_is_told(tmp_path):
    told = []
    records = [{"n": n} for n in range(20_000)]
    data.group(records, by="n", out=tmp_path / "out", progress=told.append)
    ends = {progress.stage: progress for progress in told}
    assert list(ends) == ["read", "write"]
    for progress in ends.values():
        assert (progress.examples, progress.bytes, progress.total) == (20_000, 160_000, 20_000)
    for stage in ends:
        seen = [progress.examples for progress in told if progress.stage == stage]
        assert seen == sorted(seen)


def test_partitions_are_told_in_the_manifest(tmp_path):
    for number, (by, told) in enumerate(
        [
            (data.by_field("n"), {"kind": "by_field", "field": "n", "seed": None}),
            (data.iid(2, seed=7), {"kind": "iid", "num_groups": 2, "seed": 7, "empty_groups": 0}),
            (
                data.dirichlet("n", 2, alpha=1.0, seed=7),
                {
                    "kind": "dirichlet",
                    "label": "n",
                    "num_groups": 2,
                    "alpha": 1.0,
                    "mix": "labels",
                    "seed": 7,
                    "empty_groups": 0,
                },
            ),
        ]
    ):
        records = [{"n": n} for n in range(10)]
        dataset = data.group(records, by=by, out=tmp_path / str(number))
        assert dataset.manifest["partition"] == told


def test_a_partition_is_frozen_and_equal_by_its_settings():
    assert data.iid(3, seed=1) == data.iid(3, seed=1) != data.iid(3, seed=2)
    with pytest.raises(AttributeError):
        data.iid(3, seed=1).seed = 2  # pyright: ignore[reportAttributeAccessIssue]
    assert np.isfinite(hash(data.by_field("x")))
