"""What a URL is, and what of it nobody else may see."""

from __future__ import annotations

import re

# "::" chains two URLs; a password may hold "@", and even "/" unless that is a port that a path follows
_LOGIN = re.compile(r"""(://)([^/\s@:'"]*):(?!:)(?:[^/\s'"]*|(?!\d{1,5}/)[^\s'"]*)@""")


def is_url(where: object) -> bool:
    """Whether this names something behind a URL rather than a file of this machine."""
    return "://" in str(where)


def without_secrets(text: str) -> str:
    """A URL, or a text with URLs, without user names, passwords and queries, which may hold tokens."""
    text = re.sub(r"(https?://)[^/\s'\"]*@", r"\1", text, flags=re.IGNORECASE)
    text = _LOGIN.sub(r"\1", text)  # of other kinds a name alone may be part of the place
    text = re.sub(r"(https?://[^\s'\"?]*)\?[^\s'\"]*", r"\1", text, flags=re.IGNORECASE)
    return re.sub(r"(://[^\s'\"?]*)\?[\w.~%-]+=[^\s'\"]*", r"\1", text)


def has_password(url: str) -> bool:
    """Whether a URL comes with the password of a user."""
    return _LOGIN.search(url) is not None


def without_password(url: str) -> str:
    """A URL with all that tells one place from another: of what is secret the password alone is left out."""
    return _LOGIN.sub(lambda login: f"{login[1]}{login[2]}@", url)
