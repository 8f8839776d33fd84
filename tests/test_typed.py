"""What type checkers say of right and of wrong programs: tests/typed/."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import stategraph

pytestmark = pytest.mark.trial

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tests" / "typed"
ERROR = re.compile(r"^(\w+\.py):(\d+): error: (.*)$", re.MULTILINE)
Found = dict[str, dict[int, str]]
"""File → line → what is wrong there."""


def mypy(home: Path) -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"]
    run = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    found: Found = defaultdict(dict)
    for file, line, text in ERROR.findall(run.stdout):
        found[file][int(line)] = text
    return found


def pyright(home: Path) -> Found:
    (home / "pyrightconfig.json").write_text('{"include": ["right.py", "wrong.py"]}')
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(home)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    found: Found = defaultdict(dict)
    for each in report["generalDiagnostics"]:
        found[Path(each["file"]).name][each["range"]["start"]["line"] + 1] = each["message"]
    return found


@pytest.fixture(scope="module", params=[mypy, pyright], ids=["mypy", "pyright"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What one checker finds, in a folder where the package has its name."""
    home = tmp_path_factory.mktemp("programs")
    shutil.copytree(PROGRAMS, home, dirs_exist_ok=True)
    (home / "stategraph").symlink_to(Path(stategraph.__file__).parent)
    result: Found = request.param(home)
    return result


def test_nothing_is_wrong_with_right_programs(found: Found) -> None:
    assert found["right.py"] == {}


def test_every_mistake_is_found_and_nothing_else(found: Found) -> None:
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    mistakes = {number for number, line in enumerate(lines, 1) if line.endswith("# E")}
    missed = [lines[number - 1] for number in sorted(mistakes - found["wrong.py"].keys())]
    false = {lines[number - 1]: text for number, text in found["wrong.py"].items() if number not in mistakes}
    assert (missed, false) == ([], {})


def langchain() -> str:
    """Where LangChain lies: in the venv of the peer. `compat` subclasses its classes."""
    named = os.environ.get("STATEGRAPH_PEER_PYTHON")
    python = Path(named) if named else ROOT / ".bench" / "bin" / "python"
    if not python.exists():
        reason = f"LangChain is not installed: no {python} (run `make peer`)"
        if os.environ.get("STATEGRAPH_REQUIRE_PEER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()


def install(home: Path) -> None:
    """Put there what the wheel has, and nothing that merely lies beside it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in settings["packages"]:
        folder = home / package.replace(".", "/")
        folder.mkdir()
        for file in (ROOT / folder.relative_to(home / "stategraph")).glob("*.py"):
            shutil.copy(file, folder)
    shutil.copy(ROOT / "py.typed", home / "stategraph")


def test_the_type_of_everything_public_is_known(tmp_path: Path) -> None:
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
