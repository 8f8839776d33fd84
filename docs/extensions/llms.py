"""llms.txt, which lists the pages with their first sentences, and llms-full.txt, which is all of
them in one file, for language models that read the site."""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

HEAD = """\
# stategraph

> Agents and workflows in Python that survive crashes, ask people, and can be replayed.

"""


def first_sentence(page: nodes.document) -> str:
    """The first sentence of a page."""
    for paragraph in page.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        return re.split(r"(?<=[.:])\s", text)[0].rstrip(":")
    return ""


def write_lists(app: Sphinx, failed: Exception | None) -> None:
    if failed or app.builder.format != "html":
        return
    listed, whole = [HEAD], []
    for name in sorted(app.env.found_docs):
        title = app.env.titles[name].astext()
        listed.append(f"- [{title}]({name}.html): {first_sentence(app.env.get_doctree(name))}\n")
        if not name.startswith(("reference/api", "notebooks")):
            whole.append(Path(app.env.doc2path(name)).read_text())
    Path(app.outdir, "llms.txt").write_text("".join(listed))
    Path(app.outdir, "llms-full.txt").write_text("\n\n".join(whole))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write_lists)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
