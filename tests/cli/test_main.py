"""The command line as a user meets it: a process, its streams and its exit status."""

import subprocess
import sys
from importlib.metadata import version

import pytest


def fedeqx(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "fedeqx.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_version():
    assert fedeqx("--version").stdout == f"fedeqx {version('fedeqx')}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_the_commands(arguments):
    result = fedeqx(*arguments)
    assert result.returncode == 0
    assert "demo" in result.stdout


def test_help_of_a_command_names_its_options():
    text = fedeqx("demo", "--help").stdout
    for option in ("--out", "--rounds", "--seed", "--quick"):
        assert option in text


@pytest.mark.parametrize(
    "arguments", [("fly",), ("demo", "--rounds", "0"), ("demo", "--rounds", "x"), ("demo", "--x")]
)
def test_unusable_arguments(arguments):
    result = fedeqx(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("usage: fedeqx")
    assert "Traceback" not in result.stderr


def test_an_occupied_folder_is_an_error_not_a_traceback(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    result = fedeqx("demo", "--quick", "--out", str(tmp_path))
    assert result.returncode == 1
    assert "holds no run" in result.stderr
    assert "Traceback" not in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
