"""`.. commands:: module:group name` writes a section with the help of each command of a click group."""

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_AS_TYPED = "\b"  # marks a paragraph that click does not wrap: the command lines


class Commands(SphinxDirective):
    """The commands of a group in the order of their registration: usage, help and every option."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Write the sections."""
        module, name = self.arguments[0].split(":")
        group = getattr(import_module(module), name)
        top = click.Context(group, info_name=self.arguments[1], **group.context_settings)
        commands = [click.Context(command, info_name=name, parent=top) for name, command in group.commands.items()]
        return [self._section(context) for context in [top, *commands]]

    def _section(self, context: click.Context) -> nodes.section:
        title = context.command_path
        section = nodes.section("", nodes.title("", "", nodes.literal("", title)), names=[title])
        self.state.document.note_implicit_target(section, section)
        source, _ = self.get_source_info()
        self.state.nested_parse(StringList(list(_lines(context)), source), 0, section)
        return section


def _lines(context: click.Context) -> Iterator[str]:
    """Usage, help and options of a command, as reStructuredText."""
    command = context.command
    yield from _block(" ".join([context.command_path, *command.collect_usage_pieces(context)]))
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith(_AS_TYPED):
            yield from _block(paragraph.removeprefix(_AS_TYPED).strip("\n"))
        else:
            yield from (_inline(" ".join(paragraph.split())), "")
    yield from (f".. program:: {context.command_path}", "")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and record[1]:
            yield from (f".. option:: {record[0]}", "", f"   {_inline(' '.join(record[1].split()))}", "")


def _block(text: str) -> list[str]:
    return [".. code-block:: text", "", *(f"   {line}" for line in text.splitlines()), ""]


def _inline(text: str) -> str:
    """Escape a sentence for reStructuredText; text in backticks becomes code."""
    pieces = re.split(r"`([^`]+)`", text)
    pieces[::2] = [re.sub(r"([\\*_|`<>])", r"\\\1", piece) for piece in pieces[::2]]
    pieces[1::2] = [f"``{piece}``" for piece in pieces[1::2]]
    return "".join(pieces)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
