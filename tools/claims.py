"""Hold figures of README.md and docs/ against the pages in docs/results that they come from.

    python tools/claims.py            # list the figures that have moved, and the claims that lead nowhere
    python tools/claims.py --write    # also write the new figures into the texts

docs/claims.toml says for each figure where it comes from. `tests/docs/test_texts.py` runs the same check.
"""

import argparse
import re
import sys
import tomllib
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = "docs/claims.toml"
DIGITS = r"[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
NUMBER = rf"(?<![\w.]){DIGITS}"
FIGURE = rf"({NUMBER}(?: ± {DIGITS})?)"  # a number, perhaps with its spread
AGGREGATES = {"min": min, "max": max, "mean": lambda values: sum(values) / len(values), "sum": sum}
_SOURCE = re.compile(r"(?:([\d.e]+) / )?(?:(min|max|mean|sum) of )?(.+?)(?: ([*/]) ([\d.e]+))?", re.DOTALL)


class ClaimError(Exception):
    """A claim whose sentence or source is not there."""


@dataclass(frozen=True)
class Claim:
    """Figures in a sentence of a page, and where each of them comes from."""

    page: str
    text: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A figure as it stands in a page, from `start` to `end`, and as its source has it."""

    page: str
    start: int
    end: int
    written: str
    measured: str
    source: str


def read_claims(root=ROOT):
    """Claims of docs/claims.toml, in its order."""
    table = tomllib.loads((root / CLAIMS).read_text())
    return [Claim(page, entry["text"], tuple(entry["from"])) for page, entries in table.items() for entry in entries]


# --- sentences -----------------------------------------------------------------------------------------


def pattern(text):
    """Pattern of a sentence: `{}` is a figure, `#` any number, `...` anything, a space any white space."""
    parts = re.split(r"(\{\}|#|\.\.\.|\s+)", text)
    special = {"{}": FIGURE, "#": NUMBER, "...": r"[^|]*?"}
    return re.compile("".join(special.get(part) or (r"\s+" if part.isspace() else re.escape(part)) for part in parts))


def find(text, within, where):
    """The one match of a sentence in a text."""
    hits = list(pattern(text).finditer(within))
    if len(hits) != 1:
        raise ClaimError(f"{where}: {text!r} stands there {len(hits)} times; expected once")
    return hits[0]


# --- results -------------------------------------------------------------------------------------------


def plain(cell):
    """A cell or heading without bold type."""
    return cell.replace("**", "").strip()


def matches(text, wildcard):
    """Whether a text is what a wildcard says: `*` stands for any characters."""
    return re.fullmatch(".*".join(map(re.escape, wildcard.split("*"))), text) is not None


def sections(page, heading):
    """Texts below the headings of a page that match."""
    parts = re.split(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return [text for title, text in zip(parts[1::2], parts[2::2], strict=True) if matches(plain(title), heading)]


def tables(text):
    """Tables of a text, each a list of rows of cells; the first row holds the names of the columns."""
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        lines = [line for line in block.splitlines() if set(line) - set("|-: ")]
        yield [[plain(cell) for cell in line.strip()[1:-1].split("|")] for line in lines]


def cells(text, row, column, which=None, occurrence=None):
    """Cells of the tables of a text, or of one of them, in rows and columns that match; first cells name a row.

    Where several columns have the same name, `occurrence` counts them from 1.
    """
    width = row.count(" | ") + 1
    for number, table in enumerate(tables(text), 1):
        if which not in (None, number):
            continue
        columns = [number for number, name in enumerate(table[0]) if matches(name, column)]
        columns = columns[int(occurrence) - 1 : int(occurrence)] if occurrence else columns
        for line in table[1:]:
            if matches(" | ".join(line[:width]), row):
                yield from (line[number] for number in columns if number < len(line))


def numbers(text):
    """Every number of a text, without signs of thousands."""
    return [Decimal(digits.replace(",", "").replace("−", "-")) for digits in re.findall(NUMBER, text)]


def look_up(source, root=ROOT):
    """Numbers that a source leads to: a figure, and its spread if it has one."""
    dividend, aggregate, path, operator, factor = _SOURCE.fullmatch(source).groups()
    page, heading, *within = path.split(" > ")
    file = root / "docs/results" / page if (root / "docs/results" / page).is_file() else root / page
    if not file.is_file():
        raise ClaimError(f"{source}: no such page")
    texts = sections(file.read_text(), heading)
    if not texts:
        raise ClaimError(f"{source}: no heading {heading!r}")
    if len(within) == 1:
        values = [numbers(find(within[0], "\n".join(texts), source)[1])]
    else:
        *table, row, column = within
        which = int(table[0].removeprefix("table ")) if table else None
        name, occurrence, position = re.fullmatch(r"(.+?)(?: #(\d))?(?:\[(\d)\])?", column).groups()
        table_cells = [cell for text in texts for cell in cells(text, row, name, which, occurrence)]
        values = [numbers(cell)[int(position or 0) :] for cell in table_cells]
        values = [value for value in values if value]
    if not values or (len(values) > 1 and not aggregate):
        raise ClaimError(f"{source}: {len(values)} figures there; expected one")
    value = [AGGREGATES[aggregate]([first for first, *_ in values])] if aggregate else values[0]
    value = [Decimal(dividend) / value[0]] if dividend else value
    scale = Decimal(factor or 1)
    return [part * scale if operator == "*" else part / scale for part in value]


def written_as(value, like):
    """A number, rounded and with signs of thousands as another one is written."""
    decimals = len(like.partition(".")[2])
    text = value.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{text:,}" if "," in like or abs(text) >= 10_000 else f"{text}"


# --- the check -----------------------------------------------------------------------------------------


def figures(claim, root=ROOT):
    """The figures of a claim, in their order in the page."""
    match, wanted = find(claim.text, (root / claim.page).read_text(), claim.page), len(claim.sources)
    if len(match.groups()) != wanted:
        raise ClaimError(f"{claim.page}: {claim.text!r} has {len(match.groups())} figures, but {wanted} sources")
    for number, source in enumerate(claim.sources, 1):
        parts = match[number].split(" ± ")
        values = look_up(source, root)
        if len(values) < len(parts):
            raise ClaimError(f"{source}: no spread there, but {claim.page} writes {match[number]!r}")
        measured = " ± ".join(written_as(value, part) for value, part in zip(values, parts, strict=False))
        yield Figure(claim.page, *match.span(number), match[number], measured, source)


def check(root=ROOT):
    """All figures that are claimed, and a line for each claim that leads nowhere."""
    claimed, faults = [], []
    for claim in read_claims(root):
        try:
            claimed += figures(claim, root)
        except ClaimError as error:
            faults.append(str(error))
    return claimed, faults


def rewrite(moved, root=ROOT):
    """Write measured figures in the place of those that have moved."""
    for page in {figure.page for figure in moved}:
        text = (root / page).read_text()
        for figure in sorted((one for one in moved if one.page == page), key=lambda one: -one.start):
            text = text[: figure.start] + figure.measured + text[figure.end :]
        (root / page).write_text(text)


def main(arguments=None):
    """List what has moved; exit code 1 where something has, or where a claim leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the new figures into the texts")
    asked = parser.parse_args(arguments)
    claimed, faults = check()
    moved = [figure for figure in claimed if figure.written != figure.measured]
    for figure in moved:
        print(f"{figure.page}: {figure.written} is now {figure.measured}   {figure.source}")
    for fault in faults:
        print(fault)
    print(f"{len(claimed)} figures, {len(moved)} moved, {len(faults)} claims that lead nowhere")
    if asked.write:
        rewrite(moved)
    return 1 if faults or (moved and not asked.write) else 0


if __name__ == "__main__":
    sys.exit(main())
