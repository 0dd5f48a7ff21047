"""Opening a data set: counts, ids, selection, splits, streams, and damage that is named."""

import itertools
import pickle
import random
import threading

import numpy as np
import pyarrow as pa
import pytest

import fedeqx.data as data


def records():
    chooser = random.Random(1)
    for number in range(3000):
        yield {"user": f"u{int(chooser.paretovariate(0.6)) % 300:03d}", "n": number}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "out"
    return data.group(records(), by="user", out=out, row_group_bytes=500, shard_bytes=5_000)


@pytest.fixture(scope="module")
def expected():
    groups = {}
    for record in records():
        groups.setdefault(record["user"], []).append(record)
    return dict(sorted(groups.items()))


def contents(dataset):
    return {group.id: list(group) for group in dataset}


@pytest.fixture(params=["disk", "memory", "pickled"])
def opened(request, dataset):
    if request.param == "memory":
        return dataset.in_memory()
    return pickle.loads(pickle.dumps(dataset)) if request.param == "pickled" else dataset


def test_groups_counts_and_ids(opened, expected):
    assert contents(opened) == expected
    assert list(opened.ids()) == list(expected)
    assert opened.ids()[-1] == list(expected)[-1]
    assert opened.ids()[1:4] == list(expected)[1:4]
    assert len(opened) == len(opened.ids()) == opened.num_groups == len(expected)
    assert opened.num_examples == 3000
    assert opened.sizes().tolist() == [len(rows) for rows in expected.values()]
    assert opened.sizes("bytes").sum() == opened.num_bytes == 3000 * (8 + 4)
    assert opened.sizes("words").sum() == opened.num_words == 3000
    assert [opened[n].id for n in (0, -1)] == [min(expected), max(expected)]
    assert [len(group) for group in opened] == opened.sizes().tolist()


def test_a_group_is_lazy_and_can_be_read_twice(opened, expected):
    name = max(expected, key=lambda name: len(expected[name]))
    group = opened.group(name)
    one, two = iter(group), iter(group)
    assert [next(one), next(two), next(one)] == [*expected[name][:1] * 2, expected[name][1]]
    assert list(group) == list(group) == expected[name]
    assert type(next(iter(group))["n"]) is np.int64


def test_absent_ids_are_named(opened):
    for absent in ("", "u", "zzz", 7, b"u001"):
        assert absent not in opened
        with pytest.raises(KeyError, match="ids are of kind string, such as"):
            opened.group(absent)
    assert 0.5 not in opened
    with pytest.raises(IndexError, match="of a data set of"):
        opened[len(opened)]
    with pytest.raises(IndexError):
        opened.ids()[-len(opened) - 1]
    with pytest.raises(ValueError, match="'examples', 'bytes' or 'words'"):
        opened.sizes("tokens")


def test_select(opened, expected):
    chosen = [name for number, name in enumerate(expected) if number % 7 == 3]
    part = opened.select(reversed(chosen + chosen[:2]))
    assert list(part.ids()) == chosen
    assert contents(part) == {name: expected[name] for name in chosen}
    assert part.num_examples == sum(len(expected[name]) for name in chosen)
    assert chosen[0] in part
    other = next(name for name in expected if name not in chosen)
    assert other not in part
    with pytest.raises(KeyError, match=other):
        part.group(other)
    with pytest.raises(KeyError, match="absent"):
        opened.select(["absent"])
    again = part.select(chosen[1:3])
    assert list(again.ids()) == chosen[1:3]
    assert list(pickle.loads(pickle.dumps(again)).ids()) == chosen[1:3]
    assert opened.select([]).num_groups == 0


def test_split_groups_is_a_partition_and_a_function_of_id_and_seed(tmp_path, opened, expected):
    parts = opened.split_groups({"train": 0.7, "tune": 0.2, "test": 0.1}, seed=5)
    ids = [list(part.ids()) for part in parts.values()]
    assert sorted(itertools.chain(*ids)) == list(expected)
    shares = [len(part) / len(expected) for part in ids]
    # 3.5 standard deviations of a binomial share of 200 to 300 groups are at most 0.12.
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.1], atol=0.12)
    assert list(opened.split_groups({"a": 0.7, "b": 0.3}, seed=6)["a"].ids()) != ids[0]
    # Other records in another order, with some groups gone: the others stay where they were.
    fewer = [r for r in list(records())[::-1] if r["user"] > "u005"]
    again = data.group(fewer, by="user", out=tmp_path / "again")
    moved = again.split_groups({"train": 0.7, "tune": 0.2, "test": 0.1}, seed=5)
    for old, new in zip(ids, moved.values(), strict=True):
        assert [name for name in old if name > "u005"] == list(new.ids())
    nested = parts["train"].split_groups({"all": 1.0, "none": 0.0}, seed=5)
    assert list(nested["all"].ids()) == ids[0]
    for wrong in ({}, {"a": 0.5}, {"a": 1.5, "b": -0.5}):
        with pytest.raises(ValueError, match="add up to 1"):
            opened.split_groups(wrong, seed=0)


