"""The layout of the library: which package may import which, and where each large dependency is used."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pucache"
OWNERS = {
    "faiss": "neighbours",
    "h5py": "cache/hdf5.py",
    "ray": "scaling",
    "sqlite3": "reviewing/log.py",
    "timm": "encoders",
}


@functools.cache
def imported(path):
    """Top-level names that a module imports, in functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.slow
def test_the_import_contract_holds():
    linter = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("dependency", OWNERS)
def test_one_package_uses_each_large_dependency(dependency):
    users = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if dependency in imported(path)]
    assert users
    assert not [str(path) for path in users if not path.is_relative_to(OWNERS[dependency])]


def test_opening_a_package_imports_nothing():
    """Other tests cover `pucache` itself."""
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent == PACKAGE:
            continue
        statements = ast.parse(path.read_text()).body
        assert not statements or (len(statements) == 1 and ast.get_docstring(ast.parse(path.read_text()))), path
