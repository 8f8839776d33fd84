"""`stategraph pytest` writes a test of a stored thread, and the test passes."""

import ast
import subprocess
import sys

import pytest
from kit.drive import forget_modules
from kit.graphs import thread_config

from stategraph import SqliteSaver
from stategraph.__main__ import main
from stategraph.graph.loader import find_graph
from stategraph.testing.saved_test import quote, write_test

PROGRAM = '''
from typing import TypedDict
from stategraph import START, StateGraph, interrupt

class State(TypedDict, total=False):
    item: str
    answer: str

{word}def ask(state):
    return {{"answer": interrupt("Buy " + state["item"] + "?")}}

def end(state):
    return {{}}

graph = StateGraph(State).add_node(ask).add_node(end).add_edge(START, "ask").add_edge("ask", "end").compile()
'''


@pytest.fixture(autouse=True)
def only_here(tmp_path, monkeypatch):
    """The program is loaded into this process; no other test finds it there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    forget_modules(tmp_path)


def store(folder, word=""):
    """A program, and a thread of it in a database; the program's path."""
    program = folder / "shop.py"
    program.write_text(PROGRAM.format(word=word))
    app = find_graph(f"{program}:graph")
    thread = thread_config("order 7")
    with SqliteSaver.from_conn_string(str(folder / "shop.db")) as saver:
        from stategraph import Command

        kept = app.copy({"checkpointer": saver})
        for given in ({"item": "tea"}, Command(resume="yes")):
            if word:
                import asyncio

                asyncio.run(kept.ainvoke(given, thread))
            else:
                kept.invoke(given, thread)
    return program


def write(folder, program, *more):
    db = ["--db", str(folder / "shop.db"), "--thread", "order 7"]
    return main(["pytest", *db, *more, f"{program}:graph"])


def run_test(path):
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=120)


def test_a_test_holds_nothing_of_a_hostile_thread_that_would_run(tmp_path):
    thread = '""" \\" \'\nimport os'
    text = write_test(find_graph(f"{store(tmp_path)}:graph"), thread, quote("shop:graph"))
    names = [type(each).__name__ for each in ast.parse(text).body]
    assert names == ["Expr", "ImportFrom", "ImportFrom", "Assign", "Assign", "Assign", "FunctionDef"], text


@pytest.mark.trial
@pytest.mark.parametrize("word", ["", "async "])
def test_it_writes_a_test_that_passes(word, tmp_path, capsys):
    program = store(tmp_path, word)
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "test_order.py"
    assert write(tmp_path, program, "-o", str(test), "--run", "end") == 0
    assert "run 1, done\n  1. ask\n  2. end" in capsys.readouterr().out
    assert 'RECORDED = [\n    "ask",\n]' in test.read_text()
    done = run_test(test)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    program.write_text(program.read_text().replace("return {}", 'return {"answer": "no"}'))
    done = run_test(test)
    assert "step 2, node 'end': the list of keys that it wrote differs" in done.stdout


def test_existing_files_are_overwritten_only_on_request(tmp_path, capsys, monkeypatch):
    program = store(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert write(tmp_path, program) == 0
    test = tmp_path / "test_thread_order_7.py"
    assert test.exists()
    assert test.with_suffix(".json").exists()
    for words, told in [
        ([], "test_thread_order_7.py exists; --force writes over it"),
        (["--force", "--run", "nobody"], "--run nobody: the graph has no such node; known: 'ask', 'end'"),
        (["-o", "test.txt"], "a test's file must end with .py"),
        (["-o", "new/test_x.py"], "No such file or directory"),
        (["--thread", "other", "--force"], "nothing is stored of thread 'other'"),
    ]:
        with pytest.raises(SystemExit):
            write(tmp_path, program, *words)
        assert told in capsys.readouterr().err
    assert write(tmp_path, program, "--force") == 0
