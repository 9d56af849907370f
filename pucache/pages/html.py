"""Rendering of self-contained HTML pages from a template, data, and the style and script files in assets.

A page loads nothing from the network: its content security policy allows only ``data:`` addresses and, for
pages with `local_images`, images on this machine (``file:``). Untrusted text, such as a file name, is either
escaped by the template or part of a JSON block, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2

from ..storage.atomic import replacing

ASSETS = Path(__file__).parent / "assets"
_SHARED = {"review": ("cards",)}  # style and script files of a page that another one uses too; before its own


def render(name: str, data: Any, *, local_images: bool = False, **context: Any) -> str:
    """Fill ``assets/NAME.html`` and put ``base.css``, ``NAME.css``, ``NAME.js`` and `data` into it.

    What the page shares with another one, such as ``cards.js``, stands before its own style and script.

    Parameters
    ----------
    name : str
        Name of the template, which extends ``base.html``.
    data : object
        Data of the script, as JSON, read with ``JSON.parse(document.getElementById("data").textContent)``.
    local_images : bool
        Whether the page may show image files of this machine.
    **context
        Variables of the template, which escapes text.

    Returns
    -------
    str
    """
    parts = (*_SHARED.get(name, ()), name)
    style = "\n".join(map(read_asset, ("base.css", *(f"{part}.css" for part in parts))))
    script = "\n".join(read_asset(f"{part}.js") for part in parts)
    return template(name).render(
        policy=_policy(script, local_images), style=style, script=script, data=_json(data), **context
    )


def template(name: str) -> jinja2.Template:
    """``assets/NAME.html``, which escapes text and refuses a variable that is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{name}.html")


def write(path: str | Path, html: str) -> None:
    """Write a page atomically.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(html.encode("utf-8", "replace"))  # a path on the page may hold bytes that are not UTF-8


def read_asset(file: str) -> str:
    """Content of a file in assets."""
    return (ASSETS / file).read_text(encoding="utf-8")


def _policy(script: str, local_images: bool) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    images = "data: file:" if local_images else "data:"
    return (
        f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(data: Any) -> str:
    """JSON without characters that could end its HTML script block or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
