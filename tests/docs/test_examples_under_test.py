"""The kit holds the graphs of all examples: recorded and replayed, killed and raced, nodes alone, fakes, coverage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stategraph import END
from stategraph.examples import (
    approval,
    demo,
    map_reduce,
    newton,
    research,
    supervisor,
)
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
    "map_reduce": Example(map_reduce.build, lambda folder: {"files": sorted(folder.glob("*.py"))}),
    "newton": Example(newton.build, lambda _: {"number": 2.0, "guess": 1.0}),
    "research": Example(research.build, lambda _: {"words": ["tides", "waves"], "sent": 0}),
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
    "name", [pytest.param(name, marks=[pytest.mark.trial] * (name in ("research", "demo", "supervisor"))) for name in EXAMPLES]
)
def test_it_survives(name, folder):
    example = EXAMPLES[name]
    survives(example.build(), example.input(folder), answers=example.answers)


def test_a_node_of_an_example_runs_alone():
    done = run_node(newton.build(), "improve", {"number": 9.0, "guess": 3.0})
    assert (done.update, done.goto) == ({"guess": 3.0}, (END,))
    assert run_node(research.build(), "study:search", {"word": "tides"}, retry=True).goto == ("read",)
    counted = run_node(map_reduce.build(), "count", {"files": []}, sent=Path(newton.__file__))
    assert counted.update["words"]["guess"] > 3
    asked = run_node(approval.build(), "Ann" if "Ann" in approval.PEOPLE else approval.PEOPLE[0], {"draft": "tea"})
    assert len(asked.questions) == 1


def test_a_node_of_an_example_is_replaced():
    app = replace(research.build(), {"study:summarise": {"findings": ["fake"], "asked": []}})
    assert app.invoke({"words": ["tides"], "sent": 0})["report"] == "1. fake"


def test_one_run_covers_most_of_an_example():
    app = newton.build()
    with measure_coverage(app) as coverage:
        app.invoke({"number": 2.0, "guess": 1.0})
    assert coverage.percent == 100.0
