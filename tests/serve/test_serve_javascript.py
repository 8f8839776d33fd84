"""The server, as the official JavaScript clients see it. `make clients` installs them."""

from pathlib import Path

import pytest
from javascript import run_client
from served_agents import make_desk
from serving import Gates, flow_app, make_flow, serving

from stategraph import entrypoint
from stategraph.serve import create_app

pytestmark = pytest.mark.trial


def test_a_session_of_the_javascript_client(database):
    with serving(flow_app(**database)) as url:
        found = run_client("flow.mjs", url)
    assert found == {
        "waited": {"log": ["x", "a", "b"]},
        "streamed": [
            ["custom", {"from": "a"}],
            ["updates", {"a": {"log": ["a"]}}],
            ["updates", {"b": {"log": ["b"]}}],
        ],
        "history": [[], ["b"]],
        "edited": ["b"],
        "goneOn": "b",
        "asked": {"question": "name?"},
        "status": "interrupted",
        "resumed": ["a", "Ann"],
        "joined": [["updates", {"a": {"log": ["a"]}}], ["updates", {"b": {"log": ["b"]}}]],
        "failed": [
            ["updates", {"a": {"log": ["a"]}}],
            ["error", {"error": "ValueError", "message": "boom"}],
        ],
        "searched": 1,
        "assistants": ["flow"],
        "stored": {"text": "hi"},
        "gone": 404,
    }


GUIDE = (Path(__file__).resolve().parents[2] / "docs/reference/server.md").read_text()
REFUSED = {
    "assistants.delete deleteThreads": "delete_threads",
    "runs.create webhook": "webhook",
    "runs.create streamMode": "stream mode",
}
"""What is refused, and the word that the guide says it with."""


@pytest.fixture(scope="module")
def called():
    """What has become of a call of each method, and the methods that the client has."""
    with serving(flow_app()) as url:
        return dict(run_client("methods.mjs", url))


def test_each_method_of_the_javascript_client_works_or_is_refused(called):
    assert {name for name, became in called["results"].items() if became != "works"} == {*REFUSED}, called


@pytest.mark.parametrize("method", REFUSED)
def test_what_is_refused_is_refused_with_a_sentence_that_the_guide_has(called, method):
    said = called["results"][method]
    assert "not offered" in said or "not found" in said.lower(), said
    assert REFUSED[method] in GUIDE.partition("## What is not offered")[2]


def test_each_method_of_the_javascript_client_is_called(called):
    """The methods are those of the installed package, so a new one fails here until it is looked at."""
    assert sorted(called["methods"]) == sorted(name for name in called["results"] if " " not in name)


def test_a_session_of_the_ag_ui_client(database):
    gates = Gates()
    gates.close("wait")
    with serving(create_app({"desk": make_desk(gates)}, **database)) as url:
        found = run_client("ag_ui.mjs", url)
    answer = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    call = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
    assert found["chat"] == [
        "RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED", "CUSTOM",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", *call, "STEP_FINISHED", "STATE_DELTA",
        "STEP_STARTED", "TOOL_CALL_RESULT", "STEP_FINISHED", "STATE_DELTA",
        "STEP_STARTED", "CUSTOM", *answer, "STEP_FINISHED", "STATE_DELTA", "MESSAGES_SNAPSHOT", "RUN_FINISHED",
    ]  # fmt: skip
    assert found["said"] == [
        ["user", "weather"], ["assistant", "Let me see."], ["tool", "sunny"], ["assistant", "Done: sunny"],
    ]  # fmt: skip
    assert found["calls"] == [{"name": "weather", "arguments": '{"city": "Rome"}'}]
    assert found["state"] == {"log": ["model", "tools", "model"], "order": {"items": ["sunny"]}}
    assert found["again"] == 6
    [asked] = found["asked"]
    assert (asked["reason"], asked["message"], asked["toolCallId"]) == ("tool_call", "Really?", "call-7")
    assert asked["responseSchema"]["required"] == ["approved"]
    assert found["answered"] == ["assistant", "Done: True"] and found["open"] == 0
    assert found["located"] == ["assistant", "Done: Rome"]
    assert found["failed"] == ["STEP_FINISHED", "RUN_ERROR"]
    assert "RUN_FINISHED" not in found["left"] and found["back"] == ["assistant", "You said hi."]
    assert len(found["missing"]) == 1 and "HTTP 404" in found["missing"][0]
    assert found["held"] == found["stored"]["ids"] and found["last"]["log"] == found["stored"]["log"]


@entrypoint()
def double(number):
    """Doubles a number."""
    return 2 * number


def test_sessions_of_the_mcp_client(database):
    gates = Gates()
    gates.close("wait")
    graphs = {"desk": make_desk(gates), "flow": make_flow(gates), "double": double}
    with serving(create_app(graphs, **database)) as url:
        found = run_client("mcp.mjs", url)
    assert [name for name, _ in found["tools"]] == ["desk", "flow", "double", "answer_question"]
    assert found["tools"][2][1] == "Doubles a number."
    assert found["doubled"] == {"result": 8}
    assert found["waited"] == {"log": ["x", "a", "b"]} and found["progress"] == [[1, "a"], [2, "b"]]
    assert found["answered"] == {"log": ["a", "Ann"], "topic": "ask"}
    assert found["approved"] == ["approve", "Let me see.", "True", "Done: True"]
    assert [message.partition("\n")[0] for message, _ in found["asked"]] == ["name?", "Really?"]
    assert found["failed"] == [True, "ValueError: boom"]
    assert "there is no tool 'none'" in found["missing"] and "enough" in found["left"]
    assert found["question"] == {"question": "name?"} and found["told"]["log"] == ["a", "Bo"]
