"""The layout of the library; lint-imports, which `make test` runs, checks which package may import which."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pucache"


def test_opening_a_package_imports_nothing():
    """Other tests cover `pucache` itself."""
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent == PACKAGE:
            continue
        statements = ast.parse(path.read_text()).body
        assert not statements or (len(statements) == 1 and ast.get_docstring(ast.parse(path.read_text()))), path
