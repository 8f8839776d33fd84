"""The demo in a pipe and at a terminal, on folders large and small."""

import os
import re
import subprocess
import sys

import pytest

from stategraph import SqliteSaver
from stategraph.examples.demo import THREAD, build

SOURCE = "import os\n\nasync def one():\n    def two(): ...\n"
COMMAND = [sys.executable, "-P", "-W", "error", "-m", "stategraph", "demo"]


@pytest.fixture
def folder(tmp_path):
    """Twenty files, in two folders; and what is none of them."""
    for number in range(20):
        file = tmp_path / "code" / f"part{number % 2}" / f"file{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SOURCE * (number + 1))
    (tmp_path / "code" / "tests").mkdir()
    (tmp_path / "code" / "tests" / "test_one.py").write_text(SOURCE)
    (tmp_path / "code" / "gone.py").symlink_to("nowhere.py")
    (tmp_path / "code" / "notes.txt").write_text(SOURCE)
    return tmp_path / "code"


def demo(cwd, *words):
    return subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def number_in(pattern, shown):
    found = re.search(pattern, shown)
    assert found, shown
    return int(found[1])


@pytest.mark.trial
def test_all_of_it_in_a_pipe(folder, tmp_path):
    done = demo(tmp_path, folder)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if not line.startswith("a commit of thread")] == []  # a slow disk
    shown = done.stdout
    assert "list_files" in shown and "n\n" in shown, "the graph"
    assert "was killed in the middle of the superstep (kill -9)" in shown
    assert "10 of 20 files" in shown
    assert 1 <= number_in(r"not done again: (\d+) of 20", shown) <= 10
    assert "20 of 20 files" in shown
    assert "[lines] lines   (no terminal: the default)" in shown
    assert "         80  part1/file19.py\n" in shown
    assert "of 20 files, 840 lines, 420 functions, 210 imports" in shown
    assert "wrote stategraph-demo/report.html" in shown
    assert "\x1b" not in shown, "no control codes in a pipe"
    page = (tmp_path / "stategraph-demo/report.html").read_text(encoding="utf-8")
    assert "Rank by lines, functions or imports?" in page


@pytest.mark.trial
def test_what_was_done_before_the_kill_is_not_done_again(folder, tmp_path):
    """Every file has one result, though two processes have read."""
    assert demo(tmp_path, folder, "--out", "here").returncode == 0
    with SqliteSaver.from_conn_string(str(tmp_path / "here/stategraph-demo.db")) as saver:
        state = build().compile(saver).get_state(THREAD).values
    assert [each["path"] for each in state["facts"]] == state["files"]
    assert len(state["files"]) == 20


@pytest.mark.trial
def test_the_command_it_names_at_the_end_works(folder, tmp_path):
    line = demo(tmp_path, folder).stdout.splitlines()[-1]
    done = subprocess.run(line.split(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "nothing waits" in done.stdout


@pytest.mark.trial
def test_it_can_be_shown_again_in_the_same_place(folder, tmp_path):
    assert demo(tmp_path, folder).returncode == 0
    assert "of 20 files, " in demo(tmp_path, folder).stdout


@pytest.mark.trial
def test_a_person_is_asked_until_the_answer_is_understood(folder, tmp_path):
    person, terminal = os.openpty()
    os.write(person, b"beauty\nimports\n")
    process = subprocess.Popen([*COMMAND, str(folder)], cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(person, 10_000):
            shown += part
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(person)
    text = shown.decode()
    assert process.wait(60) == 0
    assert "'beauty' is none of them" in text and "The result: the most imports" in text
    assert "\r\x1b[K" in text, "progress stays on its line"


@pytest.mark.trial
def test_a_single_file(tmp_path):
    (tmp_path / "one.py").write_text(SOURCE)
    assert "of 1 files, 4 lines" in demo(tmp_path, tmp_path).stdout


@pytest.mark.trial
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "FOLDER must be a folder, got nowhere, which does not exist"),
        (["file.py"], "FOLDER must be a folder, got file.py, which is not a folder"),
        (["empty"], "FOLDER must hold Python files, got "),
        ([".", "--out", "file.py"], "file.py: File exists"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, words, complaint):
    (tmp_path / "file.py").touch()
    (tmp_path / "empty").mkdir()
    done = demo(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr and "Traceback" not in done.stderr


def test_no_command_shows_the_commands(tmp_path):
    command = [sys.executable, "-P", "-m", "stategraph"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "COMMAND" in done.stderr
