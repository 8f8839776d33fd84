"""The page about the server: its programs run, the one of the official client too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cluster import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serving.md"
FENCE = re.compile(r"^```(?P<kind>python|output)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_page_runs_as_one_program(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "page"}
    shown = ""
    text = PAGE.read_text().replace("2024", str(free_port()))
    for block in FENCE.finditer(text):
        if block["kind"] == "python":
            exec(block["code"], names)
        else:
            shown += block["code"]
    assert capsys.readouterr().out == shown
