"""The data package imports no JAX, so that worker processes start fast and stay safe."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedeqx.data

FOLDER = Path(fedeqx.data.__file__).parent

# fedeqx itself is JAX's language: a stand-in for it lets the data package be imported alone.
CODE = """
import sys, types
package = types.ModuleType("fedeqx")
package.__path__ = [{parent!r}]
sys.modules["fedeqx"] = package
import fedeqx.data as data
dataset = data.group([{{"g": n % 3, "text": "text " * n}} for n in range(30)], by="g", out={out!r})
parts = data.open({out!r}).split_groups({{"a": 0.5, "b": 0.5}}, seed=0)
cohort = data.cohorts(dataset, size=2, steps=1, batch_size=1, sequence_length=4, seed=0)[0]
assert cohort.num_examples.tolist() == [1, 1], cohort
found = sorted(name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib", "equinox"))
assert not found, found
"""


def test_grouping_reading_and_cohorts_load_no_jax(tmp_path):
    code = CODE.format(parent=str(FOLDER.parent), out=str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.name)
def test_no_file_imports_jax_or_a_sibling(file):
    allowed_relative = 1 + len(file.relative_to(FOLDER).parts) - 1
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= allowed_relative
            modules = [] if node.level else [node.module or ""]
        else:
            continue
        roots = {module.split(".")[0] for module in modules}
        assert not roots & {"jax", "jaxlib", "equinox", "optax", "fedeqx"}
