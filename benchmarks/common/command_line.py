"""Command lines of benchmarks that write a page."""

import argparse
import os
from pathlib import Path


def page_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the benchmark's docstring as it is, with --out and --quick."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the page here too")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    return parser


def add_jobs(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    return parser


def images_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of a page on tasks of images and texts; `Location.of` takes its arguments."""
    parser = page_parser(description)
    parser.add_argument("folder", type=Path, help="CIFAR-10")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="Fashion-MNIST (default: without it)")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    return parser


def write_page(text: str, out: Path | None) -> None:
    """Print a page, and write it to --out."""
    print(text)
    if out:
        out.write_text(text)
