"""Plain readings of text formats, written from their definitions, to hold pucache's answers against."""

from __future__ import annotations

from functools import cache

LONGEST_CELL = 131_072  # the limit of Python's csv module


class Malformed(ValueError):
    """Not such a text at all."""


def lines(data: bytes) -> list[str]:
    """The lines of a UTF-8 text that are not blank; only CR, LF and CRLF end one."""
    text = _decoded(data).replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in text.split("\n") if line.strip()]


def _decoded(data: bytes) -> str:
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8") from error


def table(data: bytes, separator: str = ",") -> tuple[list[str], list[dict[str | None, str | None]]]:
    """First line and rows of a CSV; missing cells are None, None names surplus ones, empty lines do not count."""
    rows = _rows(_decoded(data), separator)
    header, rows = (rows[0], [row for row in rows[1:] if row]) if rows else ([], [])
    named = [dict(zip(header, row + [None] * (len(header) - len(row)), strict=False)) for row in rows]
    surplus = ["surplus" if len(row) > len(header) else None for row in rows]
    return header, [{**row, None: more} for row, more in zip(named, surplus, strict=True)]


def _rows(text: str, separator: str) -> list[list[str]]:
    rows: list[list[str]] = []
    at, size = 0, len(text)
    while at < size:
        row: list[str] = []
        while True:
            cell, at, quoted = _cell(text, at, separator)
            if len(cell) > LONGEST_CELL:
                raise Malformed("a cell is too long")
            row.append(cell)
            if at < size and text[at] == separator:
                at += 1
                continue
            break
        if text[at : at + 2] == "\r\n":
            at += 2
        elif at < size:
            at += 1
        rows.append([] if row == [""] and not quoted else row)
    return rows


def _cell(text: str, at: int, separator: str) -> tuple[str, int, bool]:
    if text[at : at + 1] != '"':
        start = at
        while at < len(text) and text[at] not in (separator, "\r", "\n"):
            at += 1
        return text[start:at], at, False
    pieces, at = [], at + 1
    while True:
        end = text.find('"', at)
        if end < 0:
            raise Malformed("a quote is not closed")
        pieces.append(text[at:end])
        at = end + 1
        if text[at : at + 1] != '"':
            break
        pieces.append('"')
        at += 1
    if at < len(text) and text[at] not in (separator, "\r", "\n"):
        raise Malformed("something follows a closing quote")
    return "".join(pieces), at, True


def matches(pattern: str, key: str) -> bool:
    """Whether a glob without brackets matches: `*` and `?` stay within a folder, `**` does not; never slow.

    A segment `*` stands for at least one character, `**/` for any folders or none.
    """
    tokens: list[str] = []
    segments = pattern.split("/")
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            tokens.append("everything" if last else "folders")
            continue
        if "**" in segment:
            raise Malformed("** beside other characters")
        tokens += ["?", "*"] if segment == "*" else list(segment)
        if not last:
            tokens.append("/")
    return _matches(tuple(tokens), key)


def _matches(tokens: tuple[str, ...], key: str) -> bool:
    @cache
    def rest(token: int, at: int) -> bool:
        if token == len(tokens):
            return at == len(key)
        kind = tokens[token]
        if kind == "everything":
            return True
        if kind == "folders":
            return rest(token + 1, at) or any(key[j] == "/" and rest(token + 1, j + 1) for j in range(at + 1, len(key)))
        if kind == "*":
            return rest(token + 1, at) or (at < len(key) and key[at] != "/" and rest(token, at + 1))
        return at < len(key) and (key[at] != "/" if kind == "?" else key[at] == kind) and rest(token + 1, at + 1)

    return rest(0, 0)
