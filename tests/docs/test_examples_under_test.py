"""The kit holds the graphs of all examples: recorded and replayed, killed and raced, nodes alone, fakes, coverage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stategraph.examples import approval, demo, supervisor
from stategraph.testing import (
    measure_coverage,
    record,
    replace,
    replay,
    run_node,
    survives,
)


class Example(NamedTuple):
    """A graph, what it is given, and the answers to its questions."""

    build: Callable[[], Any]
    input: Callable[[Path], Any]
    answers: Any = ()
    ignore: tuple[str, ...] = ()


EXAMPLES = {
    "approval": Example(approval.build, lambda _: {"topic": "tea"}, lambda question: {"decision": "approve", "wish": ""}),
    "demo": Example(
        lambda: demo.build().compile(name="demo"), lambda folder: {"folder": str(folder)}, lambda question: "lines"
    ),
    "supervisor": Example(
        supervisor.build, lambda _: {"topic": "tea", "messages": [{"role": "user", "content": "Tell me about tea."}]}
    ),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one.py").write_text("import os\n\ndef one():\n    return os.name\n")
    (tmp_path / "two.py").write_text("two = 2\n")
    return tmp_path


def test_every_example_is_here():
    here = Path(approval.__file__).parent
    assert {path.stem for path in here.glob("*.py")} - {"__init__"} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_can_be_recorded_and_replayed(name, folder):
    example = EXAMPLES[name]
    recording = record(example.build(), example.input(folder), answers=example.answers)
    assert recording.runs[0].end == "done"
    now = replay(recording, example.build())
    assert [run.end for run in now.runs] == ["done"]
    replay(recording, example.build(), recorded="*")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.trial] * (name in ("demo", "supervisor"))) for name in EXAMPLES]
)
def test_it_survives(name, folder):
    example = EXAMPLES[name]
    survives(example.build(), example.input(folder), answers=example.answers)


def test_a_node_of_an_example_runs_alone():
    found = run_node(supervisor.build(), "researcher:look_up", {"topic": "tea"})
    assert found.update["found"] == supervisor.FACTS["tea"]
    asked = run_node(approval.build(), "Ann" if "Ann" in approval.PEOPLE else approval.PEOPLE[0], {"draft": "tea"})
    assert len(asked.questions) == 1


def test_a_node_of_an_example_is_replaced():
    app = replace(supervisor.build(), {"writer:draft": {"text": "fake"}})
    done = app.invoke(EXAMPLES["supervisor"].input(Path()))
    assert done["text"] == "Tea. fake"


def test_one_run_covers_most_of_an_example(folder):
    example = EXAMPLES["supervisor"]
    app = example.build()
    with measure_coverage(app) as coverage:
        app.invoke(example.input(folder))
    assert coverage.percent > 70
