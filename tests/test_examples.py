"""Every program in examples/ runs by itself and prints what it says it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TESTED = {"index_library", "map_reduce", "newton"}


def run(name: str, *words: str, cwd: Path) -> str:
    command = [sys.executable, "-P", "-W", "error", "-m", f"stategraph.examples.{name}", *words]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=60).stdout


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"} == TESTED


def test_index_library(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import os\n")
    shown = run("index_library", ".", cwd=tmp_path)
    assert "modules            1\n" in shown
    assert (tmp_path / "index_library.mmd").exists()


def test_map_reduce(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("One two, two.")
    (tmp_path / "b").write_text("two three three")
    assert run("map_reduce", "a", "b", cwd=tmp_path).splitlines() == [
        "6 words in 2 files",
        "     3 two",
        "     2 three",
        "     1 one",
    ]


def test_map_reduce_reads_the_examples(tmp_path: Path) -> None:
    assert f" words in {len(TESTED) + 1} files\n" in run("map_reduce", cwd=tmp_path)


def test_newton_finds_the_root(tmp_path: Path) -> None:
    assert run("newton", "9", cwd=tmp_path).splitlines()[-1] == "3"


def test_newton_gives_up_where_there_is_no_root(tmp_path: Path) -> None:
    *guesses, last = run("newton", "-3", cwd=tmp_path).splitlines()
    assert len(guesses) == 20
    assert last.startswith("gave up: StateGraph: recursion limit of 20 supersteps reached with work left: improve")
