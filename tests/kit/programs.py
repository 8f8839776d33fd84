"""Programs that tests run in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OF_THE_PACKAGE = {**os.environ, "PYTHONPATH": str(ROOT / ".types")}
"""The environment of a program that finds the package of this checkout, and nothing of the tests."""


def output_of(*command, timeout=300, **options):
    """What a command prints. It must end well."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def printed(code, *arguments, **options):
    """What a program of this Python prints."""
    return output_of(sys.executable, "-P", "-c", code, *arguments, **options)


def find_peer():
    """The Python of the venv in which LangGraph and LangChain are; a test is skipped where there is none."""
    python = Path(os.environ.get("STATEGRAPH_PEER_PYTHON") or ROOT / ".bench" / "bin" / "python")
    if not python.exists():
        reason = f"the peer is not installed: no {python} (run `make peer`)"
        if os.environ.get("STATEGRAPH_REQUIRE_PEER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return python
