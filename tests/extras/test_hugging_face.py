"""Hugging Face data sets, map-style and streaming, of files and of generators."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest

import fedeqx.data as data
from fedeqx.cli import main

datasets = pytest.importorskip("datasets")

ROWS = [{"g": f"user {n % 7}", "n": n, "text": f"text {n}"} for n in range(300)]
FEATURES = datasets.Features(
    {
        "g": datasets.Value("string"),
        "n": datasets.Value("int16"),
        "label": datasets.ClassLabel(names=["a", "b"]),
        "image": datasets.Image(),
        "tensor": datasets.Array2D((2, 3), "uint8"),
        "deep": datasets.Array3D((2, 3, 2), "float32"),
        "ragged": datasets.Array2D((None, 3), "float32"),
        "tokens": datasets.Sequence(datasets.Value("int16")),
        "nested": {"x": datasets.Value("string"), "raw": datasets.Value("binary")},
    }
)


def generate():
    for n in range(300):
        yield {
            "g": f"user {n % 7}",
            "n": n,
            "label": n % 2,
            "image": np.full((4, 5, 3), n % 250, np.uint8),
            "tensor": np.full((2, 3), n % 250, np.uint8),
            "deep": np.arange(12, dtype=np.float32).reshape(2, 3, 2) + n,
            "ragged": np.ones((n % 3 + 1, 3), np.float32),
            "tokens": list(range(n % 4)),
            "nested": {"x": f"x{n}", "raw": bytes([n % 256])},
        }


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def numbers(dataset):
    return {group.id: [int(example["n"]) for example in group] for group in dataset}


EXPECTED = {f"user {k}": list(range(k, 300, 7)) for k in range(7)}


@pytest.mark.parametrize("kind", ["map", "filtered", "shuffled", "shards", "generator", "mapped"])
def test_every_kind(tmp_path, kind):
    whole = datasets.Dataset.from_list(ROWS)
    expected = EXPECTED
    source = whole
    if kind == "filtered":
        source = whole.filter(lambda row: row["n"] % 2 == 0)
        expected = {g: [n for n in ns if n % 2 == 0] for g, ns in EXPECTED.items()}
    elif kind == "shuffled":
        source = whole.shuffle(seed=0)
        order = source["n"]
        expected = {f"user {k}": [n for n in order if n % 7 == k] for k in range(7)}
    elif kind == "shards":
        source = whole.to_iterable_dataset(num_shards=3)
    elif kind == "generator":
        source = datasets.IterableDataset.from_generator(lambda: iter(ROWS))
    elif kind == "mapped":
        source = whole.to_iterable_dataset().map(lambda row: {"twice": 2 * row["n"]})
    dataset = data.group(source, by="g", out=tmp_path / "out")
    assert numbers(dataset) == expected
    assert dataset.manifest["source"]["kind"] == "huggingface"
    if kind == "mapped":
        assert [e["twice"] for e in dataset.group("user 1")][:2] == [2, 16]


@pytest.mark.parametrize("streaming", [False, True])
def test_features_keep_their_types(tmp_path, streaming):
    image = pytest.importorskip("PIL.Image")
    make = datasets.IterableDataset if streaming else datasets.Dataset
    options = {} if streaming else {"cache_dir": str(tmp_path / "cache")}
    source = make.from_generator(generate, features=FEATURES, **options)
    dataset = data.group(source, by="g", out=tmp_path / "out")
    assert numbers(dataset) == EXPECTED
    assert dataset.schema.field("n").type == pa.int16()
    assert dataset.schema.field("tensor").type == pa.fixed_shape_tensor(pa.uint8(), (2, 3))
    example = list(dataset.group("user 3"))[20]
    expected = list(generate())[143]
    np.testing.assert_array_equal(example["tensor"], expected["tensor"])
    np.testing.assert_array_equal(example["deep"], expected["deep"])
    assert example["deep"].dtype == np.float32
    np.testing.assert_array_equal(example["ragged"], expected["ragged"])
    np.testing.assert_array_equal(example["tokens"], expected["tokens"])
    assert example["tokens"].dtype == np.int16
    assert (example["nested"], example["label"]) == (expected["nested"], 1)
    decoded = np.asarray(image.open(io.BytesIO(example["image"]["bytes"])))
    np.testing.assert_array_equal(decoded, expected["image"])


@pytest.mark.parametrize("streaming", [False, True])
def test_loading_by_name(tmp_path, streaming):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    source = data.HuggingFaceSource.load(
        "json",
        split="train",
        streaming=streaming,
        data_files=str(tmp_path / "a.jsonl"),
        cache_dir=str(tmp_path / "cache"),
    )
    dataset = data.group(source, by="g", out=tmp_path / "out")
    assert numbers(dataset) == EXPECTED
    assert source.total() == (None if streaming else 300)


@pytest.mark.parametrize("streaming", [False, True])
def test_images_of_a_folder_are_brought_along(tmp_path, streaming):
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (tmp_path / "in" / label).mkdir(parents=True)
        for n in range(3):
            pixels = np.full((4, 5, 3), 10 * n + (label == "dog"), np.uint8)
            image.fromarray(pixels).save(tmp_path / "in" / label / f"{n}.png")
    source = datasets.load_dataset(
        "imagefolder",
        data_dir=str(tmp_path / "in"),
        split="train",
        streaming=streaming,
        cache_dir=str(tmp_path / "cache"),
    )
    dataset = data.group(source, by="label", out=tmp_path / "out")
    for group in dataset:
        found = [np.asarray(image.open(io.BytesIO(e["image"]["bytes"])))[0, 0, 0] for e in group]
        assert sorted(found) == [10 * n + int(group.id) for n in range(3)]


def test_several_splits(tmp_path):
    both = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(TypeError, match=r"several splits: \['train'\].*dataset\['train'\]"):
        data.group(both, by="g", out=tmp_path / "out")


def test_a_problem_names_the_row(tmp_path):
    source = datasets.Dataset.from_list(ROWS)
    with pytest.raises(data.PartitionError, match=r"^row 123: "):
        data.group(source, by=lambda e: None if e["n"] == 123 else 1, out=tmp_path / "out")


def test_the_command(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    source = f"hf:json,split=train,data_files={tmp_path / 'a.jsonl'},cache_dir={tmp_path / 'cache'}"
    out = str(tmp_path / "out")
    assert main(["group", source, "--by", "g", "--out", out, "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("7 groups, 300 examples, ")
    assert numbers(data.open(out)) == EXPECTED
