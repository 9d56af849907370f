"""The page of a review in a browser: opened, watched, and used by keyboard."""

import time
from contextlib import contextmanager
from urllib.parse import urlsplit

from helpers import browser
from helpers.hangs import HANG_SECONDS

DECIDABLE = "#one:not([hidden]) #stage[data-status=shown], #one:not([hidden]) #stage[data-status=absent]"


@contextmanager
def visited(chromium, url, *, init=None, lost=False, **context):
    """Open the page of a review and watch it; leaving fails if it erred or asked any other server.

    Parameters
    ----------
    init : str, optional
        Script to run before the page's own.
    lost : bool
        Whether requests may fail, as the server is killed or refuses meanwhile.
    **context
        Of Playwright's ``new_context``: ``color_scheme``, ``viewport``, ...
    """
    with chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **context}) as holder:
        page, wrong = another(holder, url, init=init, lost=lost)
        yield page
    assert not wrong, "\n".join(wrong)


def another(holder, url, *, init=None, lost=False):
    """One more tab of a browser's window, and a list that grows with what goes wrong in it."""
    page = holder.new_page()
    page.set_default_timeout(1000 * HANG_SECONDS)
    wrong = watch(page, url, lost=lost)
    if init:
        page.add_init_script(init)
    page.goto(url)
    page.wait_for_selector(f"{DECIDABLE}, #end:not([hidden]) #end-title:text('No image'), #end-title:text('Every')")
    return page, wrong


def watch(page, url, *, lost=False):
    """Return a list that grows with every error and every request to another server."""
    return browser.watch(page, f"{urlsplit(url).scheme}://{urlsplit(url).netloc}/", lost=lost)


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
