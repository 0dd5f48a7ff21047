"""The examples for other frameworks, each in a process of its own, where the framework is there."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import fedeqx.data as data

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "huggingface": "datasets"}


def test_every_framework_of_an_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("interop_*.py")} == {
        f"interop_{name}" for name in FRAMEWORKS
    }


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_it_reads_every_group_in_the_order_of_the_stream(tmp_path, name):
    if importlib.util.find_spec(FRAMEWORKS[name]) is None:
        pytest.skip(f"{FRAMEWORKS[name]} is not installed")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"interop_{name}.py")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    records = [{"user": f"user-{i % 5}", "number": i, "text": "hello " * i} for i in range(40)]
    dataset = data.group(records, by="user", out=tmp_path / "grouped")
    order = [group.id for group in dataset.stream(seed=1)]
    assert lines["groups"] == " ".join(str((group_id, 8)) for group_id in order)
    by_group = {group_id: range(int(str(group_id)[-1]), 40, 5) for group_id in order}
    expected = [[*by_group[group_id]] for group_id in order]
    numbers = [int(number) for number in lines["examples"].split()]
    if name == "torch":
        # Two workers in turn, a batch of one group each: the groups of each in their order.
        assert sorted(numbers) == list(range(40))
        batches = [numbers[start : start + 8] for start in range(0, 40, 8)]
        assert all(batch in expected for batch in batches)
    else:
        assert numbers == [number for group in expected for number in group]
