import re
from pathlib import Path

import pytest

from pucache.cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "walkthrough.ipynb"
ROOT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*ROOT_PAGES, *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md"))]


def name(path):
    return path.name


# --- the notebook ------------------------------------------------------------------------------


def notebook():
    nbformat = pytest.importorskip("nbformat", reason="no nbformat; pip install -e '.[test]'")
    return nbformat.read(NOTEBOOK, as_version=4)


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def kinds(cell):
    """What a cell gives, whatever the numbers are; stderr is left out, where libraries greet a new machine."""
    found = [output.get("name") or "/".join(sorted(output.data)) for output in cell.outputs]
    return [kind for kind in dict.fromkeys(found) if kind != "stderr"]


@pytest.fixture(scope="module")
def run_again(tmp_path_factory):
    """The notebook, run from its first cell to its last in an empty folder by this Python."""
    nbclient = pytest.importorskip("nbclient", reason="no nbclient; pip install -e '.[test]'")
    pytest.importorskip("ipykernel", reason="no ipykernel; pip install -e '.[test]'")
    folder, book = tmp_path_factory.mktemp("notebook"), notebook()
    book.metadata.kernelspec.name = "python3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # not a kernel of another Python in the home folder
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        nbclient.NotebookClient(book, timeout=3600, resources={"metadata": {"path": str(folder)}}).execute()
    return book, folder


@pytest.mark.slow
def test_the_notebook_runs_and_gives_what_the_one_in_docs_shows(run_again):
    shown, ran = code(notebook()), code(run_again[0])
    assert [cell.source for cell in shown] == [cell.source for cell in ran] and len(shown) > 5
    assert [kinds(cell) for cell in shown] == [kinds(cell) for cell in ran]
    assert {kind for cell in ran for kind in kinds(cell)} == {"stdout", "image/png/text/plain"}


# --- the texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_the_verbs_that_a_text_names_exist(path):
    assert set(re.findall(r"`pucache ([a-z][\w-]*)", path.read_text())) <= set(main.commands)


def slug(heading):
    """The anchor of a heading, as GitHub writes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_pictures_and_headings_that_a_text_links_to_exist(path):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        file = path.parent / target if target else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{target}#{anchor}"
