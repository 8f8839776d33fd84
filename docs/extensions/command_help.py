"""The page of the commands: what `stategraph COMMAND --help` prints, for each."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from stategraph.__main__ import format_help


class CommandHelp(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for command, text in format_help(96).items():
            if command:
                section = nodes.section(ids=[nodes.make_id(f"command-{command}")])
                section += nodes.title("", "", nodes.literal("", command))
                section += nodes.literal_block(text, text, language="text")
                sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
