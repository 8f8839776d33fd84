"""Every program in examples/ runs and prints what its docstring says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TESTED = {"approval", "demo", "map_reduce", "newton", "research", "supervisor"}
QUIET = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}  # no test asks outside


def start(name, *words, cwd, **settings):
    command = [sys.executable, "-P", "-W", "error", "-m", f"stategraph.examples.{name}", *words]
    env = {**QUIET, **settings}
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def run(name, *words, cwd, **settings):
    done = start(name, *words, cwd=cwd, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"} == TESTED


def test_map_reduce(tmp_path):
    (tmp_path / "a").write_text("One two, two.")
    (tmp_path / "b").write_text("two three three")
    for words in (["a", "b"], ["--processes", "a", "b"]):
        assert run("map_reduce", *words, cwd=tmp_path).splitlines() == [
            "6 words in 2 files",
            "     3 two",
            "     2 three",
            "     1 one",
        ]


def test_map_reduce_reads_the_examples(tmp_path):
    assert f" words in {len(TESTED) + 1} files\n" in run("map_reduce", cwd=tmp_path)


def test_newton_finds_the_root(tmp_path):
    assert run("newton", "9", cwd=tmp_path).splitlines()[-1] == "3"


def test_newton_gives_up_where_there_is_no_root(tmp_path):
    *guesses, last = run("newton", "-3", cwd=tmp_path).splitlines()
    assert len(guesses) == 20
    assert last.startswith("gave up: StateGraph: the recursion limit of 20 supersteps was reached with work left: improve")


# -- approval -------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_approval_asks_both_people_each_round(tmp_path):
    lines = run("approval", cwd=tmp_path).splitlines()
    assert lines[:5] == [
        "editor, do you approve of 'About tea, draft 1'? edit: shorter",
        "lawyer, do you approve of 'About tea, draft 1'? approve",
        "editor, do you approve of 'About tea, draft 2, shorter'? approve",
        "lawyer, do you approve of 'About tea, draft 2, shorter'? approve",
        "published: About tea, draft 2, shorter",
    ]
    nexts = [line.partition("next:")[2].partition("draft:")[0].strip() for line in lines if "next:" in line]
    round = ["write", "editor, lawyer", "decide"]
    assert nexts == ["__start__", *round, *round, "publish", "nothing"]


@pytest.mark.trial
def test_approval_at_once(tmp_path):
    assert "\npublished: About cats, draft 1\n" in run("approval", "cats", "--answers", "approve", cwd=tmp_path)


@pytest.mark.trial
def test_approval_takes_the_wishes_of_both(tmp_path):
    shown = run("approval", "--answers", "edit:shorter", "edit:a joke", "approve", cwd=tmp_path)
    assert "\npublished: About tea, draft 2, shorter, a joke\n" in shown


@pytest.mark.trial
def test_approval_repeats_a_question_after_an_invalid_answer(tmp_path):
    lines = run("approval", "--answers", "maybe", "approve", "reject", cwd=tmp_path).splitlines()
    assert [line[:6] for line in lines[:2]] == ["editor", "lawyer"]
    assert lines[2] == "  not understood: Input should be 'approve', 'reject' or 'edit'"
    assert lines[3:5] == ["editor, do you approve of 'About tea, draft 1'? reject", "rejected"]


# -- functional -----------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_research_continues_after_failures(tmp_path):
    lines = run("research", cwd=tmp_path).splitlines()
    said = [line.removeprefix("  study / ") for line in lines if line.startswith("  ")]
    assert [line for line in said if line.startswith("tides")] == [
        "tides: searching, attempt 1",
        "tides: searching, attempt 2",
        "tides: read 74 letters",
    ]
    assert [line for line in said if line.startswith("waves")] == [
        "waves: searching, attempt 1",
        "waves: read failed, UnicodeDecodeError",
    ]
    assert len(said) == 9
    assert lines[9:] == [
        "1. tides: The Moon pulls the sea.",
        "2. waves: The page is damaged.",
        "3. moon: The Moon is 384,400 km away.",
        "4. sun: The Sun makes spring tides with the Moon.",
    ]


def test_research_of_the_unknown(tmp_path):
    assert run("research", "cats", cwd=tmp_path).splitlines()[-1] == "1. cats: Nothing is known."


# -- supervisor -----------------------------------------------------------------------------------------------


def test_supervisor_sends_the_work_round(tmp_path):
    assert run("supervisor", cwd=tmp_path).splitlines() == [
        "user: Tell me about tea.",
        "supervisor: First we need facts.",
        "    researcher / look_up",
        "researcher: I found 2 facts.",
        "supervisor: Write it up.",
        "    writer / draft",
        "    writer / polish",
        "writer: Done: 15 words.",
        "supervisor: Thank you, that is all.",
        "",
        "Tea. Tea came to Europe around 1610. It needs water of 80 to 100 °C.",
    ]


def test_supervisor_stops_where_nothing_is_known(tmp_path):
    assert run("supervisor", "cats", cwd=tmp_path).splitlines()[-3:] == [
        "supervisor: Nothing is known, so we stop.",
        "",
        "no text",
    ]


# -- tool_agent -----------------------------------------------------------------------------------------------
