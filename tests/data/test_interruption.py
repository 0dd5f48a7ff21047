"""Grouping that is killed or interrupted at any moment, and what the next run makes of it."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

import fedeqx.data as data

# A process that groups, and waits at a moment that it is told by the name of what it is about to
# do: it prints "here", and goes on when a line comes in.
CODE = """
import pathlib, shutil, signal, sys
import fedeqx.data as data
from fedeqx.data import _appearing, _grouping, _sorting

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
out, moment, overwrite = sys.argv[1], sys.argv[2], sys.argv[3] == "overwrite"

def wait():
    print("here", flush=True)
    sys.stdin.readline()

def before(place, name, moment_of_it, only=lambda *arguments: True):
    original = getattr(place, name)
    def waiting(*arguments, **options):
        if moment == moment_of_it and only(*arguments):
            wait()
        return original(*arguments, **options)
    setattr(place, name, waiting)

before(_appearing, "_lock", "lock")
before(_sorting, "_write_run", "spill")
before(_grouping, "write_manifest", "manifest")
before(pathlib.Path, "rename", "move the old away", lambda path, to: "replaced" in to.name)
before(pathlib.Path, "rename", "take the name", lambda path, to: to.name == "out")
before(_appearing, "_remove", "remove the old")

def records():
    for n in range(20_000):
        if moment == "read" and n == 10_000:
            wait()
        yield {"g": n % 100, "t": "x" * 900}

def tell(progress):
    if moment == "write" and progress.stage == "write":
        wait()

data.group(records(), by="g", out=out, memory_limit="32MiB", overwrite=overwrite, progress=tell)
print("done", flush=True)
"""
MOMENTS = ["lock", "read", "spill", "write", "manifest", "take the name"]
REPLACING = ["manifest", "move the old away", "take the name", "remove the old"]


def start(out, moment, how="new"):
    """A process that has come to this moment."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(out), moment, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n", process.communicate()[1]
    return process


def go_on(process):
    output, errors = process.communicate("\n" * 10, timeout=120)
    return output.replace("here\n", ""), errors


def end(process, number=signal.SIGKILL):
    os.kill(process.pid, number)
    return process.communicate(timeout=60)[1]


def group(out, **options):
    return data.group([{"g": "new", "t": "y"}], by="g", out=out, **options)


def opened(folder):
    """What opens as a data set, of all that there is in a folder, by name."""
    found = {}
    for path in folder.iterdir():
        with contextlib.suppress(data.DatasetFormatError):
            found[path.name] = list(data.open(path).ids())
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_leaves_no_data_set_and_the_next_one_starts_clean(tmp_path, moment):
    out = tmp_path / "out"
    end(start(out, moment))
    assert not out.exists()
    assert [path.name.startswith(".out.building-") for path in tmp_path.iterdir()] == [True]
    if moment != "take the name":
        assert opened(tmp_path) == {}
    group(out)
    assert opened(tmp_path) == {"out": ["new"]}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert data.verify(out).ok


@pytest.mark.parametrize("moment", ["read", "spill", "write", "manifest", "take the name"])
def test_an_interrupted_run_leaves_nothing(tmp_path, moment):
    errors = end(start(tmp_path / "out", moment), signal.SIGINT)
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", REPLACING)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_the_old_data_set_is_kept_until_the_new_one_is_in_its_place(tmp_path, moment, number):
    out = tmp_path / "out"
    data.group([{"g": "old", "t": "y"}], by="g", out=out)
    end(start(out, moment, "overwrite"), number)
    finished = moment == "remove the old"
    if number == signal.SIGINT:
        assert opened(tmp_path)["out"] == (list(range(100)) if finished else ["old"])
    # The next run sees one of the two, whichever was whole, and refuses to replace it unasked.
    with pytest.raises(FileExistsError, match="overwrite=True"):
        group(out)
    assert opened(tmp_path) == {"out": list(range(100)) if finished else ["old"]}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    group(out, overwrite=True)
    assert opened(tmp_path) == {"out": ["new"]}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("moment", ["read", "write", "take the name"])
def test_a_run_that_lives_keeps_its_files_and_says_that_it_comes_second(tmp_path, moment):
    out = tmp_path / "out"
    process = start(out, moment)
    before = {path.name for path in tmp_path.iterdir()}
    group(out)
    assert {path.name for path in tmp_path.iterdir()} == before | {"out"}
    _, errors = go_on(process)
    assert process.returncode == 1
    assert "FileExistsError" in errors
    assert opened(tmp_path) == {"out": ["new"]}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_that_lives_is_not_disturbed_while_it_replaces(tmp_path):
    out = tmp_path / "out"
    data.group([{"g": "old", "t": "y"}], by="g", out=out)
    process = start(out, "take the name", "overwrite")
    # The name is free for a moment, and the old data set belongs to the other run.
    group(tmp_path / "other")
    from fedeqx.data._appearing import _clear

    _clear(out)
    assert not out.exists()
    assert go_on(process)[0] == "done\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]
    assert len(data.open(out)) == 100


def test_a_folder_taken_for_a_dead_ones_is_given_up(tmp_path, monkeypatch):
    from fedeqx.data import _appearing

    lock = _appearing._lock
    seen = []

    def stolen(folder):
        # Another process clears up between the making of the folder and its lock.
        seen.append(folder)
        if len(seen) == 1:
            folder.rmdir()
        if len(seen) == 2:
            folder.rmdir()
            folder.mkdir()
            held = lock(folder)
            folder.rmdir()
            folder.mkdir()
            return held
        return lock(folder)

    monkeypatch.setattr(_appearing, "_lock", stolen)
    assert list(group(tmp_path / "out").ids()) == ["new"]
    assert len(seen) == 3


def test_names_are_not_mixed_up(tmp_path):
    end(start(tmp_path / "out", "read"))
    for name in ("ou", "out.building", "o*t", "[out]"):
        group(tmp_path / name)
    assert sum(path.name.startswith(".out.building-") for path in tmp_path.iterdir()) == 1


def test_where_folders_cannot_be_locked_nothing_is_removed(tmp_path, monkeypatch):
    from fedeqx.data import _appearing

    def no_locks(*_):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(_appearing.fcntl, "flock", no_locks)
    (tmp_path / ".out.building-00").mkdir()
    group(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.building-00", "out"]
