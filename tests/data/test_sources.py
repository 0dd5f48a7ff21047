"""Sources: every format gives the same examples; what cannot be read is named or counted."""

import gzip
import json
import random
from typing import Any

import grain
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import fedeqx.data as data
from fedeqx.data._inputs import as_source

ROWS = [
    {"g": f"user {n % 7}", "n": n, "x": n / 4, "text": f'line, "{n}"\nnext', "date": "2020-01-01"}
    for n in range(300)
]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write(path, rows):
    """Write rows in the format that the file's name asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    name = path.name
    if name.endswith(".parquet"):
        pq.write_table(table, path, row_group_size=50)
    elif ".csv" in name or ".tsv" in name:
        options = pa_csv.WriteOptions(delimiter="\t" if ".tsv" in name else ",")
        with pa.output_stream(str(path)) as stream:
            pa_csv.write_csv(table, stream, options)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines(rows)))
    elif name.endswith(".zst"):
        with pa.output_stream(str(path)) as stream:
            stream.write(lines(rows))
    else:
        path.write_bytes(lines(rows))


def read(source):
    """The examples in the source's order, through grouping, with dates as text."""
    return [{**example, "date": str(example["date"])} for example in as_source(source)]


FORMATS = ["parquet", "jsonl", "ndjson", "json", "jsonl.gz", "jsonl.zst", "jsonl.bz2", "csv"]
FORMATS += ["csv.gz", "csv.zst", "tsv"]


@pytest.mark.parametrize("ending", FORMATS)
def test_files_folders_lists_and_patterns(tmp_path, ending):
    if ending == "jsonl.bz2":
        pytest.importorskip("bz2")
        import bz2

        (tmp_path / "in").mkdir()
        (tmp_path / "in" / f"a.{ending}").write_bytes(bz2.compress(lines(ROWS[:200])))
        (tmp_path / "in" / f"b.{ending}").write_bytes(bz2.compress(lines(ROWS[200:])))
    else:
        write(tmp_path / "in" / f"a.{ending}", ROWS[:200])
        write(tmp_path / "in" / f"b.{ending}", ROWS[200:])
    one, two = tmp_path / "in" / f"a.{ending}", tmp_path / "in" / f"b.{ending}"
    assert read(one) == ROWS[:200]
    assert read(tmp_path / "in") == ROWS
    assert read([two, one]) == ROWS[200:] + ROWS[:200]
    assert read(str(tmp_path / "in" / f"*.{ending}")) == ROWS
    dataset = data.group(tmp_path / "in", by="g", out=tmp_path / "out")
    numbers = {group.id: [e["n"] for e in group] for group in dataset}
    assert numbers == {f"user {k}": list(range(k, 300, 7)) for k in range(7)}


def test_json_keeps_text_that_looks_like_a_date_and_nested_values(tmp_path):
    rows = [
        {"g": 1, "when": "2020-01-01T00:00:00Z", "in": {"d": "2021-02-03", "l": ["12:30"]}},
        {"g": 2, "in": {"d": None, "l": []}},
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(rows))
    assert list(data.JsonLinesSource([tmp_path / "a.jsonl"])) == [
        rows[0],
        {"g": 2, "when": None, "in": {"d": None, "l": []}},
    ]


def test_a_long_line_and_blank_lines_and_no_last_line_feed(tmp_path):
    rows = [{"g": n, "text": "x" * (9_000_000 if n == 2 else 3)} for n in range(5)]
    text = b"\n\n" + lines(rows).replace(b"\n", b"\r\n\n")
    (tmp_path / "a.jsonl").write_bytes(text.rstrip())
    assert list(data.JsonLinesSource([tmp_path / "a.jsonl"])) == rows


