"""`fedeqx stats` and `fedeqx verify`."""

import csv
import re
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedeqx.data as data
from fedeqx.cli import main

ROWS = [
    {"g": f"g{n % 7 if n % 3 else 0}", "y": (n * n) % 5, "t": "word " * (n % 11)}
    for n in range(7000)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("stats") / "out"
    data.group(ROWS, by="g", out=out, shard_bytes=20_000, row_group_bytes=2_000)
    return out


def cells(text, first):
    """The cells of the line of a table that begins with this word."""
    line = next(line for line in text.splitlines() if line.startswith(first + " "))
    return re.split(r"  +", line.strip())


def test_the_table_of_sizes(folder, capsys):
    assert main(["stats", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{folder}: 7 groups\n")
    head = ["total", "mean", *(f"p{p}" for p in (0, 1, 10, 25, 50, 75, 90, 99, 100))]
    assert cells(out, "per group") == ["per group", *head]
    sizes = list(Counter(row["g"] for row in ROWS).values())
    row = [float(cell.replace(",", "")) for cell in cells(out, "examples")[1:]]
    expected = [7000, 1000, *np.percentile(sizes, [0, 1, 10, 25, 50, 75, 90, 99, 100])]
    np.testing.assert_allclose(row, expected, atol=0.05)
    words = sum(1 + row["t"].count("word") for row in ROWS)
    assert cells(out, "words")[1] == f"{words:,}"


def test_the_label_skew(folder, capsys):
    assert main(["stats", str(folder), "--label", "y"]) == 0
    out = capsys.readouterr().out
    counts = Counter(row["y"] for row in ROWS)
    assert f"\ny: {len(counts)} labels\n" in out
    shares = [cells(out, str(label)) for label, _ in counts.most_common()]
    assert shares == [[str(label), f"{count / 7000:.1%}"] for label, count in counts.most_common()]
    skew = data.label_skew(data.open(folder), "y")
    median = float(cells(out, "distance from all groups")[6])
    assert median == pytest.approx(np.median(skew.distances), abs=6e-4)
    assert cells(out, "labels")[-1] == str(skew.num_labels.max())
    assert main(["stats", str(folder), "--label", "z"]) == 1
    assert re.fullmatch(r"fedeqx: label_skew\(label='z'\): .*\n", capsys.readouterr().err)


def test_counts_of_every_group(folder, tmp_path, capsys):
    files = ["--csv", str(tmp_path / "a.csv"), "--parquet", str(tmp_path / "a.parquet")]
    assert main(["stats", str(folder), *files]) == 0
    expected = {name: Counter(row["g"] for row in ROWS)[name] for name in data.open(folder).ids()}
    with (tmp_path / "a.csv").open() as file:
        assert {row["group_id"]: int(row["examples"]) for row in csv.DictReader(file)} == expected
    assert pq.read_table(tmp_path / "a.parquet")["examples"].to_pylist() == [*expected.values()]
    assert main(["stats", str(folder), str(folder), *files]) == 1
    assert "one DIR" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["stats", str(folder), "--csv", "a.txt"])
    assert stopped.value.code == 2
    assert "a.txt: the name must end in .csv" in capsys.readouterr().err


def test_the_plot(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file = tmp_path / "sizes.png"
    other = data.group(ROWS, by="y", out=tmp_path / "other").path
    assert main(["stats", str(folder), str(other), "--plot", str(file), "--of", "bytes"]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert f"{folder}: 7 groups" in out
    assert f"\n\n{other}: 3 groups" in out


def test_a_plot_without_matplotlib_names_the_extra(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert main(["stats", str(folder), "--plot", str(tmp_path / "a.png")]) == 1
    assert "fedeqx[plot]" in capsys.readouterr().err


def test_a_sound_data_set_verifies(folder, capsys):
    assert main(["verify", str(folder)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{folder} is sound: 7 groups, 7,000 examples\n"
    assert told.err == ""


def test_a_damaged_shard_is_named(tmp_path, capsys):
    out = tmp_path / "out"
    data.group(ROWS, by="g", out=out, shard_bytes=20_000, row_group_bytes=2_000)
    for name in ("groups-00001.parquet", "groups-00003.parquet"):
        content = bytearray((out / name).read_bytes())
        content[len(content) // 2] ^= 4
        (out / name).write_bytes(bytes(content))
    assert main(["verify", str(out)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert re.findall(r"groups-\d+", told.err) == ["groups-00001", "groups-00003"]
    assert all(line.startswith(f"fedeqx: {out}: ") for line in told.err.splitlines())


@pytest.mark.parametrize("command", ["stats", "verify"])
@pytest.mark.parametrize("kind", ["nothing", "a file", "an empty folder", "a broken manifest"])
def test_what_is_no_data_set_is_told_on_one_line(tmp_path, capsys, command, kind):
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("x")
    elif kind != "nothing":
        place.mkdir()
        if kind == "a broken manifest":
            (place / "manifest.json").write_text("{")
    assert main([command, str(place)]) == 1
    assert re.fullmatch(rf"fedeqx: .*{place}.*\n", capsys.readouterr().err)
