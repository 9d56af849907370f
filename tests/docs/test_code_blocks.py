"""Every code block of every page and of README.md: run in the order of the page, or marked, counted and parsed."""

import ast
import csv
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from helpers.code_blocks import (
    PAGES,
    ROOT,
    arguments_within,
    blocks,
    commands,
    indented,
    name,
    parse,
    plain,
    sessions,
    words,
)
from helpers.demo_images import demo_images
from PIL import Image

from pucache import EmbeddingCache, demonstration
from pucache.cli.main import main
from pucache.encoders import encoder
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.session import open_session
from pucache.reviewing.state import Proposal

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = [block for page in PAGES for block in blocks(page)]
LANGUAGES = {"sh", "console", "python", "text", "yaml"}
RUNS = ("sh", "console", "python")
MARK = r"not run: [\w ]+; parsed only|runs in: (.+)"  # what a block that is not run here says


def here(block):
    """Whether a block is to be run by this test."""
    return block.language in RUNS and not block.mark


# --- texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_fenced_and_says_its_language(page):
    assert indented(page) == []
    assert {block.language for block in blocks(page)} <= LANGUAGES


def test_blocks_that_are_not_run_say_why_and_what_runs_them_exists():
    makefile = (ROOT / "Makefile").read_text()
    for place in (re.fullmatch(MARK, block.mark)[1] for block in ALL if block.mark):
        if place and not (ROOT / place).is_file():
            assert re.search(rf"^{place.removeprefix('make ')}:", makefile, re.MULTILINE), place


def check(block):
    """Parse a block as what would run it does."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "yaml":
        yaml.safe_load(block.text)
    else:
        check_shell([command for command, _ in sessions(block.text)] if block.language == "console" else [block.text])


def check_shell(texts):
    makefile = (ROOT / "Makefile").read_text()
    for command in (command for text in texts for command in commands(text)):
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)
        for arguments in arguments_within(command):
            parse(arguments)
        for part in words(command):
            if part[0] == "make":
                assert re.search(rf"^{part[1]}:", makefile, re.MULTILINE), part


@pytest.mark.parametrize("block", [block for block in ALL if block.language != "text"], ids=str)
def test_every_block_parses(block):
    check(block)


# --- runs --------------------------------------------------------------------------------------------

SHARES = {("labelled", True): 40, ("pile", True): 10, ("pile", False): 75, ("new", True): 10, ("new", False): 30}


def unpack(folder):
    """Write some of the demo's images as a user has them: photos/, new-photos/, found.txt and truth.csv."""
    found = []
    for row, tile in demo_images(SHARES):
        path = folder / ("new-photos" if row["folder"] == "new" else "photos") / row["key"]
        path.parent.mkdir(exist_ok=True)
        tile.save(path)
        found.append((row["key"], row["folder"], row["class"] == demonstration.POSITIVE_CLASS))
    lines = [f"{key},{int(positive)}" for key, _, positive in found]
    (folder / "truth.csv").write_text("\n".join(["key,label", *lines]) + "\n")
    (folder / "found.txt").write_text("".join(f"{key}\n" for key, where, _ in found if where == "labelled"))


def reviewed(folder):
    """Answer ranked.csv by the truth, in the form that a review exports."""
    truth = dict(line.split(",") for line in (folder / "truth.csv").read_text().split())
    cache = EmbeddingCache(folder / "cache.h5")
    digests = {key: bytes(digest).hex()[:16] for key, digest in zip(cache.keys, cache.digests, strict=True)}
    decided = [(key, 1, 0) for key in (folder / "found.txt").read_text().split()]
    with (folder / "ranked.csv").open() as table:
        decided += [(row["key"], truth[row["key"]], 1) for row in list(csv.DictReader(table))[:20]]
    lines = [f"{key},{label},{reviewed},sha256:{digests[key]}" for key, label, reviewed in decided]
    (folder / "reviewed.csv").write_text("\n".join(["key,label,reviewed,digest", *lines]) + "\n")


def sit(folder, session=None, beside=None):
    """Decide images by the truth: by rank, at random, some positives again, and a zone; a random image is left open."""
    truth = dict(line.split(",") for line in (folder / "truth.csv").read_text().split())
    labels = folder / "found.txt" if beside is None else None
    with open_session(folder / "cache.h5", labels, folder=session, beside=beside) as session:
        rng = np.random.default_rng(0)

        def decide(row):
            choice = Choice.POSITIVE if truth[session.cache.keys[row]] == "1" else Choice.NEGATIVE
            session.decide(Proposal(str(len(session.entries())), int(row), choice))

        for label in 3 * "1" + 7 * "0":
            decide(
                next(row for row in np.flatnonzero(session.state.untaken) if truth[session.cache.keys[row]] == label)
            )
            decide(session.draw(rng, Stream.AUDIT)[0].row)
        for draw in session.draw(rng, Stream.RECHECK, 2):
            decide(draw.row)
        session.fix_zone(np.flatnonzero(session.state.untaken)[:5])
        for draw in session.draw(rng, Stream.ZONE, 5):
            decide(draw.row)
        session.draw(rng, Stream.AUDIT)


