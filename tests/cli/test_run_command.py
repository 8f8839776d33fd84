"""`stategraph run` and `resume`: results and chunks as JSON, questions at a terminal, exit codes, and how to resume."""

import io
import json
import os
import subprocess
import sys

import pytest
from kit.drive import forget_modules

from stategraph import __version__
from stategraph.__main__ import COMMANDS, format_help, main

MODULE = """
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict
from pydantic import BaseModel
from stategraph import START, InMemorySaver, StateGraph, entrypoint, get_runtime, interrupt

class Answer(BaseModel):
    ok: bool

class State(TypedDict, total=False):
    log: Annotated[list, add]
    n: int

class Context(TypedDict):
    user: str

def count(state): return {"log": [state.get("n", 0)]}
def ask(state): return {"log": [interrupt({"question": "wrap it?"}, response_schema=Answer).ok]}
def choose(state): return {"log": [interrupt("red\\x1b[2J?"), interrupt("blue?")]}
async def wait(state): return {"log": ["waited"]}
def fail(state):
    if not Path("mended").exists():
        raise ValueError("no \\x1b[2J here")
    return {"log": ["mended"]}

def chain(*nodes):
    return StateGraph(State).add_sequence([count, *nodes]).add_edge(START, "count")

app = chain()
asks, asks_async, asks_twice, fails = chain(ask), chain(ask, wait), chain(choose), chain(fail)
greets = StateGraph(State, context_schema=Context)
greets.add_node("greet", lambda state: {"log": [get_runtime().context["user"]]}).add_edge(START, "greet")
stops = chain(wait).compile(InMemorySaver(), interrupt_before=["wait"])

@entrypoint()
def double(number: int) -> int:
    return 2 * number
"""
NOBODY = io.StringIO()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a module of graphs, and no terminal."""
    (tmp_path / "shop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "stdin", NOBODY)
    yield tmp_path
    forget_modules(tmp_path)


class Ended:
    """How a command ended: its exit code, and what it wrote."""

    def __init__(self, capsys, *words):
        try:
            self.code = main(words)
        except SystemExit as ended:
            self.code = ended.code
        self.out, self.err = capsys.readouterr()

    @property
    def result(self):
        return json.loads(self.out)


@pytest.fixture
def call(capsys):
    return lambda *words: Ended(capsys, *words)


def test_the_result_is_json(call):
    done = call("run", "shop:app", "--input", '{"n": 3}')
    assert (done.code, done.result, done.err) == (0, {"n": 3, "log": [3]}, "")


def test_an_unknown_argument_is_answered_with_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit):
        main(["run", "graphs.py:app", '{"n": 1}'])
    said = capsys.readouterr().err
    assert "[--input JSON]" in said and 'unrecognized arguments: {"n": 1}' in said


def test_the_input_may_be_read_from_a_file_or_stdin(call, here, monkeypatch):
    (here / "input.json").write_text('{"n": 4}')
    assert call("run", "shop:app", "--input", "@input.json").result["n"] == 4
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"n": 5}'))
    assert call("run", "shop:app", "--input", "-").result["n"] == 5


def test_an_entrypoint_takes_any_value(call):
    assert call("run", "shop:double", "--input", "21").result == 42


def test_a_context_is_given_as_json(call):
    assert call("run", "shop:greets", "--context", '{"user": "Ada"}', "--input", '{"n": 1}').result["log"] == ["Ada"]


def test_chunks_are_lines_of_json(call):
    done = call("run", "shop:asks_async", "--stream", "updates", "--input", '{"n": 1}')
    assert json.loads(done.out.splitlines()[0]) == {"count": {"log": [1]}}
    assert done.code == 3


@pytest.mark.parametrize("graph", ["asks", "asks_async"])
def test_a_question_without_a_person_pauses_and_is_answered_later(call, graph):
    place = (f"shop:{graph}", "--db", "t.db", "--thread", "7")
    paused = call("run", *place, "--input", '{"n": 1}')
    assert (paused.code, paused.out) == (3, "")
    assert paused.err == (
        f'asks: {{"question": "wrap it?"}}\nto go on: stategraph resume shop:{graph} --thread 7 --db t.db --answer ANSWER\n'
    )
    assert call("resume", *place).code == 3, "asked again: there still is nobody"
    refused = call("resume", *place, "--answer", '{"ok": 7}')
    assert refused.code == 2 and "the answer is refused: ok: Input should be a valid boolean" in refused.err
    done = call("resume", *place, "--answer", '{"ok": true}')
    assert done.code == 0 and done.result["log"][:2] == [1, True]
    again = call("resume", *place)
    assert (again.code, again.result) == (0, done.result) and "nothing is left to do in thread '7'" in again.err
    assert "--answer must be given 0 times at most, got 1" in call("resume", *place, "--answer", "1").err


def test_an_answer_that_is_no_json_is_text(call):
    place = ("shop:asks_twice", "--db", "t.db", "--thread", "7")
    assert call("run", *place).code == 3
    assert call("resume", *place, "--answer", "yes, please").code == 3
    assert call("resume", *place, "--answer", "12").result["log"] == [0, "yes, please", 12]


def test_a_failed_run_shows_the_users_lines_and_resumes_later(call, here):
    failed = call("run", "shop:fails", "--db", "t.db", "--thread", "7")
    assert (failed.code, failed.out) == (1, "")
    assert "no \\x1b[2J here" in failed.err and 'raise ValueError("no' in failed.err
    assert "run_command.py" not in failed.err, "the engine's own lines help nobody"
    assert failed.err.endswith("to go on: stategraph resume shop:fails --thread 7 --db t.db\n")
    (here / "mended").touch()
    assert call("resume", "shop:fails", "--db", "t.db", "--thread", "7").result["log"] == [0, "mended"]


def test_a_new_thread_id_is_printed(call):
    told = call("run", "shop:app", "--db", "t.db").err
    assert told.startswith("thread ") and told.endswith(" in t.db\n")


def test_without_a_database_a_paused_thread_is_lost_with_a_warning(call):
    assert "--db FILE stores it" in call("run", "shop:asks").err


def test_a_breakpoint_pauses_too(call):
    stopped = call("run", "shop:stops", "--thread", "7")
    assert stopped.code == 3 and "stopped before wait" in stopped.err
    assert call("resume", "shop:stops", "--thread", "7").result["log"] == [0, "waited"], "the graph's own checkpointer"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("run shop:nothing", "shop has no 'nothing'"),
        ("run shop:app --input {", "argument --input: must be JSON, got '{'"),
        ("run shop:app --input @none", "argument --input: none cannot be read: No such file"),
        ("run shop:app --input 3", "must be a dict of state keys or a schema instance, got int: 3"),
        ('run shop:app --input {"m":1}', "the input has the unknown key 'm'"),
        ("run shop:app --db nowhere/t.db", "cannot be opened"),
        ("run shop:app --stream nothing", "argument --stream: invalid choice"),
        ("resume shop:app --db none.db --thread 1", "there is no file 'none.db'"),
        ("resume shop:app --thread 1", "--db must name where the thread is stored"),
        ("run shop:app --keys keys.txt", "--keys needs --db"),
        ("resume shop:app --thread 1 --keys keys.txt", "--keys needs --db"),
        ("resume shop:stops --thread 9", "there is no thread '9' in the graph's checkpointer"),
        ("resume shop:app --db none.db", "the following arguments are required: --thread"),
    ],
)
def test_bad_use_is_a_sentence_and_exit_code_2(call, words, complaint):
    ended = call(*words.split())
    assert (ended.code, ended.out) == (2, "")
    assert complaint in ended.err and "Traceback" not in ended.err


def run_at_a_terminal(here, graph, said):
    """How the command ends for a person who has said this, and what they were shown."""
    person, terminal = os.openpty()
    os.write(person, said)
    command = [sys.executable, "-P", "-m", "stategraph", "run", graph]
    done = subprocess.run(command, cwd=here, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, timeout=120)
    shown = os.read(person, 10_000).decode()
    os.close(person)
    os.close(terminal)
    return done, shown


@pytest.mark.trial
def test_a_person_at_a_terminal_is_asked_until_the_answer_fits(here):
    done, shown = run_at_a_terminal(here, "shop:asks", b'{"ok": 7}\n{"ok": true}\n')
    assert done.returncode == 0 and json.loads(done.stdout)["log"] == [0, True]
    assert shown.count("wrap it?") == 2 and "the answer is refused: ok: Input should be a valid boolean" in shown


@pytest.mark.trial
def test_the_end_of_input_at_a_terminal_leaves_the_thread_paused(here):
    done, shown = run_at_a_terminal(here, "shop:asks_twice", b"\x04")
    assert done.returncode == 3
    assert "red\\x1b[2J?" in shown, "a question steers no terminal"


# -- the command line as a whole -------------------------------------------------------------------


def test_the_version_is_printed(call):
    assert call("--version").out == f"stategraph {__version__}\n"


def test_each_command_has_one_line_when_none_is_given(call):
    listed = call()
    assert listed.code == 2
    for name, (_, text) in COMMANDS.items():
        assert any(line.split(maxsplit=1) == [name, text] for line in listed.err.splitlines()), name


def test_the_help_of_each_command_can_be_had_at_once():
    texts = format_help(width=90)
    assert [*texts] == ["", *COMMANDS]
    assert all(texts[name].startswith(f"usage: stategraph {name}") for name in COMMANDS)
    assert max(len(line) for text in texts.values() for line in text.splitlines()) <= 90
    assert "COLUMNS" not in os.environ or os.environ["COLUMNS"] != "90"


@pytest.mark.trial
def test_a_reader_that_leaves_early_is_no_traceback(here):
    line = f"{sys.executable} -P -m stategraph run shop:app --input '{{\"log\": [{','.join('0' * 50_000)}]}}' | head -c 1"
    done = subprocess.run(["bash", "-c", line], cwd=here, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("{", "")
