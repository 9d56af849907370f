"""Finds `pucache.cli` in a checkout that is not installed.

There the command line lies in the folder ``cli``, which only an installation maps to `pucache.cli`. Importing this
module maps it, and `environment` lets processes started later do so.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = Path(__file__).with_name("start")  # its sitecustomize.py imports this module


class CommandLine(MetaPathFinder):
    """Maps `pucache.cli` to the folder ``cli``, as setup.py does."""

    def find_spec(self, name, path=None, target=None):
        if name != "pucache.cli":
            return None
        folder = ROOT / "cli"
        return spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])


def environment() -> dict[str, str]:
    """Variables of a process that shall find pucache, its command line, and the helpers of the tests."""
    paths = [START, ROOT, ROOT / "tests", *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


if not any(isinstance(finder, CommandLine) for finder in sys.meta_path):
    sys.meta_path.insert(0, CommandLine())  # first: an installation may be of another checkout
