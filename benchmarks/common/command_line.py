"""Command lines of benchmarks that write a page: --out, and for those of speed a folder, numbers and --quick."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path


def page_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the benchmark's docstring as it is, with --out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the page here too")
    return parser


def images_parser(description: str | None, *, fashion: bool = True, in_cells: bool = True) -> argparse.ArgumentParser:
    """A parser of a page on tasks of images and texts; `Location.of` takes its arguments.

    `fashion` and `in_cells` say whether it has the options of Fashion-MNIST and of cells in several processes.
    """
    parser = page_parser(description)
    parser.add_argument("folder", type=Path, help="CIFAR-10")
    if fashion:
        parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="Fashion-MNIST (default: without it)")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--quick", action="store_true", help="few cells on a quarter of the rows, to see that it works")
    if in_cells:
        parser.add_argument(
            "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)"
        )
        parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further cell after so long")
    return parser


def write_page(text: str, out: Path | None) -> None:
    """Print a page, and write it to --out."""
    print(text)
    if out:
        out.write_text(text)


def print_page(page: Callable[[argparse.Namespace], str], arguments: argparse.Namespace) -> None:
    """Make a page, print it, and write it to --out."""
    write_page(page(arguments), arguments.out)
