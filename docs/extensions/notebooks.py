"""The notebooks as pages, with the outputs that they are kept with. They are written to
docs/notebooks before the site is built, and are no part of the repository there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
INDEX = """\
# Notebooks

<!-- found as: Jupyter, notebook, marimo, VS Code -->

These are [`notebooks/`](../../notebooks/01_tour.ipynb) as they ran last; `make notebooks` runs them
again.

```{{toctree}}
:maxdepth: 1

{}
```
"""


def text_of(value: str | list[str]) -> str:
    """A text; in a notebook's file it may be a list of lines."""
    return value if isinstance(value, str) else "".join(value)


def fence(kind: str, text: str) -> str:
    return f"`````{kind}\n{text.rstrip()}\n`````\n"


def write_output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        return fence("{raw} html", f'<div class="shown">{text_of(data["text/html"])}</div>')
    if "image/svg+xml" in data:
        return fence("{raw} html", f'<div class="shown">{text_of(data["image/svg+xml"])}</div>')
    return fence("text", text_of(data.get("text/plain", "")))


def write_cells(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = text_of(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source.replace(".ipynb)", ".notebook)").replace("](../", "](../../")
        else:
            yield fence("python", source)
            yield from map(write_output, cell["outputs"])


def write_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir, "notebooks")
    folder.mkdir(exist_ok=True)
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    pages = {path.stem: "\n".join(write_cells(json.loads(path.read_text()))) for path in paths}
    pages["index"] = INDEX.format("\n".join(pages))
    for name, text in pages.items():
        page = folder / f"{name}.notebook"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
