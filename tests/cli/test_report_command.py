"""`python -m stategraph report`: a page from a file of threads and the name of a graph."""

import sys

import pytest
from kit.drive import forget_modules
from kit.graphs import thread_config

from stategraph.__main__ import main
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.graph.loader import load

SHOP = """
from dataclasses import dataclass
from operator import add
from typing import Annotated, TypedDict
from stategraph import START, StateGraph, interrupt

@dataclass
class Item:
    name: str

class State(TypedDict):
    items: Annotated[list[Item], add]

graph = StateGraph(State)
graph.add_node("choose", lambda state: {"items": [Item("a red pot")]})
graph.add_node("ask", lambda state: {"items": [Item(interrupt("wrap it?"))]})
graph.add_edge(START, "choose").add_edge("choose", "ask")
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with a module and a thread that its graph has left in a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "corner_shop.py").write_text(SHOP)
    module = load("corner_shop.py")
    with SqliteSaver.from_conn_string("shop.db") as saver:
        module.graph.compile(saver).invoke({"items": []}, thread_config("7"))
    del sys.modules["corner_shop"]  # the command runs in a process of its own
    yield tmp_path
    forget_modules(tmp_path)


def test_a_stored_thread_becomes_a_page(shop, capsys):
    assert main(["report", "--db", "shop.db", "--thread", "7", "corner_shop.py:graph", "-o", "page.html"]) == 0
    assert capsys.readouterr().out == "page.html\n"
    page = (shop / "page.html").read_text(encoding="utf-8")
    assert "Item(name='a red pot')" in page
    assert "wrap it?" in page


def test_the_default_page_is_report_html_and_the_only_graph_is_reported(shop):
    assert main(["report", "--db", "shop.db", "--thread", "7", "corner_shop"]) == 0
    assert (shop / "report.html").is_file()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--db none.db --thread 7 corner_shop", "there is no file 'none.db'"),
        ("--db shop.db --thread 7 corner_shop -o page.pdf", "page.pdf: a report's file must end with .html"),
        ("--db shop.db --thread 8 corner_shop", "shop.db has no thread '8'"),
        ("--db shop.db --thread 7 corner_ship", "there is no module corner_ship"),
        ("--db shop.db --thread 7 corner_shop:grap", "corner_shop has no 'grap'"),
        ("--db corner_shop.py --thread 7 corner_shop", "'corner_shop.py' cannot be opened as an SQLite database: file is not a database"),
        ("--db shop.db --thread 7 --checkpoint x corner_shop", "thread '7' has no checkpoint 'x'"),
        ("--db shop.db --thread 7 corner_shop -o none/page.html", "none/page.html: No such file or directory"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(shop, line, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", *line.split()])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (shop / "none.db").exists()
