"""The layout explains itself: who may import whom, and alphabetical order is the data's way."""

import ast
from pathlib import Path

import pytest

import fedeqx

ROOT = Path(fedeqx.__file__).parent

ALLOWED = {
    "data": set(),
    "federated": set(),
    "learning": {"federated"},
    "nn": set(),
    "training": {"data", "federated", "learning", "nn"},
    "cli": {"data", "federated", "learning", "nn", "training"},
}


def imported_folders(path: Path, root: Path) -> set[str]:
    """The top-level folders of the package that a file imports, in any form and at any depth."""
    package = ("fedeqx", *path.relative_to(root).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            modules = [[*base, alias.name] for alias in node.names]
        else:
            continue
        found |= {parts[1] for parts in modules if parts[0] == "fedeqx" and len(parts) > 1}
    return found


def test_folders_are_the_known_ones():
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == set(ALLOWED)


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_comes_before_it(folder):
    for path in (ROOT / folder).rglob("*.py"):
        others = imported_folders(path, ROOT) - {folder}
        assert others <= ALLOWED[folder], f"{path.relative_to(ROOT)} imports {others}"


def test_the_way_of_the_data_is_alphabetical():
    way = [name for name in ALLOWED if name != "cli"]
    assert way == sorted(way)
    for i, name in enumerate(way):
        assert ALLOWED[name] <= set(way[:i])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from ..learning import FedAvg", {"learning"}),
        ("from .. import nn", {"nn"}),
        ("import fedeqx.training", {"training"}),
        ("from fedeqx.cli import main", {"cli"}),
        ("def f():\n    from ..data import open", {"data"}),
        ("from ._x import y\nimport os", {"federated"}),
    ],
)
def test_the_check_sees_every_form_of_import(tmp_path, text, found):
    folder = tmp_path / "federated"
    folder.mkdir()
    (folder / "_a.py").write_text(text)
    assert imported_folders(folder / "_a.py", tmp_path) == found


def test_files_stay_readable():
    for path in ROOT.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path