def run(command, folder):
    """Run a command in a folder, one of pucache's within this process; gives the lines that it prints."""
    arguments = plain(command)
    if arguments is None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        asked = {"cwd": folder, "env": os.environ | {"PATH": path}, "text": True, "stderr": subprocess.STDOUT}
        ended = subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdout=subprocess.PIPE, **asked)
        assert ended.returncode == 0, f"{command}{ended.stdout}"
        return ended.stdout.splitlines()
    if arguments[0] == "review":
        asked = main.commands["review"].make_context("review", arguments[1:]).params
        sit(folder, asked["session"], asked["beside"])  # a page waits for a person
        return []
    ended = CliRunner().invoke(main, arguments, prog_name="pucache")
    assert ended.exit_code == 0, f"{command}{ended.output}{ended.exception!r}"
    return ended.output.splitlines()


FIRST = """\
pucache embed photos/ cache.h5
pucache train-pu cache.h5 --positives found.txt
pucache retrieve-positives cache.h5 --positives found.txt
pucache score model.safetensors new-photos/ --out new.csv
"""


@pytest.fixture(scope="module")
def loaded_once():
    """Let commands share an encoder: each compiles it anew in life, which takes longer than its few images."""
    with pytest.MonkeyPatch.context() as patch:
        load, once = encoder.load_encoder, functools.cache(encoder.load_encoder)

        def choose(*names, preprocess=None, **options):  # a mapping has no hash
            return load(*names, preprocess=preprocess, **options) if preprocess else once(*names, **options)

        patch.setattr(encoder, "load_encoder", choose)
        yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, loaded_once):
    """A folder to work in, and a copy of what it holds once somebody has embedded, trained and reviewed."""
    desk, kept = tmp_path_factory.mktemp("desk"), tmp_path_factory.mktemp("kept") / "desk"
    unpack(desk)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        for command in FIRST.splitlines():
            run(command, desk)
    reviewed(desk)
    shutil.copytree(desk, kept)
    return desk, kept


def begin(prepared, page):
    """Put the prepared files back, and what some pages have besides; the folder itself stays."""
    desk, kept = prepared
    for path in desk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(kept, desk, dirs_exist_ok=True)
    BESIDES.get(page, lambda folder: None)(desk)
    return desk


def scaling(folder):
    """JPEG files, a manifest that was cut off from them, and a table of labelled positives that lie elsewhere."""
    for number, path in enumerate(sorted((folder / "photos").iterdir())[:40]):
        with Image.open(path) as image:
            image.save(folder / f"photos/{number}.jpg")
    (folder / "photos/list-00001.txt").write_text("".join(f"{number}.jpg\n" for number in range(40)))
    keys = (folder / "found.txt").read_text().split()
    lines = [f"positives/{key},photos/{key}" for key in keys]
    (folder / "positives.csv").write_text("\n".join(["key,path", *lines]) + "\n")


def many(folder):
    """A table of labels of the kinds of clothing."""
    with (demonstration.DATA / "fashion-mnist.csv").open() as table:
        kinds = {row["key"]: row["class"] for row in csv.DictReader(table)}
    lines = [f"{path.name},{kinds[path.name]}" for path in sorted((folder / "photos").iterdir())[::2]]
    (folder / "labels.csv").write_text("\n".join(["key,concept", *lines]) + "\n")


def find(folder):
    """The table of somebody who has looked at the page of a ranking."""
    with (folder / "reviewed.csv").open() as table:
        lines = [f"{row['key']},{row['label']}" for row in csv.DictReader(table)]
    (folder / "answers.csv").write_text("\n".join(["key,label", *lines]) + "\n")


BESIDES = {
    "docs/find.md": find,
    "docs/many.md": many,
    "docs/scale.md": scaling,
}


HANG_ON_DATA = ("note:", "about ", "precision@", "If positives are overlooked", "nearest neighbours ")


def form(line):
    """The words that a printed line begins with; numbers, and what comes after them, hang on the data."""
    return re.split(r"[\d(,.:;]", " ".join(line.split()))[0].strip()


def assert_printed(shown, printed, where):
    """Each line that a page shows was printed, but for its numbers and for those that hang on the data."""
    forms = {form(line) for line in printed}
    missing = [line for line in shown if form(line) not in forms and not line.lstrip().startswith(HANG_ON_DATA)]
    assert not missing, f"{where} shows {missing}, but printed was\n" + "\n".join(printed)


def run_block(block, folder, names):
    """Run a block; gives what it printed, of a console block after holding that against what is shown."""
    if block.language == "python":
        exec(compile(block.text, str(block), "exec"), names)
    elif block.language == "sh":
        return [line for command in commands(block.text) for line in run(command, folder)]
    else:
        for command, shown in sessions(block.text):
            assert_printed(shown, run(command, folder), block)
    return []


@pytest.mark.slow  # what all pages begin with takes ten seconds; the fast tests parse every block
@pytest.mark.parametrize("page", [page for page in PAGES if any(map(here, blocks(page)))], ids=name)
def test_the_blocks_of_a_page_run_in_its_order_and_print_what_it_shows(page, prepared, monkeypatch, capsys):
    folder, names, printed = begin(prepared, name(page)), {"__name__": "page"}, []
    monkeypatch.chdir(folder)
    for block in blocks(page):
        if here(block):
            capsys.readouterr()
            printed = run_block(block, folder, names)
            printed += capsys.readouterr().out.splitlines()
        elif block.language == "text" and block.follows and printed:
            assert_printed(block.text.splitlines(), printed, block)
        else:
            printed = []
