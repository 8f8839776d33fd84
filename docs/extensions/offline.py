"""The finished site loads nothing from elsewhere: no script, style, font or picture."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(["']?((?:https?:)?//[^"')]+)"""
    r"""|@import\s+["']((?:https?:)?//[^"']+)""",
    re.IGNORECASE,
)


def hosts_in(text: str) -> list[str]:
    """The addresses elsewhere that a page or a style sheet loads. Links are not loaded."""
    return ["".join(found) for found in LOADED.findall(text)]


def check_site(app: Sphinx, failed: Exception | None) -> None:
    if failed or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in (".html", ".css") and (found := hosts_in(path.read_text())):
            page = path.relative_to(app.outdir)
            raise SphinxError(f"{page} must load nothing from elsewhere, got {found[0]}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", check_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
