"""Follow docs/walkthrough.md for real: run its commands, drive its pages, take its pictures, renew its outputs.

    python tools/make_screenshots.py WORK      # a new or empty folder; needs chromium and pucache[test]

Lines that begin with `$` are run in WORK, in their order, and what they print replaces what stood below them. Where
the text shows images/NAME.png, the picture of that name is taken. What the reviews and the text's own figures must
agree with is printed; a truth of the packaged images answers in the place of a person.
"""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import chromium, opened  # noqa: E402

TEXT, PICTURES = ROOT / "docs/walkthrough.md", ROOT / "docs/images"
COMMAND, PICTURE = re.compile(r" {4}\$ (.+)"), re.compile(r"!\[.+\]\(images/([\w-]+)\.png\)")
BEFORE_THE_PICTURE = 70  # decisions; by then some are rejected


def run(command, work):
    """Run a command line of the text as a shell would in WORK; gives the lines that it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        ["bash", "-c", command], cwd=work, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True
    )
    if ended.returncode:
        sys.exit(f"{command!r} gave {ended.returncode}")
    return ended.stdout.splitlines()


def save(target, name, **options):
    """Save a picture of a page, or of a part of it, in at most 256 colours."""
    path = PICTURES / f"{name}.png"
    target.screenshot(path=path, animations="disabled", **options)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path.name}: {small.width} x {small.height}, {path.stat().st_size / 1000:.0f} kB")


# --- the review --------------------------------------------------------------------------------


def decide(page, truth, count):
    """Press A or R for the candidate in turn, `count` times."""
    for _ in range(count):
        key = page.locator(".turn .key").text_content()
        page.keyboard.press("a" if truth[key] == "1" else "r")


def finish(page, truth, work):
    """Decide the rest and export it to where the next command reads it."""
    decide(page, truth, int(page.get_attribute("#progress", "max")) - int(page.input_value_or_zero))


def truth_of(work):
    with (work / "truth.csv").open(newline="") as stream:
        return {row["key"]: row["label"] for row in csv.DictReader(stream)}
