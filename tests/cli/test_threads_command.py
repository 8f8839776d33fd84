"""`python -m stategraph threads|history|show|prune`: stored threads are listed, shown and pruned from a terminal."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from kit.graphs import CONFIG, EMPTY, thread_config
from kit.pausing_graphs import asks, fails, graph, says
from kit.ready_graphs import build, ends_in, ready

from stategraph import Command, entrypoint, interrupt, task
from stategraph.__main__ import main
from stategraph.checkpoint.sqlite import SqliteSaver


@pytest.fixture
def db(tmp_path):
    """A file with three threads: done, asking, failed."""
    file = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(file) as saver:
        for name, body in (("done", says("x")), ("asking", asks("x")), ("failed", fails("x", 9))):
            app = graph("S>x>y", x=body, checkpointer=saver)
            try:
                app.invoke({"log": ["in"]}, thread_config(name))
            except Exception as error:
                assert name == "failed", error
    return file


def run(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


def test_threads_are_listed_with_their_status(db, capsys):
    lines = run(capsys, "threads", "--db", db)
    assert [line.split("\t")[0] for line in lines] == ["failed", "asking", "done"]
    failed, asking, done = (line.split("\t")[-1] for line in lines)
    assert failed.startswith("next: x; failed: ")
    assert asking == "next: x; asks: 'x?'"
    assert done == "nothing waits"
    assert len(run(capsys, "threads", "--db", db, "--limit", "1")) == 1


def test_history_shows_each_step_newest_first(db, capsys):
    lines = run(capsys, "history", "--db", db, "--thread", "done")
    assert [line.split()[2] for line in lines[::2]] == ["2", "1", "0", "-1"]
    assert lines[-1].startswith("    after nothing")


def test_a_question_inside_a_task_is_printed_once(tmp_path, capsys):
    file = str(tmp_path / "threads.db")

    @task
    def ask():
        return interrupt("inside?")

    with SqliteSaver.from_conn_string(file) as saver:
        flow = entrypoint(checkpointer=saver)(lambda given: ask().result())
        flow.invoke(1, CONFIG)
    assert run(capsys, "threads", "--db", file)[0].endswith("\tasks: 'inside?'")
    assert run(capsys, "history", "--db", file, "--thread", "t")[-1].endswith("; asks: 'inside?'")


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_started_some_checkpoints_ago_is_shown(tmp_path, capsys, fails):
    """With schedule="ready", its questions and errors are recorded beside the checkpoint at which it started."""
    file = str(tmp_path / "threads.db")
    config = CONFIG

    def long(state):
        interrupt("really?")
        raise ValueError("no luck")

    with SqliteSaver.from_conn_string(file) as saver:
        graph = build("S>a>b S>long S>other", nodes={"long": long, "other": lambda state: {"log": [interrupt("else?")]}})
        app = ready(graph, saver=saver)
        with ends_in("a", "b", "long", "other"):
            app.invoke(EMPTY, config)
            if fails:
                asked = {question.value: question.id for question in app.get_state(config).interrupts}
                with pytest.raises(ValueError, match="no luck"):
                    app.invoke(Command(resume={asked["really?"]: "yes"}), config)
        assert set(app.get_state(config).next) == {"long", "other"}
    told = ["next: long, other", "asks: 'really?'", "asks: 'else?'"]
    if fails:
        told.append("failed: ValueError('no luck')")
    [line] = run(capsys, "threads", "--db", file)
    assert sorted(line.split("\t")[-1].split("; ")) == sorted(told)
    newest, after, before = run(capsys, "history", "--db", file, "--thread", "t")[1:6:2]
    assert sorted(newest.split("; ")[1:]) == sorted(told)
    assert sorted(after.split("; ")[2:]) == sorted(told[1:]) and "next: b, long, other; " in after
    assert "next: a, long, other; " in before


@pytest.mark.trial
def test_a_running_task_whose_values_cannot_be_loaded_is_shown_without_its_node(tmp_path):
    code = """
import sys
from dataclasses import dataclass
from typing import TypedDict
from stategraph import START, Send, SqliteSaver, StateGraph, interrupt
class State(TypedDict, total=False):
    key: str
@dataclass
class Card:
    number: int
def pay(card: Card):
    interrupt("really?")
