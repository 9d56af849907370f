"""The code blocks of the pages: found, and taken apart into commands."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pucache.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)], key=str
)
_BLOCK = re.compile(r"(?:^<!-- (.+?) -->\n)?^```(.*)\n((?s:.*?))^```$", re.MULTILINE)
_OPERATOR = re.compile(r"[();<>|&]+")


@dataclass(frozen=True)
class Block:
    """A fenced block, the comment just above it, and whether nothing but an empty line is between it and the last."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    follows: bool

    def __str__(self):
        return f"{name(self.page)}:{self.line}"


def name(page):
    """What a page is called in the ids of tests."""
    return str(page.relative_to(ROOT))


def blocks(page):
    """The fenced blocks of a page, in their order; directives of the site are none."""
    whole, end, found = page.read_text(), None, []
    for match in _BLOCK.finditer(whole):
        mark, language, text = match.groups()
        if not language.startswith("{"):
            line = whole.count("\n", 0, match.end()) - text.count("\n")
            follows = end is not None and not whole[end : match.start()].strip()
            found.append(Block(page, line, language, text, mark or "", follows))
        end = match.end()
    return found


def indented(page):
    """The first lines of blocks that are indented instead of fenced, or fences within a list."""
    bare = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\n\n( {4,}\S.*)|\n( +```.*)", bare)


def sessions(text):
    """The commands of a console block, each with the lines that it is said to print."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert parts[0] == "", f"a console block begins with $, not with {parts[0]!r}"
    return [(command, printed.splitlines()) for command, printed in zip(parts[1::2], parts[2::2], strict=True)]


def commands(text):
    """The commands of a block of shell, each as a text of its own; one may take several lines."""
    found, begun = [], ""
    for line in text.splitlines(keepends=True):
        begun += line
        if not re.search(r"[\\|]\n$|&&\n$", begun) and _complete(begun):
            found += [begun] if begun.strip() else []
            begun = ""
    assert not begun, f"a command without an end: {begun}"
    return found


def _complete(text):
    """Whether bash reads a text to its end without asking for more."""
    return subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0


def words(command):
    """The simple commands that a command is made of, as lists of words; comments are left out."""
    reader = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    parts = [[]]
    for word in reader:
        if _OPERATOR.fullmatch(word):
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def plain(command):
    """The arguments of a command that is one of pucache's and needs no shell, else None."""
    return words(command)[0][1:] if re.match(r"pucache [^$|&;<>()\n]+(#.*)?\n?$", command) else None


def parse(arguments):
    """Parse arguments of pucache as click would; raises where a command or an option does not exist."""
    verb, *rest = arguments
    if verb.startswith("-"):
        main.make_context("pucache", arguments, resilient_parsing=True)
    else:
        main.commands[verb].make_context(verb, rest)


def arguments_within(command):
    """The arguments of every call of pucache within a command, in a container or under torchrun too."""
    for part in words(command):
        if part[0] == "pucache":
            yield part[1:]
        elif part[:2] == ["docker", "run"]:
            yield part[next(at for at, word in enumerate(part) if word.startswith("pucache:")) + 1 :]
        elif part[0] == "torchrun":
            yield part[part.index("pucache") + 1 :]
