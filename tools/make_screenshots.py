"""Follow docs/walkthrough.md for real: run its commands, drive its pages, renew their outputs and its pictures.

    python tools/make_screenshots.py WORK      # an empty folder; needs chromium and pucache[test]

Lines of console blocks that begin with `$` run in WORK, in their order, and what they print replaces what stands below
them. Where the text shows images/NAME.png, that picture is taken; the truth of the packaged images answers in the place
of a person. What the pages say meanwhile is printed: figures within the sentences are to be held against it by hand.
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
from helpers.browser import chromium, opened  # noqa: E402

TEXT, PICTURES = ROOT / "docs/walkthrough.md", ROOT / "docs/images"
COMMAND, PICTURE = re.compile(r"\$ (.+)"), re.compile(r"!\[.+\]\(images/([\w-]+)\.png\)")
DECIDED = 70  # candidates before the picture is taken; some are rejected by then
SETTLED = 1000  # ms, in which a progress bar comes to rest


def main(work):
    """Follow the text from its first line to its last, and write it anew."""
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()):
        sys.exit(f"{work} is not empty; name a new folder")
    with chromium() as browser:
        lines = renewed(TEXT, lambda command: run(command, work), lambda name: TAKEN[name](browser, work, name))
    TEXT.write_text("\n".join(lines) + "\n")


def renewed(text, run, take):
    """Return the lines of a text, with what its commands print now, and take its pictures in their turn."""
    lines, console = [], False
    for line in text.read_text().splitlines():
        console = line == "```console" or (console and line != "```")
        command, picture = console and COMMAND.fullmatch(line), PICTURE.match(line)
        if command or not console or line == "```console":
            lines.append(line)
        if command:
            lines += run(command[1])
        if picture:
            take(picture[1])
    return lines


def run(command, work):
    """Run a line of the text in WORK as a shell would; gives the lines that it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    ended = subprocess.run(["bash", "-c", command], cwd=work, env=environment, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        sys.exit(f"{command} ended with {ended.returncode}")
    print(f"$ {command}\n{ended.stdout}", end="", flush=True)
    return ended.stdout.splitlines()


def save(page, name, section=None):
    """Save what the window shows, or a whole section of the page, in at most 256 colours."""
    page.wait_for_timeout(SETTLED)
    path, of = PICTURES / f"{name}.png", {}
    if section:
        box = page.locator(f"section[aria-labelledby={section}]").bounding_box()
        top = box["y"] + page.evaluate("scrollY")
        of = {"full_page": True, "clip": {"x": box["x"] - 16, "y": top, "width": 936, "height": box["height"] + 16}}
    page.screenshot(path=path, animations="disabled", **of)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path.name}: {small.width} x {small.height}, {path.stat().st_size / 1000:.0f} kB")


# --- the review sheet --------------------------------------------------------------------------


def light_review(browser, work, name):
    """Take the sheet in the middle of a review, and finish the review."""
    with opened(browser, work / "review.html", color_scheme="light") as page:
        decide(page, work, DECIDED)
        save(page, name)
        finish(page, work)


def dark_zoom(browser, work, name):
    """Take the first candidate that is to be rejected, large and in the dark, and finish the review."""
    truth = truth_of(work)
    with opened(browser, work / "review.html", color_scheme="dark") as page:
        while truth[in_turn(page)] == "1":
            decide(page, work, 1)
        page.keyboard.press("Enter")
        page.locator("#zoom-picture[src^=file]").wait_for()
        save(page, name)
        page.keyboard.press("Escape")
        finish(page, work)


def truth_of(work):
    """Return the true label of each key, "1" or "0"."""
    with (work / "truth.csv").open(newline="") as stream:
        return {row["key"]: row["label"] for row in csv.DictReader(stream)}


def in_turn(page):
    """Return the key of the candidate in turn."""
    return page.locator(".turn .key").text_content()


def decide(page, work, count):
    """Accept or reject that many candidates by keyboard."""
    truth = truth_of(work)
    for _ in range(count):
        page.keyboard.press("a" if truth[in_turn(page)] == "1" else "r")


def finish(page, work):
    """Decide the rest, and export to where the next command looks for it."""
    decide(page, work, int(page.text_content('[data-count=""]')))
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(work / "reviewed.csv")
    print(page.text_content("#tally"), page.text_content("#notice"), sep="\n")


# --- the report --------------------------------------------------------------------------------


def first_screen(browser, work, name):
    """Take what one sees of the report before scrolling."""
    with opened(browser, work / "report.html", color_scheme="light") as page:
        save(page, name)


def margins(browser, work, name):
    """Take the section on margins."""
    with opened(browser, work / "report.html", color_scheme="light") as page:
        save(page, name, "margins")


def map_of_images(browser, work, name):
    """Take the map with the pointer on an unlabelled image that is likely positive."""
    with opened(browser, work / "report.html", color_scheme="light") as page:
        page.locator("circle.q9:not(.labelled)").first.hover(force=True)
        save(page, name, "map")


TAKEN = {
    "review": light_review,
    "review-dark": dark_zoom,
    "report": first_screen,
    "report-margins": margins,
    "report-map": map_of_images,
}

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
