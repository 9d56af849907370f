"""Recognising URLs and removing secrets from them."""

from __future__ import annotations

import os
import re

# "::" chains two URLs; a password may hold "@", and even "/" unless that is a port that a path follows
_LOGIN_PATTERN = r"""([^/\s@:'"]*):(?!:)(?:[^/\s'"]*|(?!\d{1,5}/)[^\s'"]*)@"""
_LOGIN = re.compile(f"(://){_LOGIN_PATTERN}")
_SHOWN = (  # what is left out of a text; a path of a URL has one slash, where `Path` has read it
    (re.compile(r"(https?:/{1,2})[^/\s'\"]*@", re.IGNORECASE), r"\1"),
    (re.compile(f"(:/{{1,2}}){_LOGIN_PATTERN}"), r"\1"),  # a user name alone may be part of the location
    (re.compile(r"(https?:/{1,2}[^\s'\"?]*)\?[^\s'\"]*", re.IGNORECASE), r"\1"),
    (re.compile(r"(:/{1,2}[^\s'\"?]*)\?[\w.~%-]+=[^\s'\"]*"), r"\1"),
    (
        re.compile(r"([?&][\w.-]*(?:token|sig|signature|secret|password|credential)=)[^&\s'\"]+", re.IGNORECASE),
        r"\1...",
    ),
)


def is_url(where: object) -> bool:
    """Whether this is an fsspec URL rather than a local path."""
    return "://" in str(where)


def path_or_url(where: str | os.PathLike[str]) -> str:
    """The path that a ``file://`` URL names; any other path or URL as it is. Raises ValueError for what is neither."""
    if not isinstance(where, str | os.PathLike):
        raise ValueError(f"expected a path or URL, got {type(where).__name__}")
    return re.sub(r"^(file|local)://(localhost(?=/))?", "", os.fspath(where))


def without_secrets(text: str) -> str:
    """Remove user names, passwords and queries, which may hold tokens, from every URL in a text."""
    for secret, kept in _SHOWN:
        text = secret.sub(kept, text)
    return text


def has_password(url: str) -> bool:
    """Whether a URL contains a password."""
    return _LOGIN.search(url) is not None


def without_password(url: str) -> str:
    """Remove the password from a URL, and keep user name and query, which tell one location from another."""
    return _LOGIN.sub(lambda login: f"{login[1]}{login[2]}@", url)
