"""What type checkers report for correct and for wrong programs: tests/package/typed/."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from kit.programs import ROOT, find_peer, output_of

import stategraph

pytestmark = pytest.mark.trial

PROGRAMS = Path(__file__).with_name("typed")
NAMES = sorted(file.name for file in PROGRAMS.glob("*.py"))
MISTAKE = re.compile(r"# E(?: but (\w+))?$")
HEADING = re.compile(r"^# -- (\w+) -+$", re.MULTILINE)
ERROR = re.compile(r"(\w+\.py):(\d+): error: (.*)$", re.MULTILINE)
Found = dict[str, dict[int, str]]
"""File → line → what is wrong there."""


def run(command: list[str], home: Path, **environment: str) -> str:
    """What a checker prints that has checked all programs."""
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def mypy(home: Path) -> Found:
    # As `make lint` calls it, whose cache holds the package.
    (ROOT / ".types").mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (ROOT / ".types/stategraph").symlink_to("..")
    printed = run([sys.executable, "-m", "mypy", *(str(home / name) for name in NAMES)], ROOT, MYPYPATH=".types")
    found = defaultdict(dict)
    for file, line, text in ERROR.findall(printed):
        found[file][int(line)] = text
    return found


def pyright(home: Path) -> Found:
    (home / "pyrightconfig.json").write_text(json.dumps({"include": NAMES}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(home)]
    report = json.loads(run(command, home))
    assert report["summary"]["filesAnalyzed"] == len(NAMES)
    found = defaultdict(dict)
    for each in report["generalDiagnostics"]:
        found[Path(each["file"]).name][each["range"]["start"]["line"] + 1] = each["message"]
    return found


def pyrefly(home: Path) -> Found:
    (home / "pyrefly.toml").touch()  # without one, it checks little
    command = [sys.executable, "-m", "pyrefly", "check", "--python-interpreter-path", sys.executable]
    report = json.loads(run([*command, "--output-format=json", *NAMES], home))
    found = defaultdict(dict)
    for each in report["errors"]:
        found[Path(each["path"]).name][each["line"]] = each["description"]
    return found


CHECKERS = [mypy, pyright, pyrefly]


@pytest.fixture(scope="module", params=CHECKERS, ids=lambda checker: checker.__name__)
def checker(request):
    return request.param


@pytest.fixture(scope="module")
def found(checker, tmp_path_factory):
    """What one checker finds, in a folder where the package has its name."""
    home = tmp_path_factory.mktemp("programs")
    shutil.copytree(PROGRAMS, home, dirs_exist_ok=True)
    (home / "stategraph").symlink_to(Path(stategraph.__file__).parent)
    return checker(home)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("right")])
def test_nothing_is_wrong_with_right_programs(name, found):
    assert found[name] == {}


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("wrong")])
def test_every_mistake_is_found_and_nothing_else(name, found, checker):
    lines = (PROGRAMS / name).read_text().splitlines()
    mistakes = set(list_mistakes(name, checker.__name__))
    missed = [lines[number - 1] for number in sorted(mistakes - found[name].keys())]
    false = {lines[number - 1]: text for number, text in found[name].items() if number not in mistakes}
    assert (missed, false) == ([], {})


def list_mistakes(name, checker=""):
    """The lines of a program that are wrong, less those that a checker is known not to find."""
    lines = enumerate((PROGRAMS / name).read_text().splitlines(), 1)
    return [number for number, line in lines if (at := MISTAKE.search(line)) and at[1] != checker]


KINDS = {
    "nodes": "nodes and edges",
    "calls": "calls and results",
    "functional": "tasks and entrypoints",
    "tasks": "tasks and entrypoints",
    "entrypoints": "tasks and entrypoints",
}
"""Heading in a wrong program → row of the table."""


def count_by_kind(checker=""):
    """How many mistakes of each kind a checker finds, or there are."""
    counts = Counter()
    for name in NAMES:
        headings = list(HEADING.finditer((PROGRAMS / name).read_text())) if name.startswith("wrong") else []
        lines = {at.string.count("\n", 0, at.start()) + 1: KINDS[at[1]] for at in headings}
        for number in list_mistakes(name, checker):
            counts[lines[max(line for line in lines if line < number)]] += 1
    return counts


def test_the_table_in_the_docs_counts_the_mistakes():
    text = (ROOT / "docs/reference/types.md").read_text()
    found = [count_by_kind(checker.__name__) for checker in CHECKERS]
    for kind, planted in count_by_kind().items():
        assert f"| {kind} | {planted} | {', '.join(str(each[kind]) for each in found)} |" in text


def langchain():
    """Where LangChain lies: in the venv of the peer. `compat` subclasses its classes."""
    return output_of(find_peer(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()


def install(home):
    """Put there what the wheel has, and nothing that merely lies beside it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in settings["packages"]:
        folder = home / package.replace(".", "/")
        folder.mkdir()
        for file in (ROOT / folder.relative_to(home / "stategraph")).glob("*.py"):
            shutil.copy(file, folder)
    shutil.copy(ROOT / "py.typed", home / "stategraph")


def test_the_type_of_everything_public_is_known(tmp_path):
    install(tmp_path)
    # Here it is the `python` on the path that says where packages are.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    surroundings = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(tmp_path), langchain()])}
    command = [sys.executable, "-m", "pyright", "--verifytypes", "stategraph", "--ignoreexternal", "--outputjson"]
    run = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    found = json.loads(run.stdout)["typeCompleteness"]
    assert Path(found["packageRootDirectory"]) == tmp_path / "stategraph"
    vague = {
        each["name"]: [problem["message"] for problem in each["diagnostics"]]
        for each in found["symbols"]
        if each["isExported"] and not each["isTypeKnown"]
    }
    assert found["exportedSymbolCounts"]["withUnknownType"] == 0, vague
    assert found["completenessScore"] >= 0.99, vague
