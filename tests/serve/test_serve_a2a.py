"""The server, as the official A2A client sees it: over a real socket, from a virtual environment of its own."""

import pytest
from javascript import run_client
from served_agents import make_desk
from serving import Gates, make_flow, serving

from stategraph.serve import create_app


@pytest.fixture(scope="module")
def seen():
    gates = Gates()
    gates.close("slow")
    with serving(create_app({"desk": make_desk(gates), "flow": make_flow(gates)})) as url:
        return run_client("a2a_client.py", url)


@pytest.mark.trial
def test_each_graph_has_a_card_and_the_first_is_the_servers(seen):
    assert seen["cards"] == ["desk", "flow", "0.3.0"]


@pytest.mark.trial
def test_a_message_is_answered_in_pieces_and_the_task_keeps_its_output(seen):
    streamed = seen["streamed"]
    kinds = streamed.pop("kinds")
    assert kinds[0] == "task" and kinds[-1] == "status-update"
    assert kinds.count("artifact-update") > 3
    assert streamed["state"] == "completed" and streamed["text"] == "You said good day."
    assert seen["again"] == streamed
    assert seen["joined"] == [streamed, "status-update"]


def test_a_question_is_answered_within_its_task(seen):
    assert seen["asking"]["state"] == "input-required" and seen["asking"]["said"] == ["Really?"]
    assert seen["answered"]["state"] == "completed" and seen["answered"]["is_same"]
    assert seen["answered"]["text"] == "Done: True"
    assert seen["answered"]["data"][-1]["order"] == {"items": ["True"]}


def test_a_task_shows_its_own_output_after_the_thread_went_on(seen):
    assert seen["kept"] == "You said good day."


def test_a_graph_without_messages_takes_data(seen):
    assert seen["done"]["state"] == "completed"
    assert seen["done"]["data"] == [{"log": ["x", "a", "b"]}]


def test_a_failed_task_says_why(seen):
    assert seen["failed"]["state"] == "failed" and seen["failed"]["said"] == ["boom"]


def test_a_task_that_runs_is_cancelled(seen):
    assert seen["begun"] in ("submitted", "working") and seen["cancelled"] == "canceled"


def test_wrong_calls_get_the_errors_of_the_protocol(seen):
    text, ended, unknown, closed = seen["wrong"]
    assert "send a data part with" in text
    assert "has ended" in ended
    assert "there is no thread" in unknown
    assert "asks nothing" in closed
