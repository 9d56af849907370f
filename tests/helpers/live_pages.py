"""The page of a review in a browser: opened, watched, and used by keyboard."""

import time
from contextlib import contextmanager
from urllib.parse import urljoin

from helpers.browser import watched
from helpers.hangs import HANG_SECONDS

DECIDABLE = "#one:not([hidden]) #stage[data-status=shown], #one:not([hidden]) #stage[data-status=absent]"
ARRIVED = f"{DECIDABLE}, #end:not([hidden]) #end-title:text('No image'), #end-title:text('Every'), tbody th a"


@contextmanager
def visited(chromium, url, **context):
    """Open the page of a review in a window of its own, see `watched`; no page of it may ask another server."""
    with watched(chromium, urljoin(url, "/"), **context) as window:
        yield another(window, url)


def another(window, url, *, init=""):
    """One more page of a window; `init` is a script to run before its own."""
    page = window.new_page()
    page.add_init_script(init)
    page.goto(url)
    page.wait_for_selector(ARRIVED)
    return page


def press(page, keys):
    """Press each key once an image can be decided; return the pairs of row and key."""
    shown = []
    for key in keys:
        page.wait_for_selector(DECIDABLE)
        shown.append((current_row(page), key))
        page.keyboard.press(key)
    return shown


def tap(page, *keys):
    """Press keys, each once the decision before it is saved."""
    for key in keys:
        page.keyboard.press(key)
        wait_until_saved(page)


def current_row(page):
    """Row of the image that the next decision is about."""
    return page.evaluate("items[current]?.row")


def wait_until(page, condition):
    """Until an expression is true; by polling, as the page's policy forbids `wait_for_function`."""
    until = time.monotonic() + HANG_SECONDS
    while not page.evaluate(condition):
        assert time.monotonic() < until, f"never: {condition}; {page.text_content('#trouble')}"
        page.wait_for_timeout(20)


def wait_until_saved(page):
    """Until every decision is acknowledged."""
    wait_until(page, "!saving && !failures")
