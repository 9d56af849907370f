"""The layout of the library: which package may import which, and where each large dependency is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pucache"


@pytest.mark.slow
def test_the_import_contract_holds():
    linter = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_opening_a_package_imports_nothing():
    """Other tests cover `pucache` itself."""
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent == PACKAGE:
            continue
        statements = ast.parse(path.read_text()).body
        assert not statements or (len(statements) == 1 and ast.get_docstring(ast.parse(path.read_text()))), path
