"""Globs on keys, as one regular expression each that never looks back.

The usual translation of `a*a*a*b` takes time without end to find that a key does not match. Here each
star takes the least that lets the next fixed piece match, and keeps it: more would not help, as all that
follows could be matched later just as well. So the groups are atomic, and a key takes little more than
its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that tells whether a key matches.

    `*` (at least one character, where it is a whole name) and `?` stay within a folder, `**` stands for any
    folders or none, at the end for anything; `[abc]`, `[a-z]` and `[!abc]` for one character.

    Raises
    ------
    ValueError
        `**` beside other characters, or a range in brackets that makes no sense.
    """
    names = pattern.split("/")
    if any("**" in name and name != "**" for name in names):
        raise ValueError(f"in {pattern!r} ** stands beside other characters; write it as a folder of its own: 'a/**/b'")
    runs: list[list[str]] = [[]]  # of names, between one ** and the next
    for name in names:
        if name == "**":
            runs.append([])
        else:
            runs[-1].append(name)
    begin, *middle = runs
    end = middle.pop() if middle else None
    expression = "/".join(map(_name, begin)) + ("/" if begin and end is not None else "")
    for run in filter(None, middle):
        expression += rf"(?>(?:[^/]*/)*?{'/'.join(map(_name, run))}/)"
    if end is not None:
        expression += rf"(?:.*/)?{'/'.join(map(_name, end))}" if end else ".*"
    try:
        return re.compile(rf"(?s:{expression})\Z").match
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a glob ({error})") from error


def _name(name: str) -> str:
    """One name of a path."""
    if name == "*":
        return r"[^/]+"
    first, *pieces = map("".join, _pieces(name))
    if not pieces:
        return first
    return first + "".join(rf"(?>[^/]*?{piece})" for piece in pieces[:-1] if piece) + rf"[^/]*{pieces[-1]}"


def _pieces(name: str) -> list[list[str]]:
    """What stands between the stars, as regular expressions of one character each."""
    pieces: list[list[str]] = [[]]
    at = 0
    while at < len(name):
        character = name[at]
        end = name.find("]", at + 2 + (name[at + 1 : at + 2] == "!")) if character == "[" else -1
        if character == "*":
            pieces.append([])
        elif character == "?":
            pieces[-1].append("[^/]")
        elif end > 0:
            inside = name[at + 1 : end].replace("\\", r"\\").replace("[", r"\[").replace("&&", r"&\&")
            inside = inside.replace("||", r"|\|").replace("~~", r"~\~").replace("--", r"-\-")
            negated = inside.startswith("!")
            inside = inside.removeprefix("!").replace("^", r"\^")
            inside = rf"\]{inside[1:]}" if inside.startswith("]") else inside
            pieces[-1].append(rf"(?!/)[{'^' if negated else ''}{inside}]")
            at = end
        else:
            pieces[-1].append(re.escape(character))
        at += 1
    return pieces
