"""What grouping on many machines rests on: a total order, ranges of it, and joined indexes."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

import fedeqx.data as data
from fedeqx.data._beam_index import join_indexes
from fedeqx.data._beam_order import Sketch, order_keys, split_at
from fedeqx.data._layout import INDEX_CHUNK, INDEX_NAME
from fedeqx.data._reader import Index

AWKWARD = [b"", b"\0", b"\0\0", b"\0\1", b"\1", b"a", b"a\0", b"a\0\0", b"a\0\1", b"ab", b"\xff"]


def order_of(pairs):
    keys = pa.array([key for key, _ in pairs], pa.large_binary())
    return order_keys(keys, np.array([place for _, place in pairs])).to_pylist()


def test_order_keys_sort_as_pairs_do():
    places = [0, 1, 255, 256, 1 << 40, (3 << 40) + 5]
    chooser = random.Random(0)
    keys = [*AWKWARD, *(chooser.randbytes(chooser.randrange(6)) for _ in range(200))]
    pairs = sorted({(key, place) for key in keys for place in places})
    ordered = order_of(pairs)
    assert ordered == sorted(ordered)
    assert len(set(ordered)) == len(pairs)


def sketch_of(sizes, *, step=500, samples):
    """The sketch of rows whose order is that of their places."""
    parts = []
    for start in range(0, len(sizes), step):
        places = np.arange(start, min(start + step, len(sizes)))
        keys = order_keys(pa.array([b"k"] * len(places), pa.large_binary()), places)
        parts.append(Sketch.of(keys, sizes[places], places))
    chooser = random.Random(1)
    while len(parts) > 1:
        chooser.shuffle(parts)
        parts = [*parts[3:], Sketch.join(parts[:3], samples)]
    return parts[0]


def range_sizes(sizes, bounds):
    order = order_of([(b"k", place) for place in range(len(sizes))])
    numbers = np.searchsorted(np.array(bounds, object), np.array(order, object), "right")
    return np.bincount(numbers, sizes, len(bounds) + 1)


SIZES = {
    "equal": np.full(40_000, 100),
    "long-tailed": (100 * np.random.default_rng(0).pareto(1.5, 40_000)).astype(np.int64) + 1,
    "some large": np.where(np.arange(40_000) % 4000 == 7, 500_000, 50),
    "empty": np.zeros(40_000, np.int64),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("samples", [1000, 1 << 18])
def test_ranges_have_about_the_size_asked_for_and_none_is_empty(name, samples):
    sizes = SIZES[name]
    target = max(1, int(sizes.sum()) // 40)
    bounds = sketch_of(sizes, samples=samples).bounds(target, samples)
    assert bounds == sorted(set(bounds))
    found = range_sizes(sizes, bounds)
    if name == "empty":
        assert not bounds
        return
    assert len(found) >= 10
    # A range ends at a row: the largest row goes on top.
    slack = 1.1 if samples > len(sizes) else 2.0
    assert found.max() <= slack * target + sizes.max()
    counts = range_sizes(np.ones(len(sizes)), bounds)
    assert counts.min() > 0


def test_sketches_do_not_depend_on_who_saw_what():
    whole = [sketch_of(SIZES["long-tailed"], step=500, samples=300) for _ in range(2)]
    assert whole[0].bounds(9000, 300) == whole[1].bounds(9000, 300)
    assert Sketch.empty().bounds(9000) == []


def test_rows_go_to_their_ranges():
    chooser = random.Random(0)
    rows = [chooser.randbytes(2) for _ in range(1000)]
    bounds = sorted(random.Random(1).sample(sorted(set(rows)), 30))
    batch = pa.record_batch([pa.array(rows, pa.large_binary())], names=["order"])
    found = [
        (number, row) for number, part in split_at(batch, bounds) for row in part[0].to_pylist()
    ]
    expected = sorted((sum(bound <= row for bound in bounds), row) for row in rows)
    assert found == expected


@pytest.mark.parametrize("kind", ["string", "int"])
@pytest.mark.parametrize("cuts", [(), (5, 6, 7, 400), (1, 2, 3, 990, 999)])
def test_indexes_of_ranges_join_to_the_index_of_the_whole(tmp_path, kind, cuts):
    """Group ranges of sorted rows on their own: groups go on from one to the next."""
    rows = [{"g": n // 97 if kind == "int" else f"g{n // 97:02}", "n": n} for n in range(1000)]
    whole = data.group(rows, by="g", out=tmp_path / "whole")
    edges = [0, *cuts, len(rows)]
    indexes = []
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        data.group(rows[start:end], by="g", out=tmp_path / f"{number}")
        indexes.append(tmp_path / f"{number}" / INDEX_NAME)
    told = join_indexes(indexes, kind, tmp_path)
    found, expected = Index(tmp_path / INDEX_NAME), Index(whole.path / INDEX_NAME)
    assert list(found.raw_ids()) == list(expected.raw_ids())
    assert told["num_groups"] == 11
    for name in ("examples", "bytes", "words"):
        np.testing.assert_array_equal(found.column(name), expected.column(name))
        assert told[f"num_{name}"] == whole.manifest[f"num_{name}"]
    for position in range(11):
        entry = found.entry(position)
        assert edges[entry.shard] + entry.first_row == 97 * position


def test_a_joined_index_of_many_groups_has_chunks_of_the_size_that_readers_expect(tmp_path):
    count = INDEX_CHUNK + 10
    table = pa.table({"g": np.arange(2 * count), "n": np.zeros(2 * count, np.int8)})
    for number in range(2):
        some = table.slice(number * count, count)
        data.group(some, by="g", out=tmp_path / f"{number}")
    join_indexes([tmp_path / f"{n}" / INDEX_NAME for n in range(2)], "int", tmp_path)
    index = Index(tmp_path / INDEX_NAME)
    assert list(index.raw_ids()) == list(range(2 * count))
    assert index.entry(count + 3)[:3] == (1, 3, 1)
