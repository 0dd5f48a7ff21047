"""A TFDS builder of our own, prepared without TensorFlow."""

import io
import pickle

import numpy as np
import pyarrow as pa
import pytest

import fedeqx.data as data
from fedeqx.cli import main

tfds = pytest.importorskip("tensorflow_datasets")
image = pytest.importorskip("PIL.Image")


def example_of(n):
    return {
        "user": f"usér {n % 7}",
        "n": n,
        "label": n % 3,
        "image": np.full((4, 5, 3), n, np.uint8),
        "tensor": np.full((2, 2), n / 4, np.float32),
        "tokens": np.arange(n % 4, dtype=np.int32),
        "flag": n % 2 == 0,
        "meta": {
            "title": f"títle {n}",
            "parts": [{"name": f"p{i}", "size": i} for i in range(n % 3)],
            "tags": [f"t{i}" for i in range(n % 2)],
        },
    }


class Tiny(tfds.core.GeneratorBasedBuilder):
    """Two splits of examples of every kind."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features
        return tfds.core.DatasetInfo(
            builder=self,
            features=features.FeaturesDict(
                {
                    "user": features.Text(),
                    "n": np.int64,
                    "label": features.ClassLabel(num_classes=3),
                    "image": features.Image(shape=(None, None, 3)),
                    "tensor": features.Tensor(shape=(2, 2), dtype=np.float32),
                    "tokens": features.Sequence(np.int32),
                    "flag": np.bool_,
                    "meta": {
                        "title": features.Text(),
                        "parts": features.Sequence({"name": features.Text(), "size": np.int64}),
                        "tags": features.Sequence(features.Text()),
                    },
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 100), "test": self._generate_examples(100, 130)}

    def _generate_examples(self, start, stop):
        for n in range(start, stop):
            file = io.BytesIO()
            image.fromarray(example_of(n)["image"]).save(file, "png")
            file.seek(0)
            yield f"{n:05}", {**example_of(n), "image": file}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="module")
def builder(folder):
    made = Tiny(data_dir=str(folder), file_format="array_record")
    made.download_and_prepare()
    return made


def check(example):
    expected = example_of(int(example["n"]))
    assert (example["user"], example["label"]) == (expected["user"], expected["label"])
    for name in ("tensor", "tokens", "image"):
        np.testing.assert_array_equal(example[name], expected[name])
        assert example[name].dtype == expected[name].dtype
    assert example["flag"] == expected["flag"]
    meta = example["meta"]
    assert (meta["title"], meta["tags"]) == (expected["meta"]["title"], expected["meta"]["tags"])
    parts = expected["meta"]["parts"]
    assert meta["parts"] == {key: [part[key] for part in parts] for key in ("name", "size")}


def test_examples_keep_their_values_and_types(tmp_path, builder):
    source = data.TfdsSource(builder, split="train")
    assert source.total() == 100
    dataset = data.group(source, by="user", out=tmp_path / "out")
    numbers = {group.id: sorted(int(e["n"]) for e in group) for group in dataset}
    assert numbers == {f"usér {k}": list(range(k, 100, 7)) for k in range(7)}
    # TFDS shuffles on writing; grouping keeps its order.
    order = [int(example["n"]) for example in builder.as_data_source("train")]
    assert [int(e["n"]) for e in dataset.group("usér 2")] == [n for n in order if n % 7 == 2]
    for group in dataset:
        for example in group:
            check(example)
    assert dataset.schema.field("user").type == pa.string()
    assert dataset.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), (4, 5, 3))
    assert dataset.manifest["source"] == {"kind": "tfds", "name": "tiny/1.0.0", "split": "train"}


def test_a_part_of_a_split_and_encoded_images(tmp_path, builder):
    skip = {"image": tfds.decode.SkipDecoding()}
    source = data.TfdsSource(builder, split="test[:10]", decoders=skip)
    dataset = data.group(source, by="label", out=tmp_path / "out")
    assert dataset.num_examples == 10
    for group in dataset:
        for example in group:
            decoded = np.asarray(image.open(io.BytesIO(example["image"])))
            check({**example, "image": decoded})


def test_by_name_and_from_its_folder(tmp_path, builder, folder):
    by_name = data.TfdsSource("tiny", split="test", data_dir=folder)
    read_only = data.TfdsSource(tfds.builder_from_directory(builder.data_dir), split="test")
    once_more = pickle.loads(pickle.dumps(read_only))
    for number, source in enumerate((by_name, read_only, once_more)):
        dataset = data.group(source, by="label", out=tmp_path / f"{number}")
        found = sorted(int(example["n"]) for group in dataset for example in group)
        assert found == list(range(100, 130))


def test_what_cannot_be_opened_is_named(tmp_path, builder):
    with pytest.raises(TypeError, match=r"fx\.data\.TfdsSource\(builder, split='train'\)"):
        data.group(builder, by="user", out=tmp_path / "out")
    with pytest.raises(ValueError, match=r"'validation' of tiny/1\.0\.0 .*\['train', 'test'\]"):
        data.TfdsSource(builder, split="validation")
    unprepared = Tiny(data_dir=str(tmp_path), file_format="array_record")
    with pytest.raises(ValueError, match=r"tiny/1\.0\.0 cannot be opened.*download_and_prepare"):
        data.TfdsSource(unprepared, split="train")


def test_a_problem_names_the_record(tmp_path, builder):
    first = int(builder.as_data_source("train")[40]["n"])
    source = data.TfdsSource(builder, split="train")
    with pytest.raises(data.PartitionError, match=r"^record 40: "):
        data.group(source, by=lambda e: None if e["n"] == first else 1, out=tmp_path / "out")


def test_the_command(tmp_path, builder, folder, capsys):
    source = f"tfds:tiny,split=test,data_dir={folder}"
    out = str(tmp_path / "out")
    assert main(["group", source, "--by", "label", "--out", out, "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("3 groups, 30 examples, ")
