"""The page of a sitting, and the files that it loads from the server.

Nothing of it is inline, so that a content security policy of ``default-src 'self'`` holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..pages.html import read_asset, template

_STYLES = ("base.css", "cards.css", "sitting.css")
_SCRIPTS = (
    "cards.js",
    "link.js",
    "upcoming.js",
    "progress.js",
    "views.js",
    "sitting.js",
)  # in the order in which they run
_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

ASSETS = (*_STYLES, *_SCRIPTS, "icon.svg")


def sitting_page(title: str, *, session: str, warnings: Sequence[str] = ()) -> str:
    """HTML of the page of a sitting.

    Parameters
    ----------
    title : str
        Heading and name of the page.
    session : str
        Identifier of the session, the same after a restart. The page sends it with every request, and names the
        decisions by it that it keeps in the browser until they are acknowledged.
    warnings : sequence of str
        Lines at the top of the page.

    Returns
    -------
    str
    """
    return template("sitting").render(title=title, session=session, warnings=warnings, styles=_STYLES, scripts=_SCRIPTS)


def asset(name: str) -> tuple[bytes, str]:
    """Content and media type of a file that the page loads from ``/assets/NAME``.

    Raises
    ------
    KeyError
        The page has no such file.
    """
    if name not in ASSETS:
        raise KeyError(name)
    return read_asset(name).encode(), _MEDIA_TYPES[name.rpartition(".")[2]]
