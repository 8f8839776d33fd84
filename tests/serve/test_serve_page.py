"""The docs page about the server: its programs run, those of the official clients too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from javascript import run_program
from kit.cluster import free_port
from kit.graphs import chain_of
from serving import serving
from typing_extensions import TypedDict

from stategraph import interrupt
from stategraph.serve import create_app

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
FENCE = re.compile(r"^```(?P<kind>python|output)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["serving", "mcp"])
def test_the_page_runs_as_one_program(capsys, page):
    pytest.importorskip("langgraph_sdk", reason="needs langgraph_sdk: make compat")
    names = {"__name__": "page"}
    shown = ""
    text = (GUIDES / f"{page}.md").read_text().replace("2024", str(free_port()))
    for block in FENCE.finditer(text):
        if block["kind"] == "python":
            exec(block["code"], names)
        else:
            shown += block["code"]
    assert capsys.readouterr().out == shown


class Order(TypedDict, total=False):
    item: str
    log: list[str]


@pytest.mark.trial
def test_the_program_in_javascript_runs():
    [code] = re.findall(r"^```javascript\n(.*?)^```", (GUIDES / "mcp.md").read_text(), re.MULTILINE | re.DOTALL)

    def approve(state: Order):
        return {"log": [f"approved: {interrupt('Order ' + state['item'] + '?')}"]}

    orders = chain_of(Order, approve=approve).compile()
    with serving(create_app({"orders": orders})) as url:
        shown = run_program("page.mjs", code.replace("http://127.0.0.1:2024", url))
    assert shown == "{ item: 'tea', log: [ 'approved: yes' ] }\n"
