"""The picture is a picture, and without Matplotlib the error names the extra."""

import struct
import sys

import pytest

from fedeqx.training import plot_run


def test_a_png_of_the_stated_size(tmp_path):
    path = tmp_path / "run.png"
    plot_run(
        path,
        losses={"FedAvg": [3.0, 2.0, 1.0], "FedSGD": [3.0, 2.5, 2.0]},
        personalization={"FedAvg": ([2.0, 3.0], [1.0, 2.0]), "FedSGD": ([2.0], [2.0])},
    )
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24]) == (1320, 504)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"fedeqx\[plot\]"):
        plot_run(tmp_path / "run.png", losses={}, personalization={})
    assert not list(tmp_path.iterdir())
