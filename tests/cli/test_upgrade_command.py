"""`stategraph upgrade`: the table, the JSON, the exit code, and versions whose modules have the same name."""

import json
import sqlite3
from pathlib import Path

import pytest
from kit.drive import forget_modules
from kit.graphs import EMPTY, thread_config

from stategraph import SqliteSaver
from stategraph.__main__ import main
from stategraph.graph.loader import find_graph

GRAPH = """
import operator
from typing import Annotated, TypedDict
from stategraph import START, StateGraph, effect, interrupt

class State(TypedDict, total=False):
    log: Annotated[list, operator.add]

def ask(state):
    charge()
    return {"log": [interrupt("go?")]}

@effect("keyed")
def refund(): raise ValueError("closed")

@effect("keyed", undo=refund)
def charge(): ...

def pay(state): return {"log": ["paid"]}
def ship(state): return {"log": ["shipped"]}

app = StateGraph(State).add_sequence([NODES]).add_edge(START, "FIRST").compile()
"""


def write(folder, *nodes):
    folder.mkdir()
    path = folder / "shop.py"
    path.write_text(GRAPH.replace("NODES", ", ".join(nodes)).replace("FIRST", nodes[0]))
    return f"{path}:app"


@pytest.fixture
def shop(tmp_path):
    """A database with two threads that wait, and the old graph."""
    old, db = write(tmp_path / "old", "ask", "pay"), str(tmp_path / "shop.db")
    with SqliteSaver.from_conn_string(db) as saver:
        app = find_graph(old).copy({"checkpointer": saver})
        for name in ("1", "2"):
            app.invoke(EMPTY, thread_config(name))
    yield db, old
    forget_modules(tmp_path)


def test_the_same_version_passes(shop, capsys):
    db, old = shop
    assert main(["upgrade", old, "--db", db]) == 0
    assert "2 same, 0 migrates, 0 changes, 0 breaks" in capsys.readouterr().out


@pytest.mark.trial
def test_changes_are_named_by_the_old_graph_in_a_process_of_its_own(shop, tmp_path, capsys):
    db, old = shop
    new = write(tmp_path / "new", "ask", "pay", "ship")
    before = Path(db).read_bytes()
    assert main(["upgrade", new, "--old", old, "--db", db, "--explain"]) == 0
    out = capsys.readouterr().out
    assert "changes        2  the edge 'pay' → 'ship' is new" in out
    assert "it asked 'go?'" in out
    assert main(["upgrade", new, "--old", old, "--db", db, "--strict"]) == 1
    assert Path(db).read_bytes() == before


def test_a_thread_that_breaks_fails_with_the_reason_as_json(shop, tmp_path, capsys):
    db, _ = shop
    new = write(tmp_path / "new", "pay", "ship")
    assert main(["upgrade", new, "--db", db, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"same": 0, "migrates": 0, "changes": 0, "breaks": 2}
    assert found["reasons"] == [
        {"verdict": "breaks", "reason": "node 'ask' is gone", "count": 2, "threads": ["2", "1"]}
    ]


@pytest.mark.trial
def test_an_old_graph_that_cannot_be_loaded_is_named(shop, capsys):
    db, old = shop
    with pytest.raises(SystemExit, match="2"):
        main(["upgrade", old, "--old", "nowhere:app", "--db", db])
    assert "--old nowhere:app: there is no module nowhere" in capsys.readouterr().err


def write_renamed(folder):
    """The new version of the shop, whose node `ask` is called `approve`."""
    new = write(folder, "ask", "pay")
    path = Path(new.rpartition(":")[0])
    text = path.read_text().replace("def ask", "def approve").replace("[ask,", "[approve,").replace('"ask"', '"approve"')
    text = text.replace(".compile()", '.compile(migrate=Migration().rename_node("ask", "approve"))')
    path.write_text("from stategraph.upgrade import Migration\n" + text)
    return new


def test_apply_leaves_a_thread_that_is_being_undone(shop, tmp_path, capsys):
    db, old = shop
    with SqliteSaver.from_conn_string(db) as saver:
        assert find_graph(old).copy({"checkpointer": saver}).undo(thread_config("2")).interrupts
    assert main(["upgrade", write_renamed(tmp_path / "new"), "--db", db, "--apply"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "converted 1 threads; 1 are being undone"


def test_apply_converts_each_thread_once_after_a_backup(shop, tmp_path, capsys):
    db, _ = shop
    new = write_renamed(tmp_path / "new")
    assert main(["upgrade", new, "--db", db, "--apply"]) == 0
    out = capsys.readouterr().out
    assert "2 migrates" in out and "converted 2 threads" in out
    [backup] = tmp_path.glob("shop.db.*.backup")
    assert f"backup: {backup}" in out
    assert main(["upgrade", new, "--db", db, "--apply"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "converted 0 threads"


def test_commands_within_a_second_have_backups_of_their_own(shop, tmp_path):
    db, old = shop
    new = write_renamed(tmp_path / "new")
    for number in range(3):
        with SqliteSaver.from_conn_string(db) as saver:
            find_graph(old).copy({"checkpointer": saver}).invoke(EMPTY, thread_config(f"later {number}"))
        assert main(["upgrade", new, "--db", db, "--apply"]) == 0
    assert len([*tmp_path.glob("shop.db.*.backup")]) == 3


def test_a_backup_that_fails_converts_nothing(shop, tmp_path, capsys, monkeypatch):
    db, _ = shop
    connect = sqlite3.connect

    class Full(sqlite3.Connection):
        def backup(self, *_):
            raise sqlite3.OperationalError("database or disk is full")

    new = write_renamed(tmp_path / "new")
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sqlite3, "connect", lambda path, **options: connect(path, **{"factory": Full, **options}))
        main(["upgrade", new, "--db", db, "--apply"])
    assert end.value.code == 2
    assert "database or disk is full" in capsys.readouterr().err
    assert not [*tmp_path.glob("shop.db.*.backup")]
    main(["upgrade", new, "--db", db])
    assert "2 migrates" in capsys.readouterr().out