BAD_LINES = {
    "no JSON": b'{"g": 1, "n": 1}\n{"g": 1, "n"',
    "not an object": b'{"g": 1, "n": 1}\n[1, 2]\n',
    "two objects": b'{"g": 1, "n": 1}\n{"g": 1, "n": 1}{"g": 1, "n": 1}\n',
    "another type": b'{"g": 1, "n": 1}\n{"g": 1, "n": {"x": 1}}\n',
    "key twice": b'{"g": 1, "n": 1}\n{"g": 1, "g": 2, "n": 1}\n',
    "bytes": b'{"g": 1, "n": 1}\n\xff\xfe\n',
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_or_counted(tmp_path, case):
    good = [{"g": n % 3, "n": n} for n in range(100)]
    text = lines(good) + b"\n" + BAD_LINES[case].rstrip() + b"\n" + lines(good)
    (tmp_path / "a.jsonl").write_bytes(text)
    with pytest.raises(data.SourceError, match=r"a\.jsonl, line 103: .*schema=") as failed:
        data.group(tmp_path / "a.jsonl", by="g", out=tmp_path / "out")
    assert "int64" in str(failed.value)
    dataset = data.group(tmp_path / "a.jsonl", by="g", out=tmp_path / "out", on_error="skip")
    assert dataset.num_examples == 201
    assert dataset.manifest["num_skipped"] == 1
    assert dataset.manifest["skipped"][0]["where"].endswith("a.jsonl, line 103")


def test_a_field_that_appears_late_is_named_and_a_given_schema_helps(tmp_path):
    rows = [{"g": n} for n in range(10)]
    rows[7]["late"] = 1
    text = lines(rows[:5]) + b" " * 5_000_000 + b"\n" + lines(rows[5:])
    (tmp_path / "a.jsonl").write_bytes(text)
    with pytest.raises(data.SourceError, match=r"line 9: .*late.*schema="):
        list(data.JsonLinesSource([tmp_path / "a.jsonl"]))
    schema = pa.schema({"g": pa.int64(), "late": pa.int64()})
    source = data.JsonLinesSource([tmp_path / "a.jsonl"], schema=schema)
    assert [example["late"] for example in source] == [None] * 7 + [1, None, None]


def test_csv_rows_of_another_length_are_named_or_counted(tmp_path):
    (tmp_path / "a.csv").write_text("g,n\n1,2\n3\n4,5,6\n7,8\n")
    with pytest.raises(
        data.SourceError, match=r"a\.csv: .*Row #3: Expected 2 columns.*on_error='skip'"
    ):
        data.group(tmp_path / "a.csv", by="g", out=tmp_path / "out")
    dataset = data.group(tmp_path / "a.csv", by="g", out=tmp_path / "out", on_error="skip")
    assert list(dataset.ids()) == [1, 7]
    assert dataset.manifest["num_skipped"] == 2


def test_csv_types(tmp_path):
    (tmp_path / "a.csv").write_text("g,zip,empty\n1,02134,\n2,10001,\n")
    (tmp_path / "b.csv").write_text("g,zip,empty\n3,x,\n")
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    with pytest.raises(data.SourceError, match=r"b\.csv.*int64.*types="):
        list(data.CsvSource(files))
    source = data.CsvSource(files, types={"zip": pa.string()})
    assert list(source) == [
        {"g": 1, "zip": "02134", "empty": ""},
        {"g": 2, "zip": "10001", "empty": ""},
        {"g": 3, "zip": "x", "empty": ""},
    ]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_files_with_other_columns_are_named(tmp_path, ending):
    write(tmp_path / f"a.{ending}", [{"g": 1, "n": 1}])
    write(tmp_path / f"b.{ending}", [{"g": 1, "m": 1}])
    with pytest.raises(data.SourceError, match=rf"b\.{ending} has the columns.*m.*a\.{ending} has"):
        data.group(tmp_path / f"*.{ending}", by="g", out=tmp_path / "out")


def test_parquet_columns_may_come_in_another_order(tmp_path):
    write(tmp_path / "a.parquet", [{"g": 1, "n": 2}])
    write(tmp_path / "b.parquet", [{"n": 3, "g": 1}])
    assert list(as_source(tmp_path)) == [{"g": 1, "n": 2}, {"g": 1, "n": 3}]


@pytest.mark.parametrize("ending", ["parquet", "jsonl.gz"])
def test_a_damaged_file_is_named_or_counted(tmp_path, ending):
    write(tmp_path / f"a.{ending}", ROWS)
    write(tmp_path / f"b.{ending}", ROWS)
    damaged = tmp_path / f"a.{ending}"
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.raises(data.SourceError, match=rf"a\.{ending}.*on_error='skip'"):
        data.group(tmp_path, by="g", out=tmp_path / "out")
    dataset = data.group(tmp_path, by="g", out=tmp_path / "out", on_error="skip")
    assert dataset.num_examples >= 300
    assert dataset.manifest["num_skipped"] >= 1
    assert f"a.{ending}" in dataset.manifest["skipped"][0]["where"]


def test_partition_problems_name_file_and_line(tmp_path):
    rows = [{"g": n} for n in range(5)]
    (tmp_path / "a.jsonl").write_bytes(lines(rows) + b"\n")
    (tmp_path / "b.jsonl").write_bytes(b"\n" + lines([{"g": 1}, {"g": None}]))
    with pytest.raises(data.PartitionError, match=r"b\.jsonl, line 3: the field 'g' is empty"):
        data.group(tmp_path, by="g", out=tmp_path / "out")


def test_missing_and_mixed_files_are_named(tmp_path):
    for missing in (tmp_path / "a.jsonl", [tmp_path / "a.jsonl"], str(tmp_path / "*.jsonl")):
        with pytest.raises(FileNotFoundError, match=r"\.jsonl"):
            data.group(missing, by="g", out=tmp_path / "out")
    for name in ("a.jsonl", "b.csv", "c.xyz"):
        (tmp_path / name).write_text("x")
    with pytest.raises(TypeError, match=r"\.csv.*\.jsonl.*all be of one kind"):
        data.group([tmp_path / "a.jsonl", tmp_path / "b.csv"], by="g", out=tmp_path / "out")
    with pytest.raises(TypeError, match=r"\.xyz"):
        data.group(tmp_path / "c.xyz", by="g", out=tmp_path / "out")


def test_a_folder_with_other_files_beside_is_text(tmp_path):
    write(tmp_path / "in" / "a.json", [{"g": 1}])
    (tmp_path / "in" / "b.md").write_text("text")
    source = as_source(tmp_path / "in")
    assert [example["path"] for example in source] == ["a.json", "b.md"]


def test_records_of_numpy_values_keep_their_types(tmp_path):
    def records():
        for n in range(10_000):
            yield {
                "g": np.int32(n % 3),
                "image": np.full((2, 3), n % 256, np.uint8),
                "tokens": np.arange(n % 5, dtype=np.uint16),
                "score": np.float32(n),
            }

    dataset = data.group(records(), by="g", out=tmp_path / "out")
    kinds = dict(zip(dataset.schema.names, dataset.schema.types, strict=True))
    image = kinds.pop("image")
    assert (image.value_type, image.shape) == (pa.uint8(), [2, 3])
    assert list(kinds.values()) == [pa.int32(), pa.list_(pa.uint16()), pa.float32()]
    for group, start in zip(dataset, range(3), strict=True):
        for example, n in zip(group, range(start, 10_000, 3), strict=True):
            assert example["image"].dtype == np.uint8
            assert example["image"].shape == (2, 3)
            assert example["image"][1, 2] == n % 256
            assert example["tokens"].dtype == np.uint16
            assert example["tokens"].tolist() == list(range(n % 5))
            assert (example["score"], type(example["score"])) == (n, np.float32)


def test_arrays_of_different_shapes_are_named():
    records = [{"image": np.zeros((2, 3))}] * 5000 + [{"image": np.zeros((3, 2))}]
    with pytest.raises(data.SourceError, match="Record 5000: the field 'image'"):
        list(data.RecordSource(records))


def test_bad_records_are_counted_and_later_ones_keep_their_numbers(tmp_path):
    records: list[Any] = [{"g": n % 3, "n": n} for n in range(9000)]
    records[10] = {"g": 1}
    records[20] = {"g": 1, "n": "x"}
    records[8000] = {"g": 1, "n": "x"}
    records[8500] = "x"
    records[8600] = {"g": None, "n": 1}
    dataset = data.group(iter(records), by="g", out=tmp_path / "out", on_error="skip")
    assert dataset.num_examples == 8995
    manifest = dataset.manifest
    assert {item["where"] for item in manifest["skipped"]} == {
        f"record {n}" for n in (10, 20, 8000, 8500, 8600)
    }
    assert manifest["num_skipped"] == 5
    assert manifest["examples_in"] == 8996


@pytest.mark.parametrize("kind", ["map", "iter"])
def test_grain_data_sets(tmp_path, kind):
    source = grain.MapDataset.source(ROWS).map(lambda row: {"g": row["g"], "n": row["n"] * 2})
    pipeline = source if kind == "map" else source.to_iter_dataset()
    dataset = data.group(pipeline, by="g", out=tmp_path / "out")
    assert [e["n"] for e in dataset.group("user 3")] == [2 * n for n in range(3, 300, 7)]


class Exporting:
    """Stands for any data frame library: all that is asked of one is Arrow's protocol."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def test_whatever_exports_arrow(tmp_path):
    dataset = data.group(Exporting(pa.Table.from_pylist(ROWS)), by="g", out=tmp_path / "out")
    assert dataset.num_examples == 300


def test_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    dataset = data.group(pandas.DataFrame(ROWS), by="g", out=tmp_path / "out")
    assert list(dataset.group("user 0"))[:2] == [ROWS[0], ROWS[7]]


def test_polars(tmp_path):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(ROWS).with_columns(many=polars.concat_list("text", "date"))
    dataset = data.group(frame, by="g", out=tmp_path / "out")
    assert next(iter(dataset.group("user 0"))) == {
        **ROWS[0],
        "many": [ROWS[0]["text"], "2020-01-01"],
    }


def test_totals(tmp_path):
    write(tmp_path / "a.parquet", ROWS)
    assert as_source(tmp_path / "a.parquet").total() == 300
    assert data.RecordSource(ROWS).total() == 300
    assert data.RecordSource(iter(ROWS)).total() is None
    assert data.ArrowSource(pa.Table.from_pylist(ROWS)).total() == 300


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "csv.gz"])
def test_the_total_of_a_text_file_is_estimated(tmp_path, ending):
    chooser = random.Random(0)
    lines = [f"{n},{chooser.getrandbits(8 * chooser.randrange(1, 300)):x}" for n in range(50_000)]
    if ending.startswith("jsonl"):
        lines = [json.dumps({"n": line}) for line in lines]
    with pa.output_stream(str(tmp_path / f"a.{ending}")) as file:
        file.write("".join(line + "\n" for line in lines).encode())
    total = as_source(tmp_path / f"a.{ending}").total()
    assert total == pytest.approx(50_000, rel=0.2)
