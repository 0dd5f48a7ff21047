"""Grouping as a Beam pipeline on Beam's own runner: the same data set as the local engine's."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedeqx.data as data
from fedeqx.cli import main

beam = pytest.importorskip("apache_beam")
fsspec = pytest.importorskip("fsspec")

# Small ranges, so that groups are spread over many.
SMALL: dict[str, Any] = {"shard_bytes": 20_000, "row_group_bytes": 2_000}


def rows_of(count, seed=0):
    """Examples of long-tailed groups; some ids are prefixes of others, or hold zero bytes."""
    chooser = random.Random(seed)
    names = ["u", "u\0", "u\0\0", "u\x01", "", "ü", *(f"u{n}" for n in range(200))]
    return [
        {
            "user": names[min(int(chooser.paretovariate(0.4)) - 1, len(names) - 1)],
            "n": n,
            "label": chooser.randrange(5),
            "text": "a b " * chooser.randrange(20),
        }
        for n in range(count)
    ]


ROWS = rows_of(5000)


def write(folder, ending, rows, files=3):
    folder.mkdir(parents=True, exist_ok=True)
    step = -(-len(rows) // files)
    for number in range(files):
        some = rows[number * step : (number + 1) * step]
        path = folder / f"{number}.{ending}"
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(some), path, row_group_size=300)
        elif ending == "csv":
            frame = [",".join(map(str, some[0]))] + [
                ",".join(str(value) for value in row.values()) for row in some
            ]
            path.write_text("\n".join(frame) + "\n")
        elif ending == "jsonl.gz":
            lines = "".join(json.dumps(row) + "\n" for row in some)
            path.write_bytes(gzip.compress(lines.encode()))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in some))
    return folder


def by_loop(rows, key):
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row["n"])
    return dict(groups)


def numbers(dataset):
    return {group.id: [int(example["n"]) for example in group] for group in dataset}


def counts(manifest):
    """All of the manifest but what says where one file ends and the next begins."""
    return {name: value for name, value in manifest.items() if name not in ("shards", "index")}


def check(source, by, folder, expected=None, **options):
    """Group by both engines; compare them with each other and with a loop."""
    told = data.group_with_beam(source, by=by, out=folder / "beam", **{**SMALL, **options})
    local = data.group(source, by=by, out=folder / "local", **{**SMALL, **options})
    dataset = data.open(folder / "beam")
    assert dataset.manifest == told
    assert counts(told) == counts(local.manifest)
    assert list(dataset.ids()) == list(local.ids())
    assert dataset.schema.equals(local.schema, check_metadata=True)
    for mine, other in zip(dataset, local, strict=True):
        assert pa.Table.from_batches(mine.batches()) == pa.Table.from_batches(other.batches())
        sizes = [(len(group), group.num_bytes, group.num_words) for group in (mine, other)]
        assert sizes[0] == sizes[1]
    if expected is not None:
        assert numbers(dataset) == expected
    assert data.verify(folder / "beam") == data.verify(folder / "local")
    assert data.verify(folder / "beam").ok
    # Nothing is left over, neither in the folder nor beside it.
    files = {*(shard["file"] for shard in told["shards"]), "index.arrow", "manifest.json"}
    assert {path.name for path in dataset.path.iterdir()} == files
    assert {path.name for path in folder.iterdir()} <= {"beam", "local", "in"}
    return dataset


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "jsonl.gz", "csv"])
def test_files(tmp_path, ending):
    # A CSV reader would not tell an empty text from a missing one.
    rows = [{**row, "user": f"x{row['n'] % 31}"} for row in ROWS] if ending == "csv" else ROWS
    source = write(tmp_path / "in", ending, rows)
    dataset = check(source, "user", tmp_path, by_loop(rows, lambda row: row["user"]))
    assert len(dataset.manifest["shards"]) > 5


def test_a_text_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("fedeqx.data._beam_parts._TEXT_FILES", 7)
    for number in range(40):
        path = tmp_path / "in" / f"d{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {number}")
    dataset = check(tmp_path / "in", lambda example: example["path"].split("/")[0], tmp_path)
    paths = [example["path"] for example in dataset.group("d1")]
    assert paths == sorted(f"d1/{number}.txt" for number in range(1, 40, 3))


def test_array_records(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    (tmp_path / "in").mkdir()
    for number in range(3):
        file = ArrayRecordWriter(str(tmp_path / "in" / f"{number}.array_record"), "group_size:1")
        for row in ROWS[1700 * number : 1700 * (number + 1)]:
            file.write(json.dumps(row).encode())
        file.close()
    files = sorted((tmp_path / "in").iterdir())
    source = data.ArrayRecordSource(files, decode=json.loads)
    check(source, "user", tmp_path, by_loop(ROWS, lambda row: row["user"]))


@pytest.mark.parametrize("options", [[], ["--beam-options=--runner=FnApiRunner"]])
def test_the_command(tmp_path, capsys, options):
    source = write(tmp_path / "in", "jsonl", ROWS)
    out = str(tmp_path / "out")
    command = ["group", str(source), "--by", "user", "--out", out, "--engine", "beam", *options]
    assert main(command) == 0
    assert re.match(r"\d+ groups, 5,000 examples, .*/out\n", capsys.readouterr().out)
    assert numbers(data.open(out)) == by_loop(ROWS, lambda row: row["user"])
    assert main(command) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["records", "arrow", "grain", "one file"])
def test_what_is_one_part(tmp_path, kind):
    import grain

    source = {
        "records": ROWS,
        "arrow": pa.Table.from_pylist(ROWS),
        "grain": grain.MapDataset.source(ROWS),
        "one file": write(tmp_path / "in", "parquet", ROWS, files=1) / "0.parquet",
    }[kind]
    check(source, "user", tmp_path, by_loop(ROWS, lambda row: row["user"]))


@pytest.mark.parametrize("kind", ["map", "streaming", "one shard"])
def test_hugging_face_in_shards(tmp_path, monkeypatch, kind):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("fedeqx.data._beam_parts._ROWS", 999)
    source = datasets.Dataset.from_list(ROWS)
    if kind != "map":
        source = source.to_iterable_dataset(num_shards=4 if kind == "streaming" else 1)
    check(source, "user", tmp_path, by_loop(ROWS, lambda row: row["user"]))


PARTITIONS = {
    "function": lambda example: f"{example['user'][:2]}-{example['label']}",
    "whole numbers": "label",
    "kinds mixed": lambda example: example["label"] if example["n"] % 2 else str(example["label"]),
    "bytes": lambda example: bytes([0] * example["label"]),
    "expression": data.by_expression("label * 2"),
    "iid": data.iid(9, seed=3),
    "dirichlet": data.dirichlet("label", 6, alpha=0.3, seed=1),
    "power law": data.power_law(11, seed=2),
    "nested": data.nested(data.by_field("user"), data.iid(1, seed=5)),
    "nested the other way": data.nested(data.iid(3, seed=5), data.by_function(lambda e: e["user"])),
    "nested plans": data.nested(data.iid(2, seed=1), data.shards("label", 3, seed=1)),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_kind_of_partition(tmp_path, name):
    check(write(tmp_path / "in", "jsonl", ROWS), PARTITIONS[name], tmp_path)


def test_nested_features_keep_their_types(tmp_path):
    records = [
        {
            "user": n % 3,
            "n": n,
            "image": np.full((2, 3), n % 250, np.uint8),
            "tokens": np.arange(n % 5, dtype=np.int16),
            "meta": {"tags": ["a"] * (n % 3), "raw": b"\0" * (n % 4)},
        }
        for n in range(300)
    ]
    dataset = check(records, "user", tmp_path, by_loop(records, lambda record: record["user"]))
    example = list(dataset.group(2))[33]
    assert example["image"].dtype == np.uint8
    np.testing.assert_array_equal(example["image"], np.full((2, 3), 101))
    np.testing.assert_array_equal(example["tokens"], [0])


def test_dictionary_columns(tmp_path):
    table = pa.table({"n": range(900), "user": [f"u{n % 7}" for n in range(900)]})
    table = table.append_column("kind", table["user"].dictionary_encode())
    (tmp_path / "in").mkdir()
    for number in range(3):
        some = table.slice(number * 300, 300)
        pq.write_table(some, tmp_path / "in" / f"{number}.parquet")
    check(tmp_path / "in", "user", tmp_path, by_loop(table.to_pylist(), lambda row: row["user"]))


def test_one_group_is_spread_over_many_shards(tmp_path):
    rows = [
        {"user": "all", "n": n, "text": random.Random(n).randbytes(500).hex()} for n in range(3000)
    ]
    source = write(tmp_path / "in", "parquet", [*rows, {"user": "z", "n": -1, "text": ""}])
    dataset = check(source, "user", tmp_path, shard_bytes=100_000, memory_limit="32MiB")
    assert numbers(dataset) == {"all": list(range(3000)), "z": [-1]}
    shards = dataset.manifest["shards"]
    assert len(shards) > 20
    # Whoever wrote a shard had no more of the group than that.
    assert max(shard["examples"] for shard in shards) < 2 * 3000 / len(shards)
    found = [
        e["n"] for batch in dataset.group("all").batches(1234, 1300) for e in batch.to_pylist()
    ]
    assert found == list(range(1234, 1300))


WRITER = """
import random, resource, sys
import numpy as np, pyarrow as pa
from pathlib import Path
from fedeqx.data import _beam_stages as stages
from fedeqx.data._beam_order import order_keys
from fedeqx.data._sorting import FRONT
from fedeqx.data._stores import Store
from fedeqx.data._writer import WriterOptions

