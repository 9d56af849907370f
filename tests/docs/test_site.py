"""The site that `make docs` builds: built once, and looked at from outside."""

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import click
import pytest

import pucache
from pucache.cli.main import main

pytestmark = pytest.mark.slow  # the site is built, which takes a minute
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FLAGS = re.search(r"sphinx-build (.+) docs docs/", (ROOT / "Makefile").read_text())[1].split()


# --- the site ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build as `make docs` does, where nothing can be fetched."""
    pytest.importorskip("sphinx", reason="no sphinx; pip install -e '.[test]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", *FLAGS, "-d", folder / "doctrees", DOCS, folder / "html"]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environ = {**os.environ, **nowhere, "OMP_NUM_THREADS": "1"}
    return folder / "html", subprocess.run(command, capture_output=True, text=True, env=environ)


@pytest.fixture(scope="module")
def inventory(built):
    """What the site has, names by kind."""
    folder, ended = built
    assert (folder / "objects.inv").is_file(), ended.stderr
    stored = (folder / "objects.inv").read_bytes().split(b"\n", 4)[4]
    found = {}
    for line in zlib.decompress(stored).decode().splitlines():
        name, kind = re.match(r"(.+?) (\S+:\S+) ", line).groups()
        found.setdefault(kind, set()).add(name)
    return found


def test_the_site_builds_without_a_warning(built):
    _, ended = built
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert {"-n", "-W", "--keep-going"} <= set(FLAGS), "strict, and all warnings at once"


# --- commands ----------------------------------------------------------------------------------


def test_every_option_of_every_command_is_on_the_page(inventory):
    for verb in main.commands:
        for option in (one for one in main.commands[verb].params if isinstance(one, click.Option)):
            spelled = {f"pucache-{verb}.{name}" for name in (*option.opts, *option.secondary_opts)}
            assert spelled <= inventory["std:cmdoption"], verb


# --- Python ------------------------------------------------------------------------------------


def test_every_exported_name_is_documented_under_the_name_it_is_imported_by(inventory):
    exported = {f"pucache.{name}" for name in pucache.__all__ if not name.startswith("_")}
    kinds = ("py:class", "py:exception", "py:function")
    assert len(exported) > 5 and exported <= {name for kind in kinds for name in inventory.get(kind, ())}
