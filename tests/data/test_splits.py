"""Splits of the examples of all groups: by content alone, and as data sets like any other."""

import itertools
import pickle
import random
from collections import Counter

import numpy as np
import pytest

import fedeqx.data as data

FRACTIONS = {"train": 0.6, "tune": 0.3, "test": 0.1}


def rows():
    chooser = random.Random(0)
    made = [
        {
            "user": f"u{chooser.randrange(30) ** 2 // 30:02d}",
            "topic": chooser.randrange(5),
            "text": " ".join(chooser.choices(["ab", "cé", "d"], k=chooser.randrange(1, 12))),
        }
        for _ in range(1500)
    ]
    return [*made, *made[:100]]  # some examples are equal


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    out = tmp_path_factory.mktemp("splits") / "out"
    return data.group(rows(), by="user", out=out, row_group_bytes=700, shard_bytes=20_000)


@pytest.fixture(scope="module")
def parts(dataset):
    return dataset.split_examples(FRACTIONS, seed=3)


def key(example):
    return example["user"], int(example["topic"]), example["text"]


def content(dataset):
    return {group.id: [key(example) for example in group] for group in dataset}


def side_of(parts):
    """The part of each distinct example; no example is in two."""
    sides: dict = {}
    for name, part in parts.items():
        for example in itertools.chain(*content(part).values()):
            assert sides.setdefault(example, name) == name
    return sides


def test_the_parts_make_up_every_group_in_its_order(dataset, parts):
    assert list(parts) == list(FRACTIONS)
    whole = content(dataset)
    pieces = {name: content(part) for name, part in parts.items()}
    sides = side_of(parts)
    for name, piece in pieces.items():
        assert list(piece) == list(whole)
        for group_id, examples in whole.items():
            assert piece[group_id] == [e for e in examples if sides[e] == name]


def test_the_shares_are_as_asked(parts):
    counts = Counter(side_of(parts).values())
    for name, share in FRACTIONS.items():
        deviation = np.sqrt(counts.total() * share * (1 - share))
        assert abs(counts[name] - share * counts.total()) < 4 * deviation


def test_a_part_is_a_function_of_content_and_seed_alone(tmp_path, dataset, parts):
    sides = side_of(parts)
    assert sides == side_of(dataset.split_examples(FRACTIONS, seed=3))
    # Grouped by another field, in another order, without some of the examples, other row groups.
    fewer = [row for row in rows()[::-1] if row["topic"] != 2]
    other = data.group(fewer, by="topic", out=tmp_path / "other")
    assert side_of(other.split_examples(FRACTIONS, seed=3)) == {
        example: side for example, side in sides.items() if example[1] != 2
    }
    changed = side_of(dataset.split_examples(FRACTIONS, seed=4))
    moved = sum(sides[example] != changed[example] for example in sides) / len(sides)
    # 1 - (0.6 ** 2 + 0.3 ** 2 + 0.1 ** 2)
    assert moved == pytest.approx(0.54, abs=4 * np.sqrt(0.25 / len(sides)))
    # A larger first part holds the smaller one.
    larger = side_of(dataset.split_examples({"a": 0.8, "b": 0.2}, seed=3))
    assert all(larger[e] == "a" for e, side in sides.items() if side == "train")


def test_splits_do_not_change_from_one_release_to_the_next(tmp_path):
    rows = [{"g": n % 2, "t": f"text {n}", "x": n / 4} for n in range(12)]
    parts = data.group(rows, by="g", out=tmp_path / "out").split_examples(
        {"a": 0.5, "b": 0.5}, seed=0
    )
    held = sorted(example["t"] for group in parts["a"] for example in group)
    assert held == ["text 4", "text 5", "text 8"]


def test_the_sizes_of_a_part(dataset, parts):
    part = parts["tune"]
    expected = content(part)
    sizes = {
        "examples": [len(examples) for examples in expected.values()],
        "bytes": [
            sum(len(u) + 8 + len(t.encode()) for u, _, t in examples)
            for examples in expected.values()
        ],
        "words": [
            sum(1 + len(t.split()) for _, _, t in examples) for examples in expected.values()
        ],
    }
    for of, values in sizes.items():
        assert part.sizes(of).tolist() == values
        assert getattr(part, f"num_{of}") == sum(values)
    assert (part.num_groups, list(part.ids())) == (dataset.num_groups, list(dataset.ids()))
    assert [len(group) for group in part] == sizes["examples"]
    assert [group.num_bytes for group in part] == sizes["bytes"]
    assert part.group("u00").num_words == sizes["words"][0]
    told = data.stats(part)
    assert told["examples"]["total"] == sum(sizes["examples"])


