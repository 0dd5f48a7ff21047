"""Without its package, what needs an extra names it."""

import sys

import pytest

import fedeqx.data as data
from fedeqx.data._stores import file_system

NEEDS = {
    "apache_beam": (
        lambda out: data.group_with_beam([{"g": 1, "n": 1}], by="g", out=out),
        r"group_with_beam needs the package apache-beam: pip install 'fedeqx\[beam\]'",
    ),
    "fsspec.core": (
        lambda out: file_system("gs://bucket/*.parquet"),
        r"gs://bucket/\*\.parquet needs the package fsspec: pip install 'fedeqx\[beam\]'",
    ),
    "datasets": (
        lambda out: data.HuggingFaceSource.load("allenai/c4", "en", split="train"),
        r"needs the package datasets: pip install 'fedeqx\[hf\]'",
    ),
    "tensorflow_datasets": (
        lambda out: data.TfdsSource("mnist", split="train"),
        r"needs the package tensorflow-datasets: pip install 'fedeqx\[tfds\]'",
    ),
    "array_record.python.array_record_module": (
        lambda out: data.ArrayRecordSource(["a.array_record"]),
        r"a\.array_record needs the package array-record: pip install 'fedeqx\[tfds\]'",
    ),
}


@pytest.mark.parametrize("module", NEEDS)
def test_the_error_names_the_extra(tmp_path, monkeypatch, module):
    call, message = NEEDS[module]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=message):
        call(tmp_path / "out")
    assert not list(tmp_path.iterdir())
