"""What type checkers say of right and of wrong programs: tests/typed/."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import stategraph

pytestmark = pytest.mark.trial

PROGRAMS = Path(__file__).parent / "typed"
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
