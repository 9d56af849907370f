"""The site that `make docs` builds: built once, and looked at from outside."""

import html
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import click
import pytest

import pucache
from pucache.cli.main import main

pytestmark = pytest.mark.slow  # the site is built, which takes a minute
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FLAGS = re.search(r"sphinx-build (.+) docs docs/", (ROOT / "Makefile").read_text())[1].split()
VERBS = [None, *main.commands]


# --- the site ----------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page loads, and its text."""

    def __init__(self, path):
        super().__init__()
        self.loaded = []
        self.markup = path.read_text()
        self.feed(self.markup)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        loaded = values.get("src") if tag in ("img", "script") else values.get("href") if tag == "link" else None
        if loaded and values.get("rel") not in ("index", "search", "next", "prev"):
            self.loaded.append(loaded)

    @property
    def text(self):
        """All words of the page, a space between any two."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", "", self.markup)).split())


class Site(NamedTuple):
    """The folder that was built, its pages by path, and its inventory: names by kind."""

    folder: Path
    pages: dict[Path, Page]
    inventory: dict[str, set[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build as `make docs` does, where nothing can be fetched."""
    pytest.importorskip("sphinx", reason="no sphinx; install pucache[test]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", *FLAGS, "-d", folder / "doctrees", DOCS, folder / "html"]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environ = {**os.environ, **nowhere, "OMP_NUM_THREADS": "1"}
    return folder / "html", subprocess.run(command, capture_output=True, text=True, env=environ)


@pytest.fixture(scope="module")
def site(built):
    folder, ended = built
    assert (folder / "objects.inv").is_file(), ended.stderr
    pages = {path: Page(path) for path in folder.rglob("*.html")}
    stored = (folder / "objects.inv").read_bytes().split(b"\n", 4)[4]
    inventory = {}
    for line in zlib.decompress(stored).decode().splitlines():
        name, kind = re.match(r"(.+?) (\S+:\S+) ", line).groups()
        inventory.setdefault(kind, set()).add(name)
    return Site(folder, pages, inventory)


def test_the_site_builds_without_a_warning(built):
    _, ended = built
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert {"-n", "-W", "--keep-going"} <= set(FLAGS), "strict, and all warnings at once"


def test_every_picture_style_and_script_is_there_and_nothing_comes_from_elsewhere(site):
    wrong = [
        (path.name, loaded)
        for path, page in site.pages.items()
        for loaded in page.loaded
        if not loaded.startswith("data:") and not (path.parent / unquote(urlsplit(loaded).path)).is_file()
    ]
    assert not wrong
    assert sum("_images/" in loaded for page in site.pages.values() for loaded in page.loaded) > 10


# --- commands ----------------------------------------------------------------------------------


def command_page(site):
    return site.pages[site.folder / "reference/commands.html"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_command_is_on_the_page_with_its_help(site, verb):
    command, program = (main.commands[verb], f"pucache-{verb}") if verb else (main, "pucache")
    text = command_page(site).text
    for option in (one for one in command.get_params(click.Context(command)) if isinstance(one, click.Option)):
        assert len(option.help or "") > 5, option.name
        for spelled in {*option.opts, *option.secondary_opts} - {"-h"}:
            assert f"{program}.{spelled}" in site.inventory["std:cmdoption"], spelled
        help = option.help.partition("  [default")[0].replace("`", "")
        assert " ".join(help.split()) in text, option.name


# --- Python ------------------------------------------------------------------------------------


def test_every_exported_name_is_documented_under_the_name_it_is_imported_by(site):
    exported = {f"pucache.{name}" for name in pucache.__all__ if not name.startswith("_")}
    kinds = ("py:class", "py:exception", "py:function")
    assert len(exported) > 5 and exported <= {name for kind in kinds for name in site.inventory.get(kind, ())}
