"""`python -m stategraph draw`: which graph is drawn, what is written where, and its errors."""

import subprocess
import sys

import pytest
from kit.drive import forget_modules

from stategraph.__main__ import main
from stategraph.graph.loader import NotFoundError, find_graph, load

MODULE = """
from __future__ import annotations
from typing import TypedDict
from stategraph import START, StateGraph

class State(TypedDict):
    x: int

builder = StateGraph(State).add_node("a", lambda state: {}).add_edge(START, "a")
app = builder.compile(name="mine")
bad = StateGraph(State).add_node("a", lambda state: {}).add_edge(START, "b")
lonely = StateGraph(State).add_node("a", lambda state: {}).add_edge(START, "a").add_node("b", lambda state: {})
number = 3

def make():
    return StateGraph(State).add_node("sub", app).add_edge(START, "sub")

def fails():
    raise RuntimeError("no model")

EVIL = "a\\x1b[2J\\x9b31m\\u202e\\u2066\\r\\x07\\x7f\\u2028z"

def evil():
    return StateGraph(State).add_node(EVIL, lambda state: {}).add_edge(START, EVIL)

def evil_and_lonely():
    return evil().add_node(EVIL + "2", lambda state: {})

def evil_mistake():
    return StateGraph(State).add_node(EVIL, lambda state: {}).add_edge(START, EVIL + "2")

def evil_error():
    raise RuntimeError(EVIL)

def needs(model): ...

class shop:
    app = app
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a module, which is where we are."""
    (tmp_path / "a_module.py").write_text(MODULE)
    (tmp_path / "only_one.py").write_text(MODULE.split("app =")[0])
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    (tmp_path / "typo.py").write_text("def f(:\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "json.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget_modules(tmp_path)


def draw(capsys, *words):
    assert main(["draw", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("target", ["a_module:app", "a_module:builder", "a_module.py:app", "only_one", "only_one.py", "a_module:shop.app", "deep/json.py:app"])
def test_a_graph_is_found(capsys, target):
    assert "| a |" in draw(capsys, target)


def test_a_function_is_asked_for_its_graph(capsys):
    assert "# sub #" in draw(capsys, "a_module:make")
    assert "+ sub ---" in draw(capsys, "a_module:make", "--xray")
    assert "# sub #" in draw(capsys, "a_module:make", "--xray", "0")


@pytest.mark.parametrize("ending", ["svg", "html", "mmd", "dot", "txt"])
def test_the_drawing_goes_to_a_file(capsys, here, ending):
    assert draw(capsys, "a_module:app", "-o", f"x.{ending}") == ""
    assert (here / f"x.{ending}").stat().st_size > 50


def test_the_theme_is_the_one_asked_for(capsys, here):
    draw(capsys, "a_module:app", "-o", "x.svg", "--theme", "dark")
    assert "sg-dark" in (here / "x.svg").read_text()


def test_advice_is_given_and_the_drawing_too(capsys):
    assert main(["draw", "a_module:lonely"]) == 0
    shown = capsys.readouterr()
    assert "unreached" in shown.out and shown.err.startswith("warning: node 'b' cannot be reached")


@pytest.mark.parametrize("made", ["evil", "evil_and_lonely", "evil_mistake", "evil_error"])
def test_what_users_wrote_steers_no_terminal(capsys, made):
    try:
        main(["draw", f"a_module:{made}"])
    except SystemExit as ended:
        assert ended.code == 2
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).split("\n")
    assert len(lines) > 2 and all(line.isprintable() for line in lines)
    assert "\\x1b[2J" in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["a_module:bad"], "leads to an unknown node; known: 'a'"),
        (["a_module:number"], "a_module:number must be a graph, a builder or a function that returns one, got a int"),
        (["a_module:apq"], "a_module has no 'apq'; did you mean 'app'?"),
        (["a_module"], "say which: a_module:NAME, where NAME is one of builder, app, bad, lonely"),
        (["a_module.py"], "say which: a_module.py:NAME, where NAME is one of builder, app, bad, lonely"),
        (["typo"], "typo cannot be imported: SyntaxError: invalid syntax (typo.py, line 1)\n"),
        (["typo.py"], "typo.py cannot be imported: SyntaxError: invalid syntax (typo.py, line 1)\n"),
        (["--xray", "a_module:app"], "LEVELS must be a number, got 'a_module:app'; name the graph first: a_module:app --xray"),
        (["a_module:fails"], "a_module:fails() fails: RuntimeError: no model (line 19 of "),
        (["a_module:needs"], "a_module:needs() fails: TypeError: needs() missing 1 required positional argument: 'model'\n"),
        (["no_module:x"], "there is no module no_module, looked for from "),
        (["no_file.py:x"], "there is no file no_file.py"),
        (["broken:x"], "broken cannot be imported: ModuleNotFoundError: No module named 'no_such_thing' (line 1 of "),
        (["broken.py:x"], "broken.py cannot be imported: ModuleNotFoundError: No module named 'no_such_thing' (line 1 of "),
        (["a_module:app", "-o", "x.gif"], "x.gif: a drawing's file must end with .png, .svg"),
        (["a_module:app", "-o", "nowhere/x.svg"], "nowhere/x.svg cannot be written: No such file or directory"),
        (["a_module:app", "--xray", "-2"], "xray must be False, True or a number of levels, got -2"),
        (["a_module:app", "--theme", "blue"], "argument --theme: invalid choice"),
    ],
)
def test_what_cannot_be_done_is_said(capsys, words, complaint):
    with pytest.raises(SystemExit) as ended:
        main(["draw", *words])
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.out == ""
    assert complaint in shown.err and "Traceback" not in shown.err


def test_a_builder_of_a_compiled_graph_is_ignored(here, capsys):
    text = (
        "from stategraph import START, StateGraph\n"
        "graph = StateGraph(dict).add_node('a', print).add_edge(START, 'a')\n"
        "trips = graph.compile(name='trips')\n"
    )
    (here / "two.py").write_text(text)
    assert find_graph("two.py").name == "trips"
    (here / "two.py").write_text(text + "other = StateGraph(dict)\n")
    with pytest.raises(NotFoundError, match="say which: two.py:NAME, where NAME is one of graph, trips, other"):
        find_graph("two.py")


def test_a_file_that_failed_is_loaded_whole_once_it_is_mended(here):
    with pytest.raises(NotFoundError, match="typo.py cannot be imported"):
        load("typo.py")
    (here / "typo.py").write_text(MODULE)
    assert load("typo").app is sys.modules["typo"].app


@pytest.mark.trial
def test_it_runs_as_a_command(here):
    command = [sys.executable, "-P", "-W", "error", "-m", "stategraph", "draw", "a_module:app"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and "| a |" in done.stdout


def test_an_example_of_ours(capsys):
    assert "publish" in draw(capsys, "stategraph.examples.approval:build")
