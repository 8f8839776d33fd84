"""The server, as the official JavaScript client sees it. `make clients` installs that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stategraph.serve import create_app

from .serving import Gates, make_flow, serving

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".clients"
REQUIRED = os.environ.get("STATEGRAPH_REQUIRE_NODE") == "1"  # then a missing client fails instead


def test_a_session_of_the_javascript_client() -> None:
    node = shutil.which("node")
    if not REQUIRED and (node is None or not (FOLDER / "node_modules").is_dir()):
        pytest.skip("needs Node.js and `make clients`")
    assert node is not None
    program = FOLDER / "flow.mjs"  # beside the modules that it imports
    program.write_text((Path(__file__).parent / "clients" / "flow.mjs").read_text())
    with serving(create_app({"flow": make_flow(Gates())})) as url:
        done = subprocess.run([node, program, url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "waited": {"log": ["x", "a", "b"]},
        "streamed": [
            ["custom", {"from": "a"}],
            ["updates", {"a": {"log": ["a"]}}],
            ["updates", {"b": {"log": ["b"]}}],
        ],
        "history": [[], ["b"]],
        "edited": ["b"],
        "goneOn": "b",
        "asked": {"question": "name?"},
        "status": "interrupted",
        "resumed": ["a", "Ann"],
        "joined": [["updates", {"a": {"log": ["a"]}}], ["updates", {"b": {"log": ["b"]}}]],
        "failed": [
            ["updates", {"a": {"log": ["a"]}}],
            ["error", {"error": "ValueError", "message": "boom"}],
        ],
        "searched": 1,
        "assistants": ["flow"],
        "stored": {"text": "hi"},
        "gone": 404,
    }
