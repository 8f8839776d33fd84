"""The page of the commands: what `python -m stategraph COMMAND --help` prints, for each."""

import os
from contextlib import redirect_stdout
from io import StringIO

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from stategraph.__main__ import COMMANDS, main


def help_of(command: str) -> str:
    """The text that `--help` prints, at 96 columns and without colors."""
    os.environ.update(COLUMNS="96", NO_COLOR="1")
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            main([command, "--help"])
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{command} --help ended with {end.code}") from end
    return printed.getvalue()


class CommandHelp(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for command in COMMANDS:
            section = nodes.section(ids=[nodes.make_id(f"command-{command}")])
            section += nodes.title("", "", nodes.literal("", command))
            text = help_of(command)
            section += nodes.literal_block(text, text, language="text")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
