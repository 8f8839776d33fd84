"""Links from pages to files of the repository that are not pages themselves.

The site is read offline and apart from the repository, so such a link becomes the file's path. A
few files outside docs/ are pages, too: a page of the site includes each.
"""

import re
from pathlib import Path
from posixpath import normpath

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
INCLUDED = {
    "README.md": "index.md",
    "CHANGELOG.md": "reference/changelog.md",
    "benchmarks/README.md": "explanation/benchmarks.md",
    "testing/README.md": "reference/conformance.md",
}
"""Files outside docs/, and the pages of the site that show them."""

LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def rewrite_links(text: str, page: str, folder: str) -> str:
    """The text of a page with its links out of docs/ replaced.

    Args:
        page: the page that shows the text, from docs/ on.
        folder: the folder of the file that the text is from, from the repository root on.
    """

    def replace(link: re.Match[str]) -> str:
        words, target, anchor = link[1], normpath(f"{folder}/{link[2]}"), link[3] or ""
        if target in INCLUDED:
            return f"[{words}](/{INCLUDED[target]}{anchor})"
        if target.startswith("docs/"):
            return f"[{words}](/{target.removeprefix('docs/')}{anchor})"
        assert (ROOT / target).exists(), f"docs/{page}: no file {target}"
        return words if target in words else f"{words} (`{target}`)"

    return LINK.sub(replace, text)


def rewrite_page(app: Sphinx, page: str, text: list[str]) -> None:
    text[0] = rewrite_links(text[0], page, f"docs/{page}".rpartition("/")[0])


def rewrite_included(app: Sphinx, path: Path, page: str, text: list[str]) -> None:
    folder = Path(app.srcdir, path).resolve().parent.relative_to(ROOT)
    text[0] = rewrite_links(text[0], page, str(folder))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", rewrite_page)
    app.connect("include-read", rewrite_included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