def test_stream_order(opened, expected):
    plain = [group.id for group in opened.stream(shuffle=False)]
    assert plain == list(expected)
    one = [group.id for group in opened.stream(seed=1)]
    assert sorted(one) == plain
    assert one != plain
    assert one == [group.id for group in opened.stream(seed=1)]
    assert one != [group.id for group in opened.stream(seed=2)]
    assert {group.id: list(group) for group in opened.stream(seed=1)} == expected
    with pytest.raises(ValueError, match="needs a seed"):
        opened.stream()


def test_a_stream_is_a_grain_data_set_and_starts_no_threads(dataset, expected):
    ids = list(expected)
    stream = dataset.stream(shuffle=False)
    assert [group.id for group in stream[2:9:3]] == ids[2:9:3]
    assert stream[len(ids) + 1].id == ids[1]
    assert list(stream.map(lambda group: group.id)[:7]) == ids[:7]
    threads = threading.active_count()
    iterator = iter(stream)
    assert next(iterator).id == ids[0]
    assert threading.active_count() == threads


@pytest.mark.parametrize("part", ["all", "selected", "split"])
def test_batches_are_the_groups_one_after_the_other(opened, part):
    if part == "selected":
        opened = opened.select(list(opened.ids())[3:40:2])
    elif part == "split":
        opened = opened.split_examples({"a": 0.5, "b": 0.5}, seed=0)["a"]
    pairs = [(group.id, example["n"]) for group in opened for example in group]
    table = pa.Table.from_batches(opened.batches())
    assert table.column_names == ["group_id", "user", "n"]
    assert list(zip(*table.select(["group_id", "n"]).to_pydict().values(), strict=True)) == pairs
    few = pa.Table.from_batches(opened.batches(columns=["n"]))
    assert few.equals(table.select(["group_id", "n"]))


def test_reading_leaves_arrows_memory_pool_as_it_is(dataset, expected):
    pool = pa.default_memory_pool().backend_name
    assert contents(data.open(dataset.path)) == expected
    assert pa.default_memory_pool().backend_name == pool


def test_stream_state_can_be_saved_and_restored(dataset):
    stream = dataset.stream(seed=3).to_iter_dataset()
    iterator = iter(stream)
    for _ in range(37):
        next(iterator)
    state = iterator.get_state()
    rest = [group.id for group in iterator]
    resumed = iter(stream)
    resumed.set_state(state)
    assert [group.id for group in resumed] == rest
    assert len(rest) == len(dataset) - 37


@pytest.mark.parametrize("shuffle", [True, "blocks", False])
@pytest.mark.parametrize("interleave", [1, 3, 1000])
@pytest.mark.parametrize("prefetch", [0, 5])
def test_stream_options_change_the_order_only(dataset, expected, shuffle, interleave, prefetch):
    stream = dataset.stream(seed=1, shuffle=shuffle, interleave=interleave, prefetch=prefetch)
    groups = list(stream)
    assert {group.id: list(group) for group in groups} == expected
    assert len(groups) == len(expected)
    again = dataset.stream(seed=1, shuffle=shuffle, interleave=interleave, prefetch=prefetch)
    assert [group.id for group in again] == [group.id for group in groups]
    if shuffle is False:
        ids = list(expected)
        step = min(interleave, len(ids))
        stretches = np.array_split(np.arange(len(ids)), step)
        turns = itertools.zip_longest(*stretches)
        order = [ids[n] for turn in turns for n in turn if n is not None]
        assert [group.id for group in groups] == order


