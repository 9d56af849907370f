"""Recognising URLs and removing secrets from them."""

from __future__ import annotations

import os
import re

# "::" chains two URLs; a password may hold "@", and even "/" unless that is a port that a path follows
_LOGIN = re.compile(r"""(://)([^/\s@:'"]*):(?!:)(?:[^/\s'"]*|(?!\d{1,5}/)[^\s'"]*)@""")


def is_url(where: object) -> bool:
    """Whether this is an fsspec URL rather than a local path."""
    return "://" in str(where)


def path_or_url(where: str | os.PathLike[str]) -> str:
    """The path that a ``file://`` URL names; any other path or URL as it is."""
    return re.sub(r"^(file|local)://(localhost(?=/))?", "", os.fspath(where))


def without_secrets(text: str) -> str:
    """Remove user names, passwords and queries, which may hold tokens, from every URL in a text."""
    text = re.sub(r"(https?://)[^/\s'\"]*@", r"\1", text, flags=re.IGNORECASE)
    text = _LOGIN.sub(r"\1", text)  # other than of HTTP, a user name without a password may be part of the location
    text = re.sub(r"(https?://[^\s'\"?]*)\?[^\s'\"]*", r"\1", text, flags=re.IGNORECASE)
    return re.sub(r"(://[^\s'\"?]*)\?[\w.~%-]+=[^\s'\"]*", r"\1", text)


def has_password(url: str) -> bool:
    """Whether a URL contains a password."""
    return _LOGIN.search(url) is not None


def without_password(url: str) -> str:
    """Remove the password from a URL, and keep user name and query, which tell one location from another."""
    return _LOGIN.sub(lambda login: f"{login[1]}{login[2]}@", url)
