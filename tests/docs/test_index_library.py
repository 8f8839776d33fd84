"""The example index_library as its user meets it: a command in a process of its own, its table, its files, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = {
    "alone.py": "import os, sys\n\ndef one():\n    return 1\n",
    "big/__init__.py": "from os import path\n",
    "big/deep/__init__.py": "",
    "big/deep/core.py": "import os.path\nfrom . import x\n\nclass A:\n    def f(self):\n\n        async def g(): ...\n",
    "big/tests/test_big.py": "def test_skipped(): ...\n",
    "plain/inner.py": "x = 1",
    "not-a-name.py": "def skipped(): ...\n",
    "notes.txt": "import nothing",
}
TABLE = """
modules            5
functions          3
classes            1
lines              13
longest function   big.deep.core.f, 3 lines (from line 5)
most imported      os (3), sys (1)
could not be read  0
"""
MERMAID = [
    "plan --> summarize", 'plan -.->|"\u00d7n"| read', "read --> summarize", 'read -.->|"\u00d7n"| read', "summarize --> __end__",
]  # fmt: skip


def write(folder: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def demo(cwd: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-W", "error", "-m", "stategraph.examples.index_library", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=60)


def table(shown: str) -> str:
    """The part between the progress and the counts of the run."""
    return "\n" + shown.partition("\n\n")[2].rpartition("\n\n")[0] + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "code", TREE)


def test_a_small_folder_is_counted_exactly(folder: Path, tmp_path: Path) -> None:
    done = demo(tmp_path, folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert table(done.stdout) == TABLE
    # plan; the top level; big and plain opened; big.deep opened; the summary. Before them the input and START.
    assert "\n5 supersteps, 7 checkpoints, " in done.stdout


def test_progress_is_one_plain_line_per_round(folder: Path, tmp_path: Path) -> None:
    progress = demo(tmp_path, folder).stdout.partition("\n\n")[0].splitlines()
    assert progress == [f"reading {folder}", "2 files", "4 files", "5 files"]


def test_the_graph_is_drawn_beside_it(folder: Path, tmp_path: Path) -> None:
    assert demo(tmp_path, folder).stdout.endswith("the graph as Mermaid text: index_library.mmd\n")
    drawn = [line.strip() for line in (tmp_path / "index_library.mmd").read_text().splitlines()]
    assert drawn[0] == "graph TD"
    assert [line for line in drawn if "->" in line] == ["__start__ --> plan", *MERMAID]


def test_the_drawing_may_go_elsewhere(folder: Path, tmp_path: Path) -> None:
    assert demo(tmp_path, folder, "--out", "there.mmd").returncode == 0
    assert (tmp_path / "there.mmd").is_file()
    assert not (tmp_path / "index_library.mmd").exists()


def test_a_broken_file_is_counted_and_named(folder: Path, tmp_path: Path) -> None:
    write(folder, {"big/broken.py": "def (:\n", "zeros.py": "\0"})
    done = demo(tmp_path, folder)
    assert done.returncode == 0
    assert "\nmodules            5\n" in done.stdout
    assert "\ncould not be read  2\n" in done.stdout
    assert f"{folder / 'big' / 'broken.py'}: invalid syntax" in done.stdout
    assert f"{folder / 'zeros.py'}: " in done.stdout


def test_a_folder_that_is_itself_a_package(tmp_path: Path) -> None:
    write(tmp_path / "mine", {"__init__.py": "def here(): ...\n", "part.py": ""})
    shown = demo(tmp_path, tmp_path / "mine").stdout
    assert "modules            2\n" in shown
    assert "longest function   mine.here, 1 lines (from line 1)\n" in shown


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = demo(tmp_path, "empty")
    assert (done.returncode, done.stderr) == (0, "")
    assert "modules            0\n" in done.stdout
    assert "longest" not in done.stdout
    assert "\n2 supersteps, 4 checkpoints, " in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["file.py"], "file.py is not a folder"),
        ([".", "--out", "nowhere/graph.mmd"], "--out: nowhere/graph.mmd cannot be written"),
        ([".", "--out", "."], "--out: . cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, words: list[str], complaint: str) -> None:
    (tmp_path / "file.py").touch()
    done = demo(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"error: {complaint}\n")
    assert "Traceback" not in done.stderr