@pytest.mark.parametrize("count", [1, 5, 511, 512, 513, 1024, 3000])
def test_block_shuffle_keeps_neighbours_together(tmp_path, count):
    dataset = data.group([{"g": n} for n in range(count)], by="g", out=tmp_path / "out")
    order = [group.id for group in dataset.stream(seed=4, shuffle="blocks")]
    assert sorted(order) == list(range(count))
    if count > 1:
        assert order != list(range(count))
    blocks = [int(number) // 512 for number in order]
    changes = sum(one != two for one, two in itertools.pairwise(blocks))
    assert changes == len(set(blocks)) - 1


@pytest.mark.parametrize(
    "wrong", [{"shuffle": "files"}, {"interleave": 0}, {"prefetch": -1}], ids=str
)
def test_wrong_stream_options_are_named(dataset, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        dataset.stream(seed=0, **wrong)


def test_examples_of_a_group_split_by_content(tmp_path):
    rows = [{"g": "a", "n": n % 400, "b": bytes([n % 256]), "x": [n % 3]} for n in range(800)]
    group = data.group(rows, by="g", out=tmp_path / "1", row_group_bytes=900).group("a")
    parts = group.split({"tune": 0.5, "held_out": 0.5}, seed=0)
    numbers = {name: [int(e["n"]) for e in part] for name, part in parts.items()}
    assert sorted(numbers["tune"] + numbers["held_out"]) == sorted([*range(400)] * 2)
    # Equal examples are on the same side.
    equal = {name: {(e["n"], e["b"], e["x"][0]) for e in part} for name, part in parts.items()}
    assert not equal["tune"] & equal["held_out"]
    # 5 standard deviations of a share of 800 examples of which some are equal.
    assert abs(len(parts["tune"]) - 400) < 5 * np.sqrt(400)
    assert len(parts["tune"]) == len(numbers["tune"])
    turned = data.group(rows[::-1], by="g", out=tmp_path / "2").group("a")
    again = turned.split({"tune": 0.5, "held_out": 0.5}, seed=0)
    assert [int(e["n"]) for e in again["tune"]] == numbers["tune"][::-1]
    other = turned.split({"tune": 0.5, "held_out": 0.5}, seed=1)
    assert sorted(int(e["n"]) for e in other["tune"]) != sorted(numbers["tune"])
    assert len(group.split({"all": 1, "none": 0}, seed=0)["none"]) == 0
    with pytest.raises(ValueError, match=r"split\(.*add up to 1"):
        group.split({"a": 0.4}, seed=0)


def test_shuffles_are_uniform_enough():
    from fedeqx.data._seeding import permuted

    size, trials = 7, 1500
    counts = np.zeros((size, size))
    for seed in range(trials):
        order = permuted(np.arange(size), size, "test", seed)
        assert sorted(order) == list(range(size))
        counts[np.arange(size), order] += 1
    # Every cell is binomial; 5 standard deviations.
    share = 1 / size
    assert abs(counts / trials - share).max() < 5 * np.sqrt(share * (1 - share) / trials)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 1000])
def test_permutations_hit_everything_once_one_at_a_time_too(size):
    from fedeqx.data._seeding import permuted

    whole = permuted(np.arange(size), size, "test", 0)
    assert sorted(whole) == list(range(size))
    single = [int(permuted(np.asarray([n]), size, "test", 0)[0]) for n in range(size)]
    assert single == whole.tolist()


def test_large_permutations_cost_no_memory():
    from fedeqx.data._seeding import permuted

    got = permuted(np.arange(100), 10**15, "test", 0)
    assert len(set(got.tolist())) == 100
    assert got.min() >= 0
    assert got.max() < 10**15


def damage(folder, name, how):
    file = folder / name
    if how == "missing":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize("how", ["missing", "empty", "cut"])
@pytest.mark.parametrize("name", ["manifest.json", "index.arrow", "groups-00000.parquet"])
def test_damage_is_named(tmp_path, name, how):
    out = tmp_path / "out"
    data.group([{"g": "a", "t": "x"}], by="g", out=out)
    damage(out, name, how)
    with pytest.raises(data.DatasetFormatError, match=name.replace(".", r"\.")):
        list(data.open(out).group("a"))


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such folder.*fedeqx\.data\.group"):
        data.open(tmp_path / "absent")
    with pytest.raises(data.DatasetFormatError, match=r"has no manifest\.json"):
        data.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "other", "version": 3}')
    with pytest.raises(data.DatasetFormatError, match="format 'other' version 3"):
        data.open(tmp_path)
