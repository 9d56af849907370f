"""Rendering of self-contained HTML pages from a template, data, and the style and script files in assets.

A page loads nothing from the network: its content security policy allows only ``data:`` addresses and, for
pages with `local_images`, images on this machine (``file:``). Untrusted text, such as a file name, is either
escaped by the template or part of a JSON block, never markup. Templates write numbers and keys by `WORDS`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from ..estimates.label_requirements import figure, range_text
from ..estimates.priors import interval_text
from ..storage.atomic import replacing

ASSETS = Path(__file__).parent / "assets"
_SHARED = {"concept_report": ("concepts",)}  # style and script files of a page that another one uses; before its own
_INVISIBLE = re.compile("[\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_WIDE_RATIO = 3.0  # ratio of the ends of an interval


def render(name: str, data: Any, *, local_images: bool = False, **context: Any) -> str:
    """Fill ``assets/NAME.html`` and put ``base.css``, ``NAME.css``, ``NAME.js`` and `data` into it.

    What the page shares with another one, such as ``concepts.css``, stands before its own style and script. The script
    reads `data` as ``JSON.parse(document.getElementById("data").textContent)``. With `local_images` the page may show
    image files of this machine. `context` holds the variables of the template, which escapes text.
    """
    parts = (*_SHARED.get(name, ()), name)
    style = "\n".join(read_asset(f"{part}.css") for part in ("base", *parts) if (ASSETS / f"{part}.css").exists())
    script = "\n".join(read_asset(f"{part}.js") for part in parts if (ASSETS / f"{part}.js").exists())
    return template(name).render(
        policy=_policy(script, local_images), style=style, script=script, data=_json(data), **context
    )


@cache
def template(name: str) -> jinja2.Template:
    """``assets/NAME.html``, which escapes text and refuses a variable that is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= WORDS
    return environment.get_template(f"{name}.html")


def write(path: str | Path, html: str) -> None:
    """Write a page atomically; raises `OutputError`."""
    with replacing(path) as temporary:
        temporary.write_bytes(html.encode("utf-8", "replace"))  # a path on the page may hold bytes that are not UTF-8


def read_asset(file: str) -> str:
    """Content of a file in assets."""
    return (ASSETS / file).read_text(encoding="utf-8")


def _policy(script: str, local_images: bool) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    images, scripts = "data: file:" if local_images else "data:", f"'sha256-{digest}'" if script else "'none'"
    return (
        f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'; script-src {scripts}; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(data: Any) -> str:
    """JSON without characters that could end its HTML script block or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


# --- numbers and keys as text ------------------------------------------------------------------


def number(value: float) -> str:
    """Format a count with thousands separators; below ten with one decimal, unless it is whole."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def about(value: float) -> str:
    """Format an estimated count with two significant digits."""
    return number(round(float(f"{value:.2g}")))


def percent(share: float) -> str:
    """Format a share in per cent with three significant digits, at most two decimals."""
    value = 100 * share
    if value > 0 and value < 0.01:
        return "under 0.01 %"
    if 99.99 < value < 100:
        return "over 99.99 %"
    decimals = 0 if value in (0, 100) else 2 if value >= 99.95 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f} %"


def probability(value: float) -> str:
    """Format a probability in per cent; never as 0 % or 100 %."""
    if value < 0.001:
        return "under 0.1 %"
    if value > 0.999:
        return "over 99.9 %"
    return f"{100 * value:.1f} %"


def between(low: float, high: float) -> str:
    """Format an interval of the prior in per cent; "at most" where it is one-sided."""
    return interval_text(low, high, percent)


def count_range(low: float, high: float, number: Callable[[float], str] = about) -> str:
    """Format an interval of a count; "at most" where not one is certain."""
    return f"at most {number(high)}" if low < 0.5 else f"{number(low)} to {number(high)}"


def plural(count: float, singular: str, plural_form: str | None = None) -> str:
    """Format a count with its noun; the plural is `singular` with an s unless it is passed."""
    return f"{number(count)} {singular if count == 1 else plural_form or singular + 's'}"


def whole_percents(interval: tuple[float, float]) -> str:
    """Format the interval of a share in whole per cent, without the sign."""
    return range_text(interval, lambda share: f"{100 * share:.0f}")


def is_wide(low: float | None, high: float | None) -> bool:
    """Whether an interval is too wide for a single number beside it."""
    return low is not None and high is not None and high > _WIDE_RATIO * low


def one_line(text: str) -> Markup:
    """Text that a template rendered over several lines, in one."""
    return Markup(re.sub(r"\s*\n\s*", " ", escape(text.strip())))  # noqa: S704 - escaped


def visible(key: str) -> str:
    """Replace control characters by their symbols, and other invisible characters by their code points."""
    key = re.sub("[\0-\x1f]", lambda match: chr(0x2400 + ord(match[0])), key)
    return _INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", key)


_FUNCTIONS = (number, about, percent, between, count_range, plural, whole_percents, is_wide, one_line, figure)
WORDS: dict[str, Any] = {function.__name__: function for function in _FUNCTIONS}
