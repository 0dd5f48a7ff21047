"""The standard library as a source, and folders of text files."""

import sysconfig
from pathlib import Path

import pytest

import fedeqx.data as data


def test_the_library_of_this_python(tmp_path):
    source = data.python_stdlib()
    dataset = data.group(source, by=data.stdlib_package, out=tmp_path / "out")
    assert 100 < dataset.num_groups < 1000
    for name in ("json", "abc", "collections", "argparse"):
        assert name in dataset
    root = Path(sysconfig.get_path("stdlib"))
    texts = {example["path"]: example["text"] for example in dataset.group("json")}
    assert set(texts) == {f"json/{file.name}" for file in (root / "json").glob("*.py")}
    assert texts["json/decoder.py"] == (root / "json/decoder.py").read_text(encoding="utf-8")
    paths = [example["path"] for group in dataset for example in group]
    files = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        if not {"site-packages", "dist-packages", "__pycache__"} & set(file.parts)
    }
    skipped = {item["where"] for item in dataset.manifest["skipped"]}
    assert len(paths) == len(set(paths))
    assert set(paths) | skipped == files
    assert not set(paths) & skipped
    assert dataset.manifest["num_skipped"] == len(skipped) == len(source.skipped)


def test_declared_encodings_are_obeyed_and_undecodable_files_are_listed(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "latin.py").write_bytes(b"# coding: latin-1\ns = '\xe9'\n")
    (tmp_path / "pkg" / "bom.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    (tmp_path / "bad.py").write_bytes(b"s = '\xff'\n")
    (tmp_path / "odd.py").write_bytes(b"# coding: no-such\n")
    (tmp_path / "note.txt").write_bytes(b"\xff")
    for folder in ("__pycache__", "site-packages", "dist-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x = 1\n")
    source = data.python_stdlib(tmp_path)
    examples = list(source)
    assert examples == [
        {"path": "pkg/bom.py", "text": "x = 1\n"},
        {"path": "pkg/latin.py", "text": "# coding: latin-1\ns = 'é'\n"},
    ]
    assert [skipped.where for skipped in source.skipped] == ["bad.py", "odd.py"]
    assert list(source) == examples
    assert len(source.skipped) == 2


def test_the_partition_function():
    for path, name in {"json/decoder.py": "json", "abc.py": "abc", "a/b/c.py": "a"}.items():
        assert data.stdlib_package({"path": path}) == name


def test_a_folder_of_text(tmp_path):
    for name in ("b/two.txt", "a.txt", "b/one.md", "b/c/three.txt"):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text of {name}\r\n", newline="")
    dataset = data.group(
        tmp_path / "in", by=lambda e: e["path"].rpartition("/")[0], out=tmp_path / "out"
    )
    assert list(dataset.ids()) == ["", "b", "b/c"]
    assert [e["path"] for e in dataset.group("b")] == ["b/one.md", "b/two.txt"]
    assert next(iter(dataset.group("")))["text"] == "text of a.txt\r\n"
    only = data.TextFolderSource(tmp_path / "in", suffixes=(".md",))
    assert [e["path"] for e in only] == ["b/one.md"]


def test_an_undecodable_file_is_named(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.txt").write_bytes(b"\xff")
    (tmp_path / "in" / "good.txt").write_text("x")
    with pytest.raises(data.SourceError, match=r"bad\.txt cannot be read.*on_error='skip'"):
        data.group(tmp_path / "in", by="path", out=tmp_path / "out")
    with pytest.raises(ValueError, match="on_error is 'ignore'"):
        data.TextFolderSource(tmp_path / "in", on_error="ignore")
    source = data.TextFolderSource(tmp_path / "in", on_error="skip")
    dataset = data.group(source, by="path", out=tmp_path / "out")
    assert list(dataset.ids()) == ["good.txt"]
    assert dataset.manifest["num_skipped"] == 1
    assert dataset.manifest["skipped"][0]["where"] == "bad.txt"


def test_a_python_without_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "lib.zip"))
    with pytest.raises(FileNotFoundError, match="no standard-library source files"):
        data.python_stdlib()
