"""One self-contained HTML page from a template, its data, and the style and script files beside it.

A page asks nobody for anything: its content security policy allows no address but ``data:``, and images
of this machine (``file:``) where the page says so. What comes from outside, such as a file's name, is
either escaped by the template or part of a JSON block, never markup.
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


def render(name: str, data: Any, *, local_images: bool = False, **context: Any) -> str:
    """Fill ``assets/NAME.html`` and put ``base.css``, ``NAME.css``, ``NAME.js`` and `data` into it.

    Parameters
    ----------
    name : str
        Of the template, which extends ``base.html``.
    data : object
        For the script, as JSON: ``JSON.parse(document.getElementById("data").textContent)``.
    local_images : bool
        Whether the page may show files of this machine.
    **context
        For the template; text is escaped there.

    Returns
    -------
    str
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (
        "\n".join(_asset(file) for file in files) for files in (("base.css", f"{name}.css"), (f"{name}.js",))
    )
    return environment.get_template(f"{name}.html").render(
        policy=_policy(script, local_images), style=style, script=script, data=_json(data), **context
    )


def write(path: str | Path, html: str) -> None:
    """Write a page, whole or not at all.

    Raises
    ------
    OutputError
        The file system refused.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(html.encode("utf-8", "replace"))  # a path that it names need not be UTF-8


def _asset(file: str) -> str:
    return (ASSETS / file).read_text(encoding="utf-8")


def _policy(script: str, local_images: bool) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    images = "data: file:" if local_images else "data:"
    return (
        f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(data: Any) -> str:
    """JSON that no parser of HTML takes for the end of its block, or for a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
