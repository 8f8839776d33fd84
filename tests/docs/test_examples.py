"""Every program in examples/ runs and prints what its docstring says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kit.chat_server import events, server, whole

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TESTED = {
    "approval", "demo", "functional", "map_reduce", "newton", "research", "supervisor", "tool_agent",
}  # fmt: skip
QUIET = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}  # no test asks outside


def start(name: str, *words: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-W", "error", "-m", f"stategraph.examples.{name}", *words]
    env = {**QUIET, **settings}
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def run(name: str, *words: str, cwd: Path, **settings: str) -> str:
    done = start(name, *words, cwd=cwd, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"} == TESTED


def test_map_reduce(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("One two, two.")
    (tmp_path / "b").write_text("two three three")
    for words in (["a", "b"], ["--processes", "a", "b"]):
        assert run("map_reduce", *words, cwd=tmp_path).splitlines() == [
            "6 words in 2 files",
            "     3 two",
            "     2 three",
            "     1 one",
        ]


def test_map_reduce_reads_the_examples(tmp_path: Path) -> None:
    assert f" words in {len(TESTED) + 1} files\n" in run("map_reduce", cwd=tmp_path)


def test_newton_finds_the_root(tmp_path: Path) -> None:
    assert run("newton", "9", cwd=tmp_path).splitlines()[-1] == "3"


def test_newton_gives_up_where_there_is_no_root(tmp_path: Path) -> None:
    *guesses, last = run("newton", "-3", cwd=tmp_path).splitlines()
    assert len(guesses) == 20
    assert last.startswith("gave up: StateGraph: the recursion limit of 20 supersteps was reached with work left: improve")


# -- approval -------------------------------------------------------------------------------------------------


def test_approval_asks_both_people_each_round(tmp_path: Path) -> None:
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


def test_approval_at_once(tmp_path: Path) -> None:
    assert "\npublished: About cats, draft 1\n" in run("approval", "cats", "--answers", "approve", cwd=tmp_path)


def test_approval_takes_the_wishes_of_both(tmp_path: Path) -> None:
    shown = run("approval", "--answers", "edit:shorter", "edit:a joke", "approve", cwd=tmp_path)
    assert "\npublished: About tea, draft 2, shorter, a joke\n" in shown


def test_approval_repeats_a_question_after_an_invalid_answer(tmp_path: Path) -> None:
    lines = run("approval", "--answers", "maybe", "approve", "reject", cwd=tmp_path).splitlines()
    assert [line[:6] for line in lines[:2]] == ["editor", "lawyer"]
    assert lines[2] == "  not understood: Input should be 'approve', 'reject' or 'edit'"
    assert lines[3:5] == ["editor, do you approve of 'About tea, draft 1'? reject", "rejected"]


# -- functional -----------------------------------------------------------------------------------------------


def test_functional_repeats_nothing(tmp_path: Path) -> None:
    assert run("functional", cwd=tmp_path).splitlines() == [
        "stopped: the station does not answer",
        "  ran: report 1, measure 2, altitude 2, send 1",
        "the same run again, from where it stopped",
        "sent: day 1, Helsinki 17°",
        "  ran: report 1, measure 0, altitude 0, send 1",
        "asked: send 'day 2, Helsinki 18° (yesterday 17°)'?",
        "  ran: report 1, measure 2, altitude 0, send 0",
        "sent: day 2, Helsinki 18° (yesterday 17°)",
        "  ran: report 1, measure 0, altitude 0, send 1",
        "asked: send 'day 3, Helsinki 19° (yesterday 18°)'?",
        "  ran: report 1, measure 2, altitude 0, send 0",
        "day 3, Helsinki 19° (yesterday 18°), not sent",
        "  ran: report 1, measure 0, altitude 0, send 0",
    ]


def test_functional_with_other_cities(tmp_path: Path) -> None:
    assert "\nsent: day 1, Ulaanbaatar 23°\n" in run("functional", "Oslo", "Ulaanbaatar", "Rome", cwd=tmp_path)


# -- research -------------------------------------------------------------------------------------------------


def test_research_continues_after_failures(tmp_path: Path) -> None:
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


def test_research_of_the_unknown(tmp_path: Path) -> None:
    assert run("research", "cats", cwd=tmp_path).splitlines()[-1] == "1. cats: Nothing is known."


# -- supervisor -----------------------------------------------------------------------------------------------


def test_supervisor_sends_the_work_round(tmp_path: Path) -> None:
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


def test_supervisor_stops_where_nothing_is_known(tmp_path: Path) -> None:
    assert run("supervisor", "cats", cwd=tmp_path).splitlines()[-3:] == [
        "supervisor: Nothing is known, so we stop.",
        "",
        "no text",
    ]


# -- tool_agent -----------------------------------------------------------------------------------------------


def test_tool_agent_by_its_script(tmp_path: Path) -> None:
    first, second, *calls, blank, third, last = run("tool_agent", cwd=tmp_path).splitlines()
    assert (first[:5], second, blank) == ("user:", "Let me look.", "")
    assert set(calls) == {
        '  height({"name": "Mount Everest"}) = 8849',
        '  height({"name": "Eiffel Tower"}) = 330',
    }  # as they finish
    assert third == '  calculate({"expression": "8849 / 330"}) = 26.8152'
    assert last == "Mount Everest is 26.8 times higher."


def test_tool_agent_asks_a_server_that_streams(tmp_path: Path) -> None:
    name, arguments = {"name": "height", "arguments": ""}, '{"name": "Mont Blanc"}'
    pieces = [
        {"tool_calls": [{"index": 0, "id": "c1", "function": name}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": arguments[:7]}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": arguments[7:]}}]},
    ]
    words = [{"role": "assistant", "content": ""}, {"content": "It is "}, {"content": "4806 m."}]
    with server([events(pieces), events(words)]) as (url, requests):
        settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}
        lines = run("tool_agent", "How high?", cwd=tmp_path, no_proxy="127.0.0.1", **settings).splitlines()
    assert lines == ["user: How high?", "", '  height({"name": "Mont Blanc"}) = 4806', "It is 4806 m."]
    assert {(path, key) for path, key, _ in requests} == {("/v1/chat/completions", "Bearer k")}
    first, second = [body for _, _, body in requests]
    assert (first["model"], first["stream"]) == ("m", True)
    assert [tool["function"]["name"] for tool in first["tools"]] == ["height", "calculate"]
    assert first["messages"] == [{"role": "user", "content": "How high?"}]
    call = {"id": "c1", "type": "function", "function": {"name": "height", "arguments": arguments}}
    assert second["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4806"},
    ]


def test_tool_agent_returns_errors_to_the_model(tmp_path: Path) -> None:
    asked = {"name": "fly", "arguments": "{}"}
    calls = [{"id": "c1", "function": asked}, {"id": "c2", "function": {"name": "calculate", "arguments": "["}}]
    answers = [whole({"content": None, "tool_calls": calls}), whole({"content": "I cannot."})]
    with server(answers) as (url, requests):
        settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k"}
        lines = run("tool_agent", "Fly!", cwd=tmp_path, no_proxy="127.0.0.1", **settings).splitlines()
    assert "  fly({}) = error in fly: there is no tool 'fly'; known: 'calculate', 'height'" in lines
    assert lines[-1] == "I cannot."
    told = requests[1][2]["messages"][-2:]
    assert [message["tool_call_id"] for message in told] == ["c1", "c2"]
    assert told[1]["content"].startswith("error in calculate: JSONDecodeError")


def test_tool_agent_says_that_the_server_is_not_well(tmp_path: Path) -> None:
    with server([]) as (url, _):
        settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k"}
        done = start("tool_agent", cwd=tmp_path, no_proxy="127.0.0.1", **settings)
    assert (done.returncode, done.stderr) == (1, "the model's server says HTTP Error 500: Oh: no more answers\n")


def test_tool_agent_says_that_there_is_no_server(tmp_path: Path) -> None:
    with server([]) as (url, _):
        pass  # so that nobody listens there any more
    settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k"}
    done = start("tool_agent", cwd=tmp_path, no_proxy="127.0.0.1", **settings)
    assert done.returncode == 1
    assert done.stderr.startswith("the model cannot be asked: ")
