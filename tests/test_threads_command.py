"""`python -m stategraph threads|history|show|prune`: a stored thread is seen, and pruned, from a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paused import asks, fails, graph, says

from stategraph import START
from stategraph.__main__ import main
from stategraph.checkpoint.sqlite import SqliteSaver


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file with three threads: done, asking, failed."""
    file = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(file) as saver:
        for name, body in (("done", says("x")), ("asking", asks("x")), ("failed", fails("x", 9))):
            app = graph({"x": body, "y": says("y")}, (START, "x"), ("x", "y"), checkpointer=saver)
            try:
                app.invoke({"log": ["in"]}, {"configurable": {"thread_id": name}})
            except Exception as error:
                assert name == "failed", error
    return file


def run(capsys: Any, *words: str) -> list[str]:
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


def test_threads_are_listed_with_how_they_stand(db: str, capsys: Any) -> None:
    lines = run(capsys, "threads", "--db", db)
    assert [line.split("\t")[0] for line in lines] == ["failed", "asking", "done"]
    failed, asking, done = (line.split("\t")[-1] for line in lines)
    assert failed.startswith("next: x; failed: ")
    assert asking == "next: x; asks: 'x?'"
    assert done == "nothing waits"
    assert len(run(capsys, "threads", "--db", db, "--limit", "1")) == 1


def test_history_shows_each_step_newest_first(db: str, capsys: Any) -> None:
    lines = run(capsys, "history", "--db", db, "--thread", "done")
    assert [line.split()[2] for line in lines[::2]] == ["2", "1", "0", "-1"]
    assert lines[-1].startswith("    after nothing")


def test_show_prints_the_state(db: str, capsys: Any) -> None:
    assert json.loads("\n".join(run(capsys, "show", "--db", db, "--thread", "done"))) == {"log": ["in", "x", "y"]}


def test_prune_keeps_the_newest(db: str, capsys: Any) -> None:
    assert run(capsys, "prune", "--db", db, "--thread", "done", "--keep-last", "2") == ["forgot 2 checkpoints, kept 2"]
    assert len(run(capsys, "history", "--db", db, "--thread", "done")) == 4
    assert len(run(capsys, "history", "--db", db, "--thread", "asking")) == 4


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["show", "--thread", "unknown"], "no such checkpoint"),
        (["history", "--thread", "unknown"], "no checkpoints"),
        (["prune", "--keep-last", "-1"], "keep_last must be 0 or more"),
        (["prune"], "say what to keep"),
    ],
)
def test_what_cannot_be_is_said(db: str, capsys: Any, words: list[str], text: str) -> None:
    with pytest.raises(SystemExit) as end:
        main([words[0], "--db", db, *words[1:]])
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused_in_a_sentence(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "notes.txt").write_text("no database" * 1000)
    with pytest.raises(SystemExit):
        main(["threads", "--db", str(tmp_path / "notes.txt")])
    assert "cannot be opened as an SQLite database" in capsys.readouterr().err


def test_looking_makes_no_file(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["threads", "--db", str(tmp_path / "none.db")])
    assert "there is no file" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
