"""Globs on keys, compiled to regular expressions that do not backtrack.

The usual translation of ``a*a*a*b`` takes exponential time to reject a key. Here each star matches as
little as lets the next fixed piece match, and keeps that match (an atomic group). A longer match would not
help, because all that follows can be matched later just as well. So matching takes time about linear in
the length of the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable


def compile_glob(pattern: str) -> Callable[[str], object]:
    """Compile a glob to a function of a key whose result is true where the key matches.

    ``*`` and ``?`` match within a folder name; ``*`` alone stands for a name of at least one character.
    ``**`` stands for any number of folders, and at the end for anything. ``[abc]``, ``[a-z]`` and ``[!abc]``
    stand for one character. Raises ValueError for ``**`` beside other characters, or an invalid range in brackets.
    """
    names = pattern.split("/")
    if any("**" in name and name != "**" for name in names):
        raise ValueError(f"in {pattern!r} ** stands beside other characters; write it as a folder of its own: 'a/**/b'")
    runs: list[list[str]] = [[]]  # names between one ** and the next
    for name in names:
        if name == "**":
            runs.append([])
        else:
            runs[-1].append(name)
    begin, *middle = runs
    end = middle.pop() if middle else None
    expression = "/".join(map(_name_expression, begin)) + ("/" if begin and end is not None else "")
    for run in filter(None, middle):
        expression += rf"(?>(?:[^/]*/)*?{'/'.join(map(_name_expression, run))}/)"
    if end is not None:
        expression += rf"(?:.*/)?{'/'.join(map(_name_expression, end))}" if end else ".*"
    try:
        return re.compile(rf"(?s:{expression})\Z").match
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a glob ({error})") from error


def _name_expression(name: str) -> str:
    """Regular expression for one name of a path."""
    if name == "*":
        return r"[^/]+"
    first, *pieces = map("".join, _pieces(name))
    if not pieces:
        return first
    return first + "".join(rf"(?>[^/]*?{piece})" for piece in pieces[:-1] if piece) + rf"[^/]*{pieces[-1]}"


def _pieces(name: str) -> list[list[str]]:
    """Parts of a name between its stars, each a list of regular expressions for one character."""
    pieces: list[list[str]] = [[]]
    for part in re.findall(r"\[!?+.[^]]*+]|.", name, re.DOTALL):
        if part == "*":
            pieces.append([])
        elif part == "?":
            pieces[-1].append("[^/]")
        else:
            pieces[-1].append(_bracket_expression(part[1:-1]) if len(part) > 1 else re.escape(part))
    return pieces


def _bracket_expression(inside: str) -> str:
    """Regular expression for the content of brackets; ``/`` never matches."""
    inside = inside.replace("\\", r"\\").replace("[", r"\[").replace("&&", r"&\&")
    inside = inside.replace("||", r"|\|").replace("~~", r"~\~").replace("--", r"-\-")
    negated = inside.startswith("!")
    inside = inside.removeprefix("!").replace("^", r"\^")
    inside = rf"\]{inside[1:]}" if inside.startswith("]") else inside
    return rf"(?!/)[{'^' if negated else ''}{inside}]"