schema = pa.schema({"n": pa.int64(), "text": pa.large_binary()})
names = pa.schema([*FRONT, pa.field("group key", pa.large_binary()), *schema])
places = np.random.default_rng(0).permutation(int(sys.argv[2]) * 1000)

def slices():
    for start in range(0, len(places), 1000):
        place = places[start : start + 1000]
        key = pa.array([b"sall"] * 1000, pa.large_binary())
        text = pa.array([random.randbytes(1000) for _ in place], pa.large_binary())
        sizes = pa.array([1008] * 1000)
        columns = [order_keys(key, place), sizes, pa.array([0] * 1000), key, pa.array(place), text]
        yield stages._encode(pa.record_batch(columns, schema=names))

job = stages.Job(
    [], {}, None, False, schema, Store(sys.argv[1]), WriterOptions(), 32 << 20
)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(told,) = stages._Write(job).process((0, slices()), "string")
print(told[1]["examples"], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_the_writer_of_a_range_holds_no_more_than_its_memory_limit(tmp_path):
    """500 MB of one group, given as a stream, as runners give the values of a key."""
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), "500"],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    examples, megabytes = map(int, done.stdout.split())
    assert examples == 500_000
    assert megabytes < 200
    shard = pq.read_table(tmp_path / "groups-00000.parquet", columns=["n"])
    assert shard["n"].to_pylist() == list(range(500_000))


