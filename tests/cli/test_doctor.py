"""`stategraph doctor` and `completion`: what is installed, which database is usable, and no secrets."""

import shutil
import sqlite3
import subprocess
import tomllib
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest
from kit.programs import ROOT

from stategraph import SqliteSaver, __version__
from stategraph.__main__ import COMMANDS, main
from stategraph.cli import doctor

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def examine(capsys, *words):
    code = main(["doctor", *words])
    return code, capsys.readouterr().out


def line_of(shown, name):
    [line] = [line for line in shown.splitlines() if line[2:].startswith(f"{name} ")]
    return line


def test_versions_and_requirements_are_shown(capsys):
    code, shown = examine(capsys)
    assert code == 0
    assert __version__ in line_of(shown, "stategraph")
    assert metadata.version("pydantic") in line_of(shown, "pydantic")


def test_each_extra_has_a_purpose():
    assert {*doctor.EXTRAS} == {*PROJECT["optional-dependencies"]} - {"dev", "docs", "trials"}


def test_an_extra_that_is_missing_is_named_and_is_no_fault(capsys, monkeypatch):
    there = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "cryptography" else there(name))
    code, shown = examine(capsys)
    assert code == 0
    assert "missing: cryptography" in line_of(shown, "encryption") and "encrypted rows" in line_of(shown, "encryption")


@pytest.mark.parametrize("found", ["2.1.9", None])
def test_a_requirement_that_is_missing_or_too_old_is_a_fault(capsys, monkeypatch, found):
    there = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: found if name == "pydantic" else there(name))
    code, shown = examine(capsys)
    assert code == 1 and line_of(shown, "pydantic").startswith("! pydantic")


def test_a_file_of_this_version_and_one_of_an_earlier_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SqliteSaver.from_conn_string("now.db"):
        pass
    shutil.copy(ROOT / "tests/checkpoint/releases/threads-0.1.0.db", "old.db")
    before = Path("old.db").read_bytes()
    assert "up to date" in line_of(examine(capsys, "--db", "now.db")[1], "threads")
    code, shown = examine(capsys, "--db", "old.db")
    assert (code, "of an earlier version" in shown, "4 threads" in shown) == (0, True, True)
    assert Path("old.db").read_bytes() == before, "it only looks"
    with closing(sqlite3.connect("old.db")) as raw, raw:
        raw.execute("DELETE FROM spaces WHERE thread_id > (SELECT min(thread_id) FROM spaces)")
    assert line_of(examine(capsys, "--db", "old.db")[1], "threads").endswith(" 1 thread")


def test_a_file_without_tables_gets_none(capsys, tmp_path):
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("CREATE TABLE mine (x)")
    code, shown = examine(capsys, "--db", str(file))
    assert code == 0 and "no tables" in line_of(shown, "threads")
    with closing(sqlite3.connect(file)) as raw:
        assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


@pytest.mark.parametrize(
    ("db", "said"),
    [
        ("none.db", "there is no such file"),
        ("page.html", "file is not a database"),
        ("postgresql://me:hunter2@127.0.0.1:1/db", "the server cannot be reached"),
    ],
)
def test_a_database_that_cannot_be_used_is_a_fault_without_a_password(capsys, tmp_path, monkeypatch, db, said):
    monkeypatch.chdir(tmp_path)
    Path("page.html").write_text("<html>" * 100)
    code, shown = examine(capsys, "--db", db)
    assert code == 1 and said in shown and "hunter2" not in shown
    assert not Path("none.db").exists()


def test_graphviz_is_detected(capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, shown = examine(capsys)
    assert code == 0 and "missing" in line_of(shown, "dot")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_completion_script_knows_every_command(capsys, shell):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS) and "--thread" in script


def test_bash_completes_commands_and_options(capsys, tmp_path):
    pytest.importorskip("shtab")
    main(["completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = (
        f"source {tmp_path / 'script'}; COMP_WORDS=(stategraph {{words}}); COMP_CWORD={{at}}; "
        "$(complete -p stategraph | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo ${{COMPREPLY[*]}}"
    )

    def complete(*words):
        line = ask.format(words=" ".join(words), at=len(words))
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.split()

    assert {*complete("re")} == {"resume", "report"}
    assert complete("history", "--th") == ["--thread"]