def test_small_groups_may_be_empty_in_a_part(tmp_path):
    rows = [{"g": n, "t": f"text {n}", "y": n % 2} for n in range(20)]
    parts = data.group(rows, by="g", out=tmp_path / "out").split_examples(
        {"a": 0.5, "b": 0.5}, seed=0
    )
    empty = [group for group in parts["a"] if not len(group)]
    assert 0 < len(empty) < 20
    assert list(empty[0]) == list(empty[0].batches()) == list(empty[0].load()) == []
    cohort = data.cohorts(
        parts["a"], size=20, steps=1, batch_size=1, sequence_length=4, seed=0, text="t"
    )[0]
    assert cohort.step_mask.sum() == 20 - len(empty)
    skew = data.label_skew(parts["a"], "y")
    assert skew.num_labels.tolist() == parts["a"].sizes().tolist()
    assert np.isfinite(skew.distances).all()


def test_cohorts_of_a_part_hold_its_text_and_no_other(dataset, parts):
    for part in parts.values():
        cohorts = data.cohorts(
            part, size=4, steps=300, batch_size=2, sequence_length=8, seed=0, text="text"
        )
        for number in (0, 4):
            cohort = cohorts[number]
            for place, group_id in enumerate(cohort.ids):
                tokens, mask = cohort.batches["tokens"][place], cohort.batches["mask"][place]
                targets = tokens[..., 1:][mask]
                texts = [text for *_, text in content(part)[group_id]]
                joined = list(b"\n".join(text.encode() for text in texts)[1:])
                assert [10 if t == 256 else t for t in targets.tolist()] == joined


def test_cohorts_of_a_part_from_worker_processes(parts):
    cohorts = data.cohorts(
        parts["train"], size=3, steps=2, batch_size=2, sequence_length=8, seed=0, rounds=3
    )
    for one, two in zip(cohorts.to_grain(workers=1), cohorts, strict=True):
        assert one.ids == two.ids
        np.testing.assert_array_equal(one.batches["tokens"], two.batches["tokens"])


def test_a_part_is_a_data_set(dataset, parts):
    part = parts["train"]
    expected = content(part)
    assert content(pickle.loads(pickle.dumps(part))) == expected
    assert content(part.in_memory()) == expected
    assert content(part.select(["u03", "u07"])) == {k: expected[k] for k in ("u03", "u07")}
    assert part.select(["u03", "u07"]).sizes().tolist() == [
        len(expected[name]) for name in ("u03", "u07")
    ]
    halves = part.split_groups({"a": 0.5, "b": 0.5}, seed=1)
    assert content(halves["a"]) | content(halves["b"]) == expected
    streamed = {g.id: [key(e) for e in g] for g in part.stream(seed=0, prefetch=3)}
    assert streamed == expected
    assert "u03" in part
    assert repr(part) == f"GroupedDataset({str(part.path)!r}, parts of {len(expected)} groups)"
    assert repr(part[0]) == f"Group(id='u00', a part of {len(dataset[0])} examples)"


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0, 0), (3, 9), (17, 40), (5, 10**6), (10**6, 10**7)]
)
def test_a_range_of_a_groups_part(parts, start, stop):
    group = parts["train"].group("u00")
    whole = [example["text"] for example in group]
    assert len(whole) > 45
    batches = list(group.batches(start, stop, columns=("text",)))
    assert all(batch.num_rows and batch.schema.names == ["text"] for batch in batches)
    assert [t for batch in batches for t in batch.column(0).to_pylist()] == whole[start:stop]


def test_a_groups_own_split_is_the_same(dataset, parts):
    for name, part in dataset.group("u05").split(FRACTIONS, seed=3).items():
        assert [key(e) for e in part] == content(parts[name])["u05"]
        assert [key(e) for e in part.load()] == content(parts[name])["u05"]


def test_a_part_of_a_part_has_the_asked_share_with_the_same_seed_too(parts):
    for seed in (3, 4):
        again = parts["train"].split_examples({"a": 0.5, "b": 0.5}, seed=seed)
        counts = Counter(side_of(again).values())
        assert abs(counts["a"] - counts["b"]) < 4 * np.sqrt(counts.total())
        assert {e for e in side_of(again)} == {e for e, s in side_of(parts).items() if s == "train"}


@pytest.mark.parametrize(
    "fractions",
    [{}, {"a": 0.5}, {"a": 0.5, "b": 0.6}, {"a": 1.5, "b": -0.5}, {"a": float("nan"), "b": 1}],
)
def test_fractions_that_do_not_add_up_are_named(dataset, fractions):
    for split in (dataset.split_examples, dataset.split_groups, dataset[0].split):
        with pytest.raises(ValueError, match=rf"{split.__name__}\({{.*add up to 1"):
            split(fractions, seed=0)
