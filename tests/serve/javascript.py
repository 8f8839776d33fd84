"""Programs of official clients in other environments (`clients/`), run beside what `make clients` installs."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.programs import ROOT

FOLDER = ROOT / ".clients"
REQUIRED = os.environ.get("STATEGRAPH_REQUIRE_NODE") == "1"  # then a missing client fails instead


def run_client(program, url):
    """What a program has printed of its session with a server, as a value."""
    return json.loads(run_program(program, (Path(__file__).parent / "clients" / program).read_text(), url))


def run_program(name, text, *arguments):
    """What a program prints."""
    is_python = name.endswith(".py")
    found = shutil.which(FOLDER / "a2a" / "bin" / "python" if is_python else "node")
    if not REQUIRED and (found is None or not (is_python or (FOLDER / "node_modules").is_dir())):
        pytest.skip("needs Node.js and `make clients`")
    assert found is not None
    place = FOLDER / name  # beside the modules that it imports
    place.write_text(text)
    done = subprocess.run([found, place, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
