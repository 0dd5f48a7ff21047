"""Grouping: every example comes out once, in its group, in the order of the source."""

import hashlib
import itertools
import json
import random
from collections import defaultdict

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedeqx.data as data
from fedeqx.data import _sorting


def long_tailed_records(count, seed=0):
    chooser = random.Random(seed)
    for number in range(count):
        user = f"user {int(chooser.paretovariate(0.7)) % 200}"
        yield {"user": user, "number": number, "text": "word " * chooser.randrange(40)}


def grouped_by_hand(records, by):
    groups = defaultdict(list)
    for record in records:
        groups[by(record)].append(record)
    return dict(groups)


def everything(dataset):
    return {group.id: list(group) for group in dataset}


SOURCES = {
    "iterator": lambda records: iter(records),
    "list": lambda records: records,
    "table": pa.Table.from_pylist,
    "record batch": pa.RecordBatch.from_pylist,
    "reader": lambda records: pa.Table.from_pylist(records).to_reader(max_chunksize=7),
    "source": data.RecordSource,
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("by", ["user", lambda record: record["user"]], ids=["field", "function"])
def test_every_kind_of_source_gives_the_groups_that_a_loop_gives(tmp_path, kind, by):
    records = list(long_tailed_records(500))
    dataset = data.group(SOURCES[kind](records), by=by, out=tmp_path / "out")
    expected = grouped_by_hand(records, lambda record: record["user"])
    assert everything(dataset) == expected
    assert dataset.num_groups == len(expected)
    assert dataset.num_examples == 500 == dataset.manifest["examples_in"]


@pytest.mark.parametrize("row_group_bytes", [1, 300, 5_000, "1MiB"])
@pytest.mark.parametrize("shard_bytes", [1, 2_000, "256MiB"])
def test_groups_span_row_groups_and_shards(tmp_path, row_group_bytes, shard_bytes):
    records = list(long_tailed_records(400))
    dataset = data.group(
        records,
        by="user",
        out=tmp_path / "out",
        row_group_bytes=row_group_bytes,
        shard_bytes=shard_bytes,
    )
    expected = grouped_by_hand(records, lambda record: record["user"])
    assert everything(dataset) == expected
    for name, rows in expected.items():
        group = dataset.group(name)
        assert len(group) == len(rows)
        # 8 bytes of the number, and the text's own.
        size = sum(8 + len(row["user"]) + len(row["text"]) for row in rows)
        words = sum(len(row["user"].split()) + len(row["text"].split()) for row in rows)
        assert (group.num_bytes, group.num_words) == (size, words)
        pieces = [batch.to_pylist() for batch in group.batches(1, 5)]
        assert list(itertools.chain.from_iterable(pieces)) == rows[1:5]


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_part_of_a_group_that_spans_shards(tmp_path, in_memory):
    records = [{"user": n // 90, "n": n} for n in range(100)]
    dataset = data.group(records, by="user", out=tmp_path / "o", shard_bytes=90, row_group_bytes=50)
    assert len(dataset.manifest["shards"]) > 10
    dataset = dataset.in_memory() if in_memory else dataset
    for start, stop in [(0, 90), (7, 8), (33, 71), (89, 90), (89, 200), (5, 5), (60, None)]:
        batches = dataset.group(0).batches(start, stop)
        found = [example["n"] for batch in batches for example in batch.to_pylist()]
        assert found == list(range(90))[start:stop]


def test_the_files_are_plain_sorted_parquet_that_other_engines_read(tmp_path):
    records = list(long_tailed_records(2000))
    out = tmp_path / "out"
    dataset = data.group(records, by="user", out=out, shard_bytes=20_000, row_group_bytes=4_000)
    rows = duckdb.connect().execute(f"SELECT * FROM '{out}/*.parquet'").fetchall()
    expected = sorted(records, key=lambda record: (record["user"], record["number"]))
    assert rows == [(r["user"], r["user"], r["number"], r["text"]) for r in expected]
    files = sorted(out.glob("*.parquet"))
    assert [file.name for file in files] == [s["file"] for s in dataset.manifest["shards"]]
    assert len(files) > 3
    for file, shard in zip(files, dataset.manifest["shards"], strict=True):
        assert hashlib.sha256(file.read_bytes()).hexdigest() == shard["sha256"]
        metadata = pq.read_metadata(file)
        assert metadata.num_rows == shard["examples"]
        assert metadata.num_row_groups > 1
    index = out / dataset.manifest["index"]["file"]
    assert hashlib.sha256(index.read_bytes()).hexdigest() == dataset.manifest["index"]["sha256"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [*(file.name for file in files), "index.arrow", "manifest.json"]
    )


def test_row_groups_have_about_the_size_asked_for_and_keep_small_groups_whole(tmp_path):
    records = [{"g": f"{n // 3:05d}", "t": "x" * 100} for n in range(3000)]
    out = tmp_path / "out"
    data.group(records, by="g", out=out, row_group_bytes=5_000)
    metadata = pq.read_metadata(out / "groups-00000.parquet")
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    # 105 bytes a row: at most 47 rows fit, and whole groups of three make it 45.
    assert sizes[:-1] == [45] * (len(sizes) - 1)


def spilling_records():
    generator = np.random.default_rng(0)
    # Rows from a few bytes to larger than a row group, of groups from one row to half of all.
    for number in range(20_000):
        size = 300_000 if number % 1000 == 7 else int(generator.integers(4_000))
        user = int(generator.integers(500)) if number % 2 else 7
        yield {"g": user, "n": number, "t": chr(97 + number % 26) * size}


@pytest.mark.parametrize("threads", [1, 3])
def test_what_does_not_fit_in_memory_is_sorted_on_disk(tmp_path, threads):
    dataset = data.group(
        spilling_records(), by="g", out=tmp_path / "out", memory_limit="32MiB", threads=threads
    )
    expected = defaultdict(list)
    for record in spilling_records():
        expected[record["g"]].append((record["n"], len(record["t"]), record["t"][:1]))
    got = {g.id: [(e["n"], len(e["t"]), e["t"][:1]) for e in g] for g in dataset}
    assert got == dict(expected)


@pytest.mark.parametrize("count", [0, 1, 40, 300])
@pytest.mark.parametrize("fan_in", [2, 3, 1000])
def test_the_external_sort_is_a_stable_sort(tmp_path, monkeypatch, fan_in, count):
    monkeypatch.setattr(_sorting, "_PIECE_BYTES", 50)
    generator = np.random.default_rng(count)
    rows = [(bytes(generator.integers(97, 100, 1 + n % 2, np.uint8)), n) for n in range(count)]
    with _sorting.ExternalSort(tmp_path, memory_limit=1 << 30, threads=2) as sort:
        sort._memory_bytes, sort._run_bytes, sort._fan_in = 500, 200, fan_in
        schema = pa.schema([*_sorting.FRONT, ("n", pa.int64())])
        for start in range(0, count, 3):
            keys, numbers = zip(*rows[start : start + 3], strict=True)
            columns = [keys, [8] * len(keys), [0] * len(keys), numbers]
            sort.add(
                pa.record_batch(
                    [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema
                )
            )
        assert bool(sort._runs) == (count > 1)
        got = [(row["key"], row["n"]) for piece in sort.finish() for row in piece.to_pylist()]
    assert got == sorted(rows, key=lambda row: row[0])


def test_too_little_memory_is_named(tmp_path):
    with pytest.raises(ValueError, match="memory_limit is 1000 bytes; sorting needs at least"):
        data.group([{"g": 1}], by="g", out=tmp_path / "out", memory_limit=1000)


def test_same_input_same_bytes(tmp_path):
    for name in ("a", "b"):
        data.group(long_tailed_records(3000), by="user", out=tmp_path / name, threads=2)
    first, second = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "ab"
    )
    assert first == second


IDS = {
    "text": [
        "a,b",
        "",
        "x" * 5000,
        "é",
        "e\N{COMBINING ACUTE ACCENT}",
        "\x00",
        "a/b",
        "..",
        "日本",
    ],
    "numbers": [7, -7, 0, 2**63 - 1, -(2**63), 10, 9],
    "bytes": [b"", b"\xff\x00", b"abc", b"\x00"],
    "mixed": [7, "7", b"7", "", b"", '{"bytes": "37"}', -1, "[7]", 10, 9],
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_kind_round_trip(tmp_path, kind):
    ids = IDS[kind]
    records = [{"n": n} for n in range(3 * len(ids))]
    data.group(records, by=lambda r: ids[r["n"] % len(ids)], out=tmp_path / "out")
    dataset = data.open(tmp_path / "out")
    found = list(dataset.ids())
    assert len(found) == len(ids)
    assert {(type(i), i) for i in found} == {(type(i), i) for i in ids}
    for number, group_id in enumerate(ids):
        assert group_id in dataset
        assert dataset.group(group_id).id == group_id
        assert [e["n"] for e in dataset.group(group_id)] == list(
            range(number, 3 * len(ids), len(ids))
        )
    assert found == [dataset.ids()[n] for n in range(len(ids))]


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (pa.array(["b", "a", "b"]), ["a", "b"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array(["b", "a", "b"], pa.string_view()), ["a", "b"]),
        (pa.array([-1, 300, -1], pa.int16()), [-1, 300]),
        (pa.array([2**63 - 1, 0, 0], pa.uint64()), [0, 2**63 - 1]),
        (pa.array([b"\xff", b"", b""], pa.binary()), [b"", b"\xff"]),
        (pa.array([b"ab", b"aa", b"aa"], pa.binary(2)), [b"aa", b"ab"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_field_of_any_fitting_type_is_the_id(tmp_path, column, ids):
    table = pa.table({"id": column, "n": [0, 1, 2]})
    dataset = data.group(table, by="id", out=tmp_path / "out")
    assert list(dataset.ids()) == ids
    assert dataset.schema.names == table.schema.names


def test_a_nested_field_and_a_field_with_a_dot(tmp_path):
    table = pa.table({"meta": [{"user": "a"}, {"user": "b"}], "meta.user": ["c", "d"]})
    assert list(data.group(table, by="meta.user", out=tmp_path / "1").ids()) == ["c", "d"]
    table = table.select(["meta"])
    assert list(data.group(table, by="meta.user", out=tmp_path / "2").ids()) == ["a", "b"]


def test_grouping_by_a_column_named_group_id_takes_it_as_the_id(tmp_path):
    dataset = data.group(
        [{"group_id": "a", "n": 1}, {"group_id": "b", "n": 2}], by="group_id", out=tmp_path / "out"
    )
    assert everything(dataset) == {"a": [{"n": 1}], "b": [{"n": 2}]}


COLUMNS = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([1, None, -3], pa.int8()),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "float16": pa.array(np.array([1.5, -0.0, 65504], np.float16)),
    "float32": pa.array([1.5, None, float("inf")], pa.float32()),
    "text": pa.array(["a\x00b", None, ""]),
    "large text": pa.array(["a", None, ""], pa.large_string()),
    "bytes": pa.array([b"\xff\x00", None, b""]),
    "fixed bytes": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "date": pa.array([1, None, 3], pa.date32()),
    "timestamp": pa.array([1, None, 3], pa.timestamp("ns", tz="Europe/Berlin")),
    "time": pa.array([1, None, 3], pa.time64("us")),
    "duration": pa.array([1, None, 3], pa.duration("ms")),
    "decimal": pa.array([1, None, 3], pa.decimal128(20, 3)),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
    "large list": pa.array([[1, 2], None, []], pa.large_list(pa.uint16())),
    "fixed list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
    "list of lists": pa.array([[[1], []], None, []], pa.list_(pa.list_(pa.int8()))),
    "struct": pa.array([{"x": 1, "y": {"z": "a"}}, None, {"x": None, "y": None}]),
    "list of structs": pa.array([[{"x": 1.5, "y": b"a"}], None, []]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "null": pa.nulls(3),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_keep_type_and_values(tmp_path, name):
    column = COLUMNS[name]
    table = pa.table({"g": ["b", "a", "b"], "column": column})
    dataset = data.group(table, by="g", out=tmp_path / "out")
    assert dataset.schema.field("column").type == column.type
    batches = [batch for group in dataset for batch in group.batches()]
    got = pa.Table.from_batches(batches).column("column").combine_chunks()
    assert got.type == column.type
    assert got.equals(column.take(pa.array([1, 0, 2])))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
        pa.array([[[1, 2], None], []], pa.list_(pa.list_(pa.int8(), 2))),
        pa.array([{"x": [1, 2]}, {"x": None}], pa.struct({"x": pa.list_(pa.int8(), 2)})),
    ],
    ids=["plain", "in a list", "in a struct"],
)
def test_what_this_arrow_could_not_read_again_is_not_written(column, tmp_path, monkeypatch):
    monkeypatch.setattr("fedeqx.data._types.READS_NULLS_AMONG_FIXED_LISTS", False)
    table = pa.table({"g": [0, 1], "x": column})
    with pytest.raises(data.SourceError, match=r"column 'x' has nulls .* pyarrow 26"):
        data.group(table, by="g", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
    whole = pa.table({"g": [0], "x": pa.array([[1, 2]], pa.list_(pa.int8(), 2))})
    assert len(data.group(whole, by="g", out=tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("view", "stored"),
    [
        (pa.string_view(), pa.large_string()),
        (pa.binary_view(), pa.large_binary()),
        (pa.list_(pa.string_view()), pa.list_(pa.large_string())),
        (pa.struct({"x": pa.string_view()}), pa.struct({"x": pa.large_string()})),
    ],
    ids=str,
)
def test_views_become_large_types_with_the_same_values(tmp_path, view, stored):
    value = {"list": ["a", None], "struct": {"x": "a" * 30}}
    kind = str(view).partition("<")[0]
    values = [value.get(kind, b"a" * 30 if "binary" in kind else "a" * 30), None]
    table = pa.table({"g": [1, 0], "column": pa.array(values, view)})
    dataset = data.group(table, by="g", out=tmp_path / "out")
    assert dataset.schema.field("column").type == stored
    assert [next(iter(g))["column"] for g in dataset] == values[::-1]


def test_field_metadata_and_nullability_are_kept(tmp_path):
    field = pa.field("n", pa.int32(), nullable=False, metadata={"unit": "m"})
    schema = pa.schema([pa.field("g", pa.string()), field], metadata={"about": "lengths"})
    table = pa.table({"g": ["a"], "n": [1]}, schema=schema)
    dataset = data.group(table, by="g", out=tmp_path / "out")
    assert dataset.schema.equals(schema, check_metadata=True)


def fail_at(number, error):
    for n in range(number):
        yield {"g": "a", "n": n}
    raise error


BAD = {
    "function raises": (
        [{"g": "a"}, {"g": None}],
        lambda r: r["g"].upper(),
        data.PartitionError,
        "record 1: .*raised AttributeError",
    ),
    "function returns None": (
        [{"g": "a"}, {"g": "b"}],
        lambda r: {"a": "x"}.get(r["g"]),
        data.PartitionError,
        "record 1: .*returned None.*for every example",
    ),
    "function returns a float": (
        [{"g": 0.5}],
        lambda r: r["g"],
        data.PartitionError,
        "record 0: .*0.5 of type float.*str, int or bytes",
    ),
    "function returns a bool": ([{"g": 1}], lambda r: r["g"] > 0, data.PartitionError, "bool"),
    "surrogate": ([{"g": 1}], lambda r: "\ud800", data.PartitionError, "surrogate"),
    "too large": ([{"g": 1}], lambda r: 2**63, data.PartitionError, "64 bits"),
    "null in the field": (
        [{"g": "a"}, {"g": None}],
        "g",
        data.PartitionError,
        "record 1: the field 'g' is empty",
    ),
    "no such field": ([{"g": "a"}], "h", data.PartitionError, r"no field 'h'.*\['g'\]"),
    "float field": ([{"g": 0.5}], "g", data.PartitionError, "type double cannot"),
    "field left out": (
        [{"g": "a", "n": 1}, {"g": "b"}],
        "g",
        data.SourceError,
        r"Record 1 lacks \['n'\]",
    ),
    "field too many": (
        [{"g": "a"}, {"g": "b", "n": 1}],
        "g",
        data.SourceError,
        r"Record 1 has \['n'\] besides",
    ),
    "mixed types": (
        [{"g": "a", "n": 1}, {"g": "b", "n": 2}, {"g": "b", "n": "two"}],
        "g",
        data.SourceError,
        "Record 2: the field 'n' is 'two'",
    ),
    "mixed types later": (
        [{"g": "a", "n": 1}] * 5000 + [{"g": "b", "n": "two"}],
        "g",
        data.SourceError,
        "Record 5000: the field 'n' is 'two'.*int64",
    ),
    "not a dictionary": ([{"g": "a"}, "b"], "g", data.SourceError, "Record 1 is a str"),
    "no examples": ([], "g", data.SourceError, "no examples"),
    "only the id": ([{"group_id": "a"}], "group_id", data.SourceError, "at least one more"),
    "reserved name": ([{"g": "a", "group_id": 1}], "g", data.SourceError, "adds. Rename it"),
    "columns twice": (
        pa.table([["a"], ["b"]], names=["g", "g"]),
        "g",
        data.SourceError,
        "several columns of the name 'g'",
    ),
    "iterator fails": (fail_at(9000, OSError("cable")), "g", OSError, "^cable$"),
    "interrupted": (fail_at(9000, KeyboardInterrupt()), "g", KeyboardInterrupt, None),
    "not a source": (3, "g", TypeError, "A int cannot be a source"),
    "no such folder": ("/no/such/folder", "g", FileNotFoundError, "/no/such/folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_failure_names_the_example_and_leaves_nothing(tmp_path, case):
    source, by, error, message = BAD[case]
    if isinstance(source, list):
        source = iter(source)
    with pytest.raises(error, match=message):
        data.group(source, by=by, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_partition_function():
    from fedeqx.data._partition import as_partition

    with pytest.raises(TypeError, match="by=3 is not a partition function"):
        as_partition(3)


def test_the_schema_changes_on_the_way(tmp_path):
    batches = [pa.record_batch({"g": ["a"], "n": [1]}), pa.record_batch({"g": ["a"], "n": ["1"]})]
    for batch in batches:
        assert batch.num_rows == 1

    class Changing(data.AbstractSource):
        def __init__(self):
            self.skipped = data.Skips()

        def batches(self, *, skip=False):
            return iter(batches)

        def describe(self):
            return {"kind": "changing"}

        def locate(self, row):
            return f"part {row}"

        def total(self):
            return None

    with pytest.raises(data.SourceError, match=r"From part 1 on.*string.*before.*int64"):
        data.group(Changing(), by="g", out=tmp_path / "out")


def test_an_existing_folder_is_kept_unless_overwriting_succeeds(tmp_path):
    out = tmp_path / "out"
    data.group([{"g": "a"}], by="g", out=out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(FileExistsError, match="overwrite=True"):
        data.group([{"g": "b"}], by="g", out=out)
    with pytest.raises(OSError, match="cable"):
        data.group(fail_at(5, OSError("cable")), by="g", out=out, overwrite=True)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert list(data.group([{"g": "b"}], by="g", out=out, overwrite=True).ids()) == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MB", 512_000_000), ("1.5 GiB", 3 << 29), ("7", 7), (9, 9), ("2kb", 2000)],
)
def test_amounts_of_memory(text, size):
    from fedeqx.data._amounts import parse_bytes

    assert parse_bytes(text, "memory_limit") == size
    with pytest.raises(ValueError, match="memory_limit='much'"):
        parse_bytes("much", "memory_limit")


def test_the_manifest_tells_what_was_done(tmp_path):
    data.group([{"g": "a", "t": "x y"}], by="g", out=tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["partition"] == {"kind": "by_field", "field": "g", "seed": None}
    assert manifest["schema"]["columns"] == {"g": "string", "t": "string"}
    counts = {name: manifest[name] for name in manifest if name.startswith("num_")}
    assert counts == {
        "num_groups": 1,
        "num_examples": 1,
        "num_bytes": 4,
        "num_words": 3,
        "num_skipped": 0,
        "num_ungrouped": 0,
    }
