"""Command lines that texts show: found, and parsed as the shell and click would."""

import re
import shlex

from pucache.cli.main import main


def examples(text):
    """The command lines in a text: lines that begin with `pucache`, or with `$` and that, less what stands behind #
    or a wide gap."""
    return re.findall(r"^ *(?:\$ )?(pucache .+?)(?: {2,}.*| *#.*)?$", text, re.MULTILINE)


def examples_in_blocks(markdown):
    """The command lines in the indented blocks of a Markdown text; sentences are left out."""
    return [example for block in re.findall(r"(?:^ {4}.*\n)+", markdown, re.MULTILINE) for example in examples(block)]


def parse(example):
    """Parse a command line; raises where a command or an option does not exist."""
    _, verb, *arguments = shlex.split(example)
    return main.commands[verb].make_context(verb, arguments)
