"""Run the steps of the pages Find, Count and Classify for real, drive the pages that they open, and renew the pictures.

    python tools/make_screenshots.py WORK      # an empty folder; needs chromium and the extra test

The truth of the packaged images answers in the place of a person. What commands and pages say meanwhile is printed:
figures within the sentences of the pages are to be held against it by hand.
"""

import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from helpers.browser import chromium, opened  # noqa: E402
from helpers.live_pages import DECIDABLE, press, wait_until_saved  # noqa: E402

PICTURES = ROOT / "docs/images"
DECIDED, RANKED = 70, 250  # decisions before the first picture, and in all by rank
STEP, AUDITED = 10, 200  # random images among the likeliest, until one may stop, and then among all
LOOK = 250  # ms that a person looks at an image, at least
SETTLED = 1000  # ms, in which a progress bar comes to rest


def main(work):
    """Run the commands, and take each picture in its turn."""
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()):
        sys.exit(f"{work} is not empty; name a new folder")
    with chromium() as browser:
        for command, pictures in STEPS.items():
            run(command, work)
            for name in pictures:
                TAKEN[name](browser, work, name)
        list_of_concepts(browser, work)


def environment():
    """Variables with which `pucache` is that of this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def run(command, work):
    """Run a command in WORK as a shell would."""
    if command.startswith("pucache review "):
        LiveReview.begin(command, work)
        return
    ended = subprocess.run(["bash", "-c", command], cwd=work, env=environment(), stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        sys.exit(f"{command} ended with {ended.returncode}")
    print(f"$ {command}\n{ended.stdout}", end="", flush=True)


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


# --- the live review -------------------------------------------------------------------------------


class LiveReview:
    """The server of `pucache review`, while the pictures of its page are taken."""

    process, address = None, ""

    @classmethod
    def begin(cls, command, work):
        """Start it, and print what it says with the token left out."""
        shell = ["bash", "-c", f"exec {command} --no-browser"]
        cls.process = subprocess.Popen(shell, cwd=work, env=environment(), stdout=subprocess.PIPE, text=True)
        lines = []
        while not (lines and lines[-1].startswith("every decision")):
            lines.append(cls.process.stdout.readline().rstrip("\n"))
            if cls.process.poll() is not None:
                sys.exit(f"{command} ended with {cls.process.returncode}")
        cls.address = next(line.split()[1] for line in lines if line.startswith("open "))
        lines = [re.sub(r"token=\S+", "token=...", line) for line in lines]
        print(f"$ {command}", *lines, sep="\n", flush=True)

    @classmethod
    def end(cls):
        """Stop it as Ctrl-C does."""
        cls.process.send_signal(signal.SIGINT)
        cls.process.wait()
        cls.process = None


@contextlib.contextmanager
def live_review(browser, scheme="light"):
    """The page of the review."""
    with browser.new_context(viewport={"width": 1280, "height": 820}, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(LiveReview.address)
        page.wait_for_selector("#stage-key:not(:empty)")
        yield page


def decide(page, work, count):
    """Accept or reject that many images by keyboard, as a person would see them."""
    with (work / "truth.csv").open(newline="") as stream:
        truth = {row["key"]: row["label"] for row in csv.DictReader(stream)}
    for _ in range(count):
        page.wait_for_selector(DECIDABLE)
        press(page, "a" if truth[page.text_content("#stage-key")] == "1" else "r")
        page.wait_for_timeout(LOOK)
    wait_until_saved(page)
    page.wait_for_timeout(2 * SETTLED)  # until the count has followed
    print(*page.locator("#sentence, #statements li, #advice").all_text_contents(), sep="\n", flush=True)


def save_review(page, name):
    """Save the page in a window in which all beside the image is seen."""
    hidden = page.evaluate("(aside => aside.scrollHeight - aside.clientHeight)(document.querySelector('.progress'))")
    page.set_viewport_size({"width": 1280, "height": 820 + hidden})
    save(page, name)


def first_decisions(browser, work, name):
    """Take the page after the first decisions."""
    with live_review(browser) as page:
        decide(page, work, DECIDED)
        save_review(page, name)


def page_of_twelve(browser, work, name):
    """Go on until few positives come, and take the page of twelve in the dark."""
    with live_review(browser, "dark") as page:
        decide(page, work, RANKED - DECIDED)
        page.keyboard.press("g")
        page.wait_for_selector("#grid img")
        save_review(page, name)


def audit_among_the_likeliest(browser, work, name):
    """Decide random images among the likeliest, until one may stop, and take all that the page says."""
    with live_review(browser) as page:
        page.click("#closing-zone")
        while not page.text_content("#advice").startswith("You may stop"):
            decide(page, work, STEP)
        page.click("#others summary")
        save_review(page, name)


def audit_among_all(browser, work, name):
    """Decide random images of all that is left, take the limit, and end the review."""
    with live_review(browser) as page:
        page.click("#closing-audit")
        decide(page, work, AUDITED)
        save_review(page, name)
    LiveReview.end()


def list_of_concepts(browser, work):
    """Decide images of two concepts, and take the page that lists all; it is in docs/many.md."""
    LiveReview.begin("pucache review cache.h5 --labels kinds.csv --session reviews", work)
    with browser.new_context(viewport={"width": 1280, "height": 640}, color_scheme="light") as context:
        page = context.new_page()
        page.goto(LiveReview.address)
        for concept, keys in (("dress", "aaraaraa"), ("bag", "aar")):
            page.click(f"text={concept}")
            for key in keys:
                page.wait_for_selector("#stage-key:not(:empty)")
                page.keyboard.press(key)
                page.wait_for_timeout(SETTLED)
            page.click("text=All concepts")
        save(page, "live-review-concepts")
    LiveReview.end()


# --- the report --------------------------------------------------------------------------------


def first_screen(browser, work, name):
    """Take what one sees of the report before scrolling."""
    with opened(browser, work / "report.html", color_scheme="light") as page:
        save(page, name)


def margins(browser, work, name):
    """Take the section on margins."""
    with opened(browser, work / "report.html", color_scheme="light") as page:
        save(page, name, "margins")


STEPS = {  # commands, and the pictures that are taken after each
    "python -c \"from pucache.demonstration import unpack; unpack('.')\"": [],
    "pucache embed photos cache.h5": [],
    "head -10 found.txt > ten.txt": [],
    "pucache train-pu cache.h5 --positives ten.txt": [],
    "pucache review cache.h5 --positives ten.txt": [
        "live-review",
        "live-review-page",
        "live-review-stop",
        "live-review-audit",
    ],
    "pucache audit cache.h5.review": [],
    "pucache train-pu cache.h5": [],
    "pucache score model.safetensors new-photos --out new.csv": [],
    "pucache evaluate new.csv --truth truth.csv": [],
    "pucache report cache.h5 --model model.safetensors": ["report", "report-margins"],
}
TAKEN = {
    "live-review": first_decisions,
    "live-review-page": page_of_twelve,
    "live-review-stop": audit_among_the_likeliest,
    "live-review-audit": audit_among_all,
    "report": first_screen,
    "report-margins": margins,
}

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