def test_urls(tmp_path):
    """`memory://` stands for any store of objects: it has no folders to rename."""
    system = fsspec.filesystem("memory")
    write(tmp_path / "in", "parquet", ROWS)
    write(tmp_path / "in", "jsonl", ROWS)
    system.put(str(tmp_path / "in"), "/corpus", recursive=True)
    for pattern in ("memory://corpus/*.parquet", "memory://corpus/*.jsonl"):
        told = data.group_with_beam(
            pattern, by="user", out="memory://grouped/by_user", overwrite=True, **SMALL
        )
        ending = pattern.rpartition("*")[2]
        assert told["source"]["files"] == [f"{number}{ending}" for number in range(3)]
        copy = tmp_path / f"copy{ending}"
        system.get("/grouped/by_user", str(copy), recursive=True)
        assert data.verify(copy).ok
        assert numbers(data.open(copy)) == by_loop(ROWS, lambda row: row["user"])
        assert len(list(copy.iterdir())) == len(told["shards"]) + 2
    with pytest.raises(FileExistsError, match=r"memory://grouped/by_user exists"):
        data.group_with_beam("memory://corpus/*.jsonl", by="user", out="memory://grouped/by_user")
    with pytest.raises(FileNotFoundError, match=r"memory://corpus/\*\.csv does not exist"):
        data.group_with_beam("memory://corpus/*.csv", by="user", out="memory://grouped/x")
    with pytest.raises(data.PartitionError, match="no field 'client'"):
        data.group_with_beam("memory://corpus/*.jsonl", by="client", out="memory://grouped/x")
    assert not system.exists("/grouped/x")


def test_file_urls(tmp_path):
    source = write(tmp_path / "in", "jsonl", ROWS)
    data.group_with_beam(f"file://{source}/*.jsonl", by="user", out=f"file://{tmp_path}/out")
    dataset = data.open(tmp_path / "out")
    assert numbers(dataset) == by_loop(ROWS, lambda row: row["user"])


def test_a_damaged_remote_file_is_named_by_its_url(tmp_path):
    system = fsspec.filesystem("memory")
    system.pipe("/damaged/a.jsonl", b'{"user": "a", "n": 1}\n{"user": "a"\n')
    with pytest.raises(data.SourceError, match=r"^memory:///damaged/a\.jsonl, line 2: "):
        data.group_with_beam("memory://damaged/*.jsonl", by="user", out=tmp_path / "out")
    told = data.group_with_beam(
        "memory://damaged/*.jsonl", by="user", out=tmp_path / "out", on_error="skip"
    )
    assert told["skipped"][0]["where"] == "memory:///damaged/a.jsonl, line 2"


