"""Verification: a sound data set passes, and every kind of damage is named."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedeqx.data as data


@pytest.fixture
def folder(tmp_path):
    records = [{"g": f"g{n % 50:02d}", "n": n, "t": "w " * (n % 9)} for n in range(2000)]
    out = tmp_path / "out"
    data.group(records, by="g", out=out, row_group_bytes=2_000, shard_bytes=9_000)
    return out


def rewrite(folder, name, change):
    """Change a shard's rows, and its checksum, so that only its content can tell."""
    import hashlib

    table = change(pq.read_table(folder / name))
    pq.write_table(table, folder / name, row_group_size=40)
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        if shard["file"] == name:
            shard["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))


def change_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def test_a_sound_data_set(folder):
    found = data.verify(folder)
    assert found.ok
    assert (found.groups, found.examples, found.problems) == (50, 2000, [])


@pytest.mark.parametrize("ids", [[7, "7", b"7", -1, ""], [b"\xff", b"", b"a"], [3, -3, 2**40]])
def test_other_kinds_of_ids(tmp_path, ids):
    records = [{"n": n} for n in range(60)]
    data.group(records, by=lambda e: ids[e["n"] % len(ids)], out=tmp_path / "out")
    assert data.verify(tmp_path / "out").ok


def test_skipped_examples_are_accounted_for(tmp_path):
    records = [{"n": n or None} for n in range(60)]
    data.group(records, by="n", out=tmp_path / "out", on_error="skip")
    assert data.verify(tmp_path / "out").ok
    change_manifest(tmp_path / "out", examples_in=61)
    assert (
        "Of 61 examples that went in, 59 came out and 1"
        in data.verify(tmp_path / "out").problems[0]
    )


DAMAGE = {
    "a bit of a shard": (
        lambda folder: flip(folder / "groups-00001.parquet"),
        r"groups-00001\.parquet is damaged: its SHA-256",
    ),
    "a bit of the index": (lambda folder: flip(folder / "index.arrow"), r"index\.arrow is damaged"),
    "a missing shard": (
        lambda folder: (folder / "groups-00002.parquet").unlink(),
        r"groups-00002\.parquet cannot be read",
    ),
    "a cut shard": (
        lambda folder: (folder / "groups-00001.parquet").write_bytes(
            (folder / "groups-00001.parquet").read_bytes()[:500]
        ),
        r"groups-00001\.parquet is damaged",
    ),
    "a missing index": (lambda folder: (folder / "index.arrow").unlink(), r"index\.arrow cannot"),
    "lost rows": (
        lambda folder: rewrite(folder, "groups-00001.parquet", lambda t: t.slice(1)),
        r"groups-00001\.parquet has \d+ rows, not|The index says",
    ),
    "another order": (
        lambda folder: rewrite(
            folder,
            "groups-00001.parquet",
            lambda t: t.take(pa.array(np.arange(t.num_rows)[::-1].copy())),
        ),
        "comes after a later id: wrong order",
    ),
    "another value": (
        lambda folder: rewrite(
            folder,
            "groups-00001.parquet",
            lambda t: t.set_column(3, "t", pa.array(["other"] * t.num_rows)),
        ),
        r"The index says _Run.*and the shards hold",
    ),
    "a wrong count": (
        lambda folder: change_manifest(folder, num_groups=51),
        "The manifest says num_groups=51; the shards hold 50",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(folder, kind):
    damage, message = DAMAGE[kind]
    damage(folder)
    found = data.verify(folder)
    assert not found.ok
    assert any(re.search(message, problem) for problem in found.problems), found.problems


def test_without_a_manifest_there_is_nothing_to_check(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(data.DatasetFormatError, match=r"manifest\.json"):
        data.verify(folder)
