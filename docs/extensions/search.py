"""The site's search: words that a page is found by, and excerpts that need no server.

`<!-- found as: docker, kubernetes -->` below a title puts these words into the index.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

FOUND_AS = re.compile(r"<!-- found as: (.+?) -->")
SCRIPT = """\
// A page that was opened from a file must not read other files: their texts are here.
if (location.protocol === "file:") {
  const pages = %s;
  window.fetch = async url => {
    const text = `<div role="main">${pages[url.replace("./", "")]}</div>`;
    return { text: async () => text };
  };
}
"""


def index_words(app: Sphinx, page: str, text: list[str]) -> None:
    """Turn the comment into a directive, which readers of the Markdown would see."""

    def directive(found: re.Match[str]) -> str:
        words = ", ".join(f"! {word}" for word in found[1].split(", "))
        return f"```{{index}} {words}\n```"

    text[0] = FOUND_AS.sub(directive, text[0])


def text_of(document: nodes.document) -> str:
    """Each section of a page under its ids, without the sections inside it."""
    parts = []
    for section in document.findall(nodes.section):
        own = [child for child in section.children if not isinstance(child, nodes.section)]
        text = html.escape(" ".join(child.astext() for child in own))
        targets = [child for child in own if isinstance(child, nodes.target)]
        for name in (*section["ids"][:1], *(name for each in targets for name in each["ids"])):
            text = f'<section id="{name}">{text}</section>'
        parts.append(text)
    return "\n".join(parts)


def load_texts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None
) -> None:
    if page == "search":
        app.add_js_file("texts.js", priority=100)


def write_texts(app: Sphinx, failed: Exception | None) -> None:
    if failed or app.builder.format != "html":
        return
    texts = {f"{page}.html": text_of(app.env.get_doctree(page)) for page in app.env.found_docs}
    Path(app.outdir, "_static/texts.js").write_text(SCRIPT % json.dumps(texts))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", index_words)
    app.connect("html-page-context", load_texts)
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
