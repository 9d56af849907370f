"""Command lines of the benchmarks of speed: a folder, numbers, --quick and --out."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path


def command_line(description: str | None, numbers: Mapping[str, int], quick: Mapping[str, int]) -> argparse.Namespace:
    """Arguments of a benchmark: FOLDER, an option for each number, --quick and --out.

    Parameters
    ----------
    description : str
        The benchmark's docstring.
    numbers : dict of str to int
        Options and their defaults.
    quick : dict of str to int
        What --quick sets some of them to.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = ", ".join(f"{name} {value:,}" for name, value in quick.items())
    parser.add_argument("--quick", action="store_true", help=f"small sizes, to see that it works: {sizes}")
    parser.add_argument("--out", type=Path, help="write the page here too")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(quick)
    return arguments


def print_page(page: Callable[[argparse.Namespace], str], arguments: argparse.Namespace) -> None:
    """Make a page, print it, and write it to --out."""
    text = page(arguments)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)
