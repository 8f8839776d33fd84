"""Runs the notebooks from top to bottom and keeps their outputs, tidied so that another run changes
little.

    python notebooks/run.py [NAME ...]

A notebook is its own source: edit it in Jupyter, then run this. Nothing here knows what a notebook
shows.

Cells tagged `varies` show times or ids. Their stored outputs stay as long as the new ones differ in
numbers only.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

HERE = Path(__file__).resolve().parent
AT_ONCE = 2
PATIENCE = 120
"""Seconds for one cell."""
VARIES = "varies"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run_all(paths: Sequence[Path], *, keep_going: bool = False) -> dict[str, Any]:
    """Run notebooks, each in the folder it lies in, two at a time. The files are not touched.

    Args:
        keep_going: run the cells after one that raises, too; the error is then among its outputs.

    Returns:
        the name of each → the notebook with its new outputs.
    """

    async def one(path: Path, turn: asyncio.Semaphore, sockets: Path) -> Any:
        notebook = nbformat.read(path, as_version=4)
        # Not TCP: a port that was free when chosen may be taken a moment later.
        place = {"transport": "ipc", "connection_file": str(sockets / f"{path.stem}.json")}
        client = NotebookClient(
            notebook,
            config=Config(KernelManager=place),
            timeout=PATIENCE,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            allow_errors=keep_going,
            resources={"metadata": {"path": str(path.parent)}},
        )
        async with turn:
            await client.async_execute()
        return tidy(notebook)

    async def all_of_them() -> list[Any]:
        turn = asyncio.Semaphore(AT_ONCE)
        with TemporaryDirectory() as folder:
            return await asyncio.gather(*(one(path, turn, Path(folder)) for path in paths))

    return dict(zip([path.stem for path in paths], asyncio.run(all_of_them()), strict=True))


def tidy(notebook: Any) -> Any:
    """The notebook without what says when, where and by which version it was run."""
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        for output in cell.get("outputs", ()):
            output.pop("transient", None)
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
    return notebook


def keep_known(notebook: Any, stored: Any) -> None:
    """Put the stored outputs back where only numbers differ, in cells that are marked for it."""
    known = {cell.id: cell for cell in stored.cells}
    for cell in notebook.cells:
        old = known.get(cell.id)
        if (
            old is not None
            and VARIES in cell.metadata.get("tags", ())
            and _blurred(cell) == _blurred(old)
        ):
            cell.outputs = old.outputs


def _blurred(cell: Any) -> str:
    """A cell's source and outputs without numbers, the units of times, and the lengths of bars of
    text."""
    outputs = json.dumps([cell.source, cell.get("outputs")], sort_keys=True, ensure_ascii=False)
    return re.sub(r"[0-9a-f-]{8,}|-?[\d.,]+( [mµ]?s\b)?|[ █─]+", "#", outputs)


def main(names: Iterable[str]) -> None:
    """Run those whose names begin so, or all, and write them."""
    wanted = tuple(names)
    paths = [p for p in sorted(HERE.glob("*.ipynb")) if not wanted or p.name.startswith(wanted)]
    for name, notebook in run_all(paths).items():
        path = HERE / f"{name}.ipynb"
        keep_known(notebook, nbformat.read(path, as_version=4))
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