def test_skipping_counts_and_lists_what_the_local_engine_does(tmp_path):
    source = write(tmp_path / "in", "jsonl", ROWS)
    (source / "1.jsonl").write_text('{"user": "a", "n": 1}\nnonsense\n' * 3)
    (source / "3.jsonl").write_text("")
    expected = by_loop(
        [*ROWS[:1667], *[{"user": "a", "n": 1}] * 3, *ROWS[3334:]], lambda row: row["user"]
    )
    expected.pop("u3")
    dataset = check(
        source,
        lambda example: None if example["user"] == "u3" else example["user"],
        tmp_path,
        expected,
        on_error="skip",
    )
    assert dataset.manifest["num_skipped"] > 3
    assert dataset.manifest["num_ungrouped"] == dataset.manifest["num_skipped"] - 3


def test_skipping_before_a_plan(tmp_path):
    rows = [{**row, "label": None if row["n"] % 9 == 4 else row["label"]} for row in ROWS]
    source = write(tmp_path / "in", "parquet", rows)
    check(source, data.dirichlet("label", 4, alpha=1.0, seed=0), tmp_path, on_error="skip")


def failing(example):
    if example["n"] == 4321:
        raise KeyError("nobody")
    return example["user"]


FAILURES = {
    "a function that raises": (
        failing,
        data.PartitionError,
        r"^.*2\.jsonl, line 988: the partition function failing raised KeyError",
    ),
    "None": (
        lambda example: None,
        data.PartitionError,
        r"^.*0\.jsonl, line 1: the partition function .*returned None.*every example\.$",
    ),
    "a missing field": ("client", data.PartitionError, "no field 'client'"),
    "a plan that cannot be met": (data.iid(10**6, seed=0), data.PartitionError, "iid: num_groups"),
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("before", [False, True])
def test_a_failure_is_the_local_engines_and_leaves_what_was_there(tmp_path, name, before):
    by, kind, message = FAILURES[name]
    source = write(tmp_path / "in", "jsonl", ROWS)
    if before:
        data.group([{"user": 1, "n": 1}], by="user", out=tmp_path / "out")
    for engine in (data.group, data.group_with_beam):
        with pytest.raises(kind, match=message):
            engine(source, by=by, out=tmp_path / "out", overwrite=before)
    assert {path.name for path in tmp_path.iterdir()} == {"in", *["out"] * before}
    if before:
        assert data.open(tmp_path / "out").num_examples == 1


def test_columns_that_differ_are_named(tmp_path):
    source = write(tmp_path / "in", "parquet", ROWS)
    pq.write_table(pa.table({"user": ["a"], "m": [1]}), source / "2.parquet")
    with pytest.raises(data.SourceError, match=r"2\.parquet has the columns .*0\.parquet has"):
        data.group_with_beam(source, by="user", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ((row for row in ROWS), TypeError, r"A generator can be read once only.*list"),
        (iter(ROWS), TypeError, "A list_iterator can be read once only"),
        ([], data.SourceError, "gave no examples"),
        ("nowhere/*.jsonl", FileNotFoundError, "nowhere"),
    ],
)
def test_sources_that_cannot_be_sent(tmp_path, source, kind, message):
    with pytest.raises(kind, match=message):
        data.group_with_beam(source, by="user", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_all_skipped(tmp_path):
    with pytest.raises(data.SourceError, match="All 5000 examples were skipped"):
        data.group_with_beam(ROWS, by=lambda e: None, out=tmp_path / "out", on_error="skip")


def test_an_existing_folder_is_kept(tmp_path):
    data.group(ROWS, by="user", out=tmp_path / "out")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        data.group_with_beam(ROWS, by="user", out=tmp_path / "out")
    told = data.group_with_beam(ROWS[:10], by="user", out=tmp_path / "out", overwrite=True)
    assert told["num_examples"] == data.open(tmp_path / "out").num_examples == 10


def test_worker_processes(tmp_path):
    """Everything that a worker is given survives being sent to another process."""
    source = write(tmp_path / "in", "jsonl", ROWS)
    program = f"""
import fedeqx.data as data
if __name__ == "__main__":
    told = data.group_with_beam(
        {str(source)!r}, by=data.nested(data.by_function(lambda e: e["user"]), data.iid(1, seed=0)),
        out={str(tmp_path / "out")!r}, shard_bytes=20_000,
        pipeline_options=["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
    )
    print(told["num_examples"], len(told["shards"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) == len(ROWS)
    found = numbers(data.open(tmp_path / "out")).items()
    groups = {json.loads(str(group_id))[0]: ns for group_id, ns in found}
    assert groups == by_loop(ROWS, lambda row: row["user"])