g = StateGraph(State).add_node("pay", pay, input_schema=Card).add_node("a", lambda state: {})
g.add_conditional_edges(START, lambda state: [Send("pay", Card(1)), "a"], ["pay", "a"])
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    g.compile(saver, schedule="ready").invoke({}, {"configurable": {"thread_id": "1"}})
"""
    file = str(tmp_path / "threads.db")
    subprocess.check_call([sys.executable, "-c", code, file])
    listing = [sys.executable, "-P", "-m", "stategraph", "threads", "--db", file]
    standing = subprocess.check_output(listing, text=True).strip().split("\t")[-1]
    assert standing == "next: a task with <__main__:Card>; asks: 'really?'"


def test_show_prints_the_state(db, capsys):
    assert json.loads("\n".join(run(capsys, "show", "--db", db, "--thread", "done"))) == {"log": ["in", "x", "y"]}


def test_prune_keeps_the_newest(db, capsys):
    assert run(capsys, "prune", "--db", db, "--thread", "done", "--keep-last", "2") == ["deleted 2 checkpoints, kept 2"]
    assert len(run(capsys, "history", "--db", db, "--thread", "done")) == 4
    assert len(run(capsys, "history", "--db", db, "--thread", "asking")) == 4
    assert run(capsys, "prune", "--db", db, "--thread", "done", "--keep-last", "0") == ["deleted 2 checkpoints, kept 0"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["show", "--thread", "unknown"], "no such checkpoint"),
        (["history", "--thread", "unknown"], "no checkpoints"),
        (["prune", "--keep-last", "-1"], "keep_last must be an integer >= 0"),
        (["prune"], "prune needs --keep-last"),
        (["prune", "--keep-last", "0"], "--keep-last 0 would delete every thread"),
        (["prune", "--keep-last", "0", "--older-than", "9"], "--keep-last 0 would delete every thread"),
    ],
)
def test_what_cannot_be_is_said(db, capsys, words, text):
    with pytest.raises(SystemExit) as end:
        main([words[0], "--db", db, *words[1:]])
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused_in_a_sentence(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("no database" * 1000)
    with pytest.raises(SystemExit):
        main(["threads", "--db", str(tmp_path / "notes.txt")])
    assert "cannot be opened as an SQLite database" in capsys.readouterr().err


def test_read_commands_create_no_file(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["threads", "--db", str(tmp_path / "none.db")])
    assert "there is no file" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


# -- looking changes nothing; one bad row stops nothing ---------------------------------------------------------


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("words", [["threads"], ["history", "--thread", "done"], ["show", "--thread", "done"]])
def test_read_commands_change_no_byte(db, capsys, words):
    before = contents(Path(db).parent)
    run(capsys, words[0], "--db", db, *words[1:])
    assert contents(Path(db).parent) == before


@pytest.mark.parametrize(
    "words", [["threads"], ["history", "--thread", "t"], ["show", "--thread", "t"], ["prune", "--keep-last", "1"]]
)
def test_a_foreign_file_stays_as_it_is(tmp_path, capsys, words):
    file = tmp_path / "foreign.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE spaces (name)")
    before = contents(tmp_path)
    with pytest.raises(SystemExit):
        main([words[0], "--db", str(file), *words[1:]])
    assert "no tables of a SqliteSaver" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_what_another_process_is_writing_is_seen(db, capsys):
    with SqliteSaver.from_conn_string(db) as saver:
        app = graph("S>x", checkpointer=saver)
        app.invoke({"log": ["in"]}, thread_config("new"))
        assert run(capsys, "threads", "--db", db)[0].startswith("new\t")


def damage(db, thread):
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(
            "UPDATE checkpoints SET body = x'00' WHERE space = (SELECT id FROM spaces WHERE thread_id = ?)", (thread,)
        )


def test_one_damaged_thread_is_named_and_the_others_are_listed(db, capsys):
    damage(db, "asking")
    assert main(["threads", "--db", db]) == 1
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["failed", "asking", "done"]
    assert lines[1][1].startswith("damaged: thread 'asking'")


def test_one_damaged_thread_is_named_and_the_others_are_pruned(db, capsys):
    damage(db, "asking")
    assert main(["prune", "--db", db, "--keep-last", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not pruned: thread 'asking'")
    assert lines[1].endswith("kept 2")


# -- what users wrote cannot steer a terminal -------------------------------------------------------------------

EVIL = "a\x1b[2J\x9b31m\u202e\u2066\r\x07\x7f\u2028z"


def test_what_users_wrote_is_printed_escaped(tmp_path, capsys):
    file = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(file) as saver:
        app = graph("S>x>y", x=says(EVIL), y=asks(EVIL), checkpointer=saver)
        app.invoke({"log": [EVIL]}, thread_config(EVIL))
    for words in (["threads"], ["history", "--thread", EVIL], ["show", "--thread", EVIL]):
        lines = run(capsys, words[0], "--db", file, *words[1:])
        assert lines and all(line.replace("\t", "").isprintable() for line in lines)
        assert "\\x1b[2J" in "".join(lines) or "\\u001b[2J" in "".join(lines) or words[0] == "history"


@pytest.mark.trial
def test_a_process_of_its_own_knows_what_threads_hold(tmp_path):
    """`python -m stategraph` loads little; what it reads may hold any type of ours."""
    code = """
import sys
from stategraph import START, MessagesState, RemoveMessage, Send, SqliteSaver, StateGraph, interrupt
g = StateGraph(MessagesState)
g.add_node("gone", lambda state: {"messages": RemoveMessage(id="1")})
g.add_node("ask", lambda state: interrupt(Send("ask", 1)))
g.add_edge(START, "gone").add_edge(START, "ask")
with SqliteSaver(sys.argv[1]) as saver:
    message = {"role": "user", "content": "hi", "id": "1"}
    g.compile(saver).invoke({"messages": [message]}, {"configurable": {"thread_id": "1"}})
"""
    file = str(tmp_path / "threads.db")
    subprocess.check_call([sys.executable, "-c", code, file])
    history = [sys.executable, "-P", "-m", "stategraph", "history", "--db", file, "--thread", "1"]
    assert "asks: Send(node='ask', arg=1)" in subprocess.check_output(history, text=True)
