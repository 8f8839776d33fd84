"""Every program in examples/ runs and prints what its docstring says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TESTED = {"approval", "demo", "supervisor"}
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
