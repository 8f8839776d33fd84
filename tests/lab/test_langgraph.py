"""Threads that LangGraph has stored are read and run again. `kit/langgraph_threads.py` has made the database."""

import hashlib
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.langgraph_threads import FILE, build

from stategraph import END, START, Send, StateGraph, interrupt
from stategraph.lab import read_langgraph, whatif, why

SCRIPT = FILE.with_suffix(".py")
PEER = FILE.parents[2] / ".compat/bin/python"
LIB = SimpleNamespace(StateGraph=StateGraph, START=START, END=END, Send=Send, interrupt=interrupt)


def graphs():
    return build(LIB)


def load(name, path=FILE):
    app = graphs()[name].compile()
    threads = [f"{name}-{number}" for number in range(3)]
    return app.copy({"checkpointer": read_langgraph(path, app, threads)}), threads


@pytest.mark.parametrize("live", [(), "*"])
@pytest.mark.parametrize("name", ["fan", "outer", "join"])
def test_threads_of_langgraph_are_identical_when_run_again(name, live):
    app, threads = load(name)
    trials = whatif(app, threads, live=live)
    assert all(trial.same for trial in trials), trials.draw_text()
    assert [len(trial.before.runs) for trial in trials] == [1, 2, 1]
    assert all(task.writes or task.questions for trial in trials for run in trial.before.runs for _, task in run.tasks())


def test_questions_answers_and_types_are_those_that_were_stored():
    app, threads = load("fan")
    first, second, third = (trial.before for trial in whatif(app, threads))
    assert [run.steps[-1][0].questions for run in second.runs] == [({"asks": "ok?", "answer": f"yes {n}"},) for n in range(2)]
    assert third.runs[0].steps[-1][0].questions == ({"asks": "ok?"},)
    assert [len(step) for step in third.runs[0].steps] == [3, 1, 1]
    values = app.get_state({"configurable": {"thread_id": threads[0]}}).values
    assert values["when"] == datetime(2026, 1, 2)
    assert first.runs[0].end == "done"


def test_planted_change_and_cause_in_a_thread_of_langgraph():
    app, threads = load("outer")
    [trial] = whatif(app, threads[:1], variant={"inner:study": lambda state: {"facts": ["other"]}}, live="*")
    assert trial.difference.where == "step 1, node 'inner', step 1, node 'inner:study'"
    assert why(app, {"configurable": {"thread_id": threads[0]}}, "best").cause.by == "rank"


def test_the_database_is_only_read(tmp_path):
    path = shutil.copy(FILE, tmp_path / "threads.db")
    before = hashlib.sha256(Path(path).read_bytes()).digest()
    saver = read_langgraph(path, graphs()["join"].compile(), ["join-0"])
    assert list(saver.threads()) == ["join-0"]
    assert hashlib.sha256(Path(path).read_bytes()).digest() == before
    assert [each.name for each in tmp_path.iterdir()] == ["threads.db"]


@pytest.mark.trial
@pytest.mark.skipif(not PEER.exists(), reason="LangGraph is not there: make compat")
def test_threads_on_postgres_are_read(postgres):
    environment = {**os.environ, "PYTHONPATH": "", "LANGSMITH_TRACING": "false"}
    subprocess.run([PEER, "-P", SCRIPT, postgres], check=True, timeout=60, cwd=SCRIPT.parent, env=environment)
    for name in ("fan", "outer", "join"):
        app, threads = load(name, postgres)
        assert all(trial.same for trial in whatif(app, threads, live="*"))
        there, here = ([trial.before for trial in whatif(each[0], threads)] for each in (load(name), (app,)))
        assert there == here
