"""Pages in headless Chromium: what a person would see, and whether anything went wrong meanwhile."""

import shutil
from contextlib import contextmanager

import pytest

from helpers.hangs import HANG_SECONDS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="no chromium on PATH; install it with apt-get install chromium"
)
QUIET = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
LOCAL = ("file:", "data:", "blob:", "about:")


@contextmanager
def chromium():
    """Start a browser and end it, and the event loop that Playwright runs for it."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        expect.set_options(timeout=1000 * HANG_SECONDS)
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET.split(), "--no-first-run"], timeout=1000 * HANG_SECONDS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser, own=LOCAL, *, lost=False, **context):
    """Open a window for pages; leaving fails if one of them erred, or made a request that does not begin as `own`.

    Parameters
    ----------
    lost : bool
        Whether requests may fail, as the server is killed or refuses meanwhile.
    **context
        Of Playwright's ``new_context``: ``color_scheme``, ``viewport``, ...
    """
    wrong = []

    def on_console(message):
        expected = lost and "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not expected:
            wrong.append(f"console: {message.text}")

    with browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context}) as window:
        window.set_default_timeout(1000 * HANG_SECONDS)
        window.on("weberror", lambda error: wrong.append(f"script error: {error.error}"))
        window.on("console", on_console)
        window.on("request", lambda asked: asked.url.startswith(own) or wrong.append(f"request: {asked.url[:200]}"))
        yield window
    assert not wrong, "\n".join(wrong)


@contextmanager
def opened(browser, path, **context):
    """Open a file as a page in a window of its own, and watch it."""
    with watched(browser, **context) as window:
        page = window.new_page()
        page.goto(path.absolute().as_uri())
        yield page


def violations(page, within=None):
    """Serious and critical violations that axe-core finds, in the whole page or within a selector, as lines."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, within).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
