"""The pages that users read: their python runs, as one program each, and their links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ["README.md", "docs/channels.md", "docs/streaming.md", "docs/time-travel.md", "docs/questions.md", "docs/memory.md", "docs/security.md"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_python_of_a_page_runs_top_to_bottom_as_one_program(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / name
    text = page.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks, f"{name} shows no python"
    program = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", program)  # so that annotations in it can be resolved
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        above = text.count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], str(page), "exec"), program.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]
