"""ArrayRecord files, which Grain's own package writes."""

import json
import pickle

import grain
import numpy as np
import pyarrow as pa
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import fedeqx.data as data

ROWS = [{"g": f"user {n % 7}", "n": n} for n in range(1000)]


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = ArrayRecordWriter(str(path), "group_size:10")
    for record in records:
        writer.write(record if isinstance(record, bytes) else json.dumps(record).encode())
    writer.close()
    return path


def test_records_are_decoded_in_order(tmp_path):
    files = [write(tmp_path / f"{k}.array_record", ROWS[400 * k : 400 * (k + 1)]) for k in range(3)]
    source = data.ArrayRecordSource(files, decode=json.loads)
    assert list(source) == list(source) == ROWS
    assert source.total() == 1000
    assert list(pickle.loads(pickle.dumps(source))) == ROWS
    dataset = data.group(source, by="g", out=tmp_path / "out")
    numbers = {group.id: [e["n"] for e in group] for group in dataset}
    assert numbers == {f"user {k}": list(range(k, 1000, 7)) for k in range(7)}
    assert dataset.manifest["source"] == {
        "kind": "array record",
        "files": ["0.array_record", "1.array_record", "2.array_record"],
    }


@pytest.mark.parametrize(
    "name", ["a.array_record", "a.arrayrecord", "a.array_record-00000-of-00002"]
)
def test_paths(tmp_path, name):
    records = [bytes([n]) * n for n in range(50)]
    write(tmp_path / "in" / name, records)
    dataset = data.group(
        tmp_path / "in", by=lambda example: len(example["record"]) % 2, out=tmp_path / "out"
    )
    assert dataset.schema == pa.schema({"record": pa.binary()})
    assert [e["record"] for e in dataset.group(1)] == records[1::2]


def test_a_record_that_cannot_be_decoded_is_named_or_counted(tmp_path):
    bad = [*ROWS[:600], b"nonsense", *ROWS[600:]]
    files = [write(tmp_path / f"{k}.array_record", bad[500 * k : 500 * (k + 1)]) for k in range(3)]
    source = data.ArrayRecordSource(files, decode=json.loads)
    with pytest.raises(
        data.SourceError, match=r"1\.array_record, record 100: decode=loads raised JSONDecodeError"
    ):
        data.group(source, by="g", out=tmp_path / "out")
    dataset = data.group(source, by="g", out=tmp_path / "out", on_error="skip")
    assert dataset.num_examples == 1000
    assert dataset.manifest["num_skipped"] == 1
    assert dataset.manifest["skipped"][0]["where"].endswith("1.array_record, record 100")
    # What comes after it keeps its number.
    dataset = data.group(
        source,
        by=lambda example: None if example["n"] == 999 else example["g"],
        out=tmp_path / "out2",
        on_error="skip",
    )
    assert dataset.manifest["skipped"][1]["where"].endswith("2.array_record, record 0")


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.array_record"):
        data.ArrayRecordSource([tmp_path / "nothing.array_record"])


DAMAGE = {
    "too short": lambda content: content[:100],
    "cut off": lambda content: content[:-70_000],
    "other bytes": lambda content: b"x" * len(content),
    "changed inside": lambda content: content[:9000] + b"x" * 3000 + content[12_000:],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named_or_counted(tmp_path, name):
    rows = [
        {"g": n % 3, "n": n, "x": np.random.default_rng(n).bytes(99).hex()} for n in range(2000)
    ]
    write(tmp_path / "b.array_record", ROWS)
    file = write(tmp_path / "a.array_record", rows)
    file.write_bytes(DAMAGE[name](file.read_bytes()))
    source = data.ArrayRecordSource(
        [file, tmp_path / "b.array_record"], decode=lambda record: {"n": json.loads(record)["n"]}
    )
    by = data.by_expression("n % 5")
    with pytest.raises(data.SourceError, match=r"a\.array_record, record \d+: .*as ArrayRecord"):
        data.group(source, by=by, out=tmp_path / "out")
    dataset = data.group(source, by=by, out=tmp_path / "out", on_error="skip")
    assert dataset.manifest["num_skipped"] == 1
    found = sorted(example["n"] for group in dataset for example in group)
    first = len(found) - 1000
    assert 0 <= first < 2000
    assert found == sorted([*range(first), *range(1000)])


def test_grain_over_array_records(tmp_path):
    file = write(tmp_path / "a.array_record", ROWS)
    records = grain.sources.ArrayRecordDataSource(str(file))
    whole = grain.MapDataset.source(records)  # pyright: ignore[reportArgumentType]
    pipeline = whole.map(json.loads).filter(lambda row: row["n"] % 2)
    for number, source in enumerate((pipeline, pipeline.to_iter_dataset())):
        dataset = data.group(source, by="g", out=tmp_path / f"{number}")
        found = np.array([e["n"] for e in dataset.group("user 3")])
        np.testing.assert_array_equal(found, range(3, 1000, 14))
