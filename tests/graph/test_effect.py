"""`@effect`: what a function does to the world; calls that must not be repeated are not."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

import pytest
from kit import cluster
from kit.effect_kills import KINDS, PLACES, WAYS
from kit.graphs import CONFIG, EMPTY, Log, chain_of, thread_config
from kit.places import Failed, calling
from kit.programs import ROOT, output_of

from stategraph import (
    START,
    Command,
    GraphWarning,
    InMemorySaver,
    MessagesState,
    RetryPolicy,
    StateGraph,
    UnknownOutcomeError,
    effect,
    entrypoint,
    task,
)
from stategraph.prebuilt import Tool, ToolNode

AGAIN = RetryPolicy(max_attempts=3, initial_interval=0, retry_on=Exception)


postgres = cluster.emptied


def killed(*arguments):
    """What a program of `kit/effect_kills.py` prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    return json.loads(output_of(sys.executable, "-P", ROOT / "tests/kit/effect_kills.py", *arguments, env=env))


@pytest.mark.trial
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_death_at_each_storing_call_repeats_no_effect(tmp_path, request, kind):
    """Seven effects, six of them in tasks side by side; before and after each commit and record, in both worlds."""
    target = [request.getfixturevalue("postgres")] if kind == "postgres" else []
    found = killed("stores", tmp_path, *target)
    assert len(found) > 60
    for each in found:
        requests = Counter(line.split()[0] for line in each["received"])
        effects = Counter(line.split()[0] for line in {*each["received"]})  # by item and key
        assert sorted(effects) == ["0a", "0b", "1a", "1b", "2a", "2b", "close"] and len(each["log"]) == 7, each
        assert max(effects.values()) == 1, each
        assert each["kind"] == "keyed" or requests == effects, each


@pytest.mark.trial
def test_the_crash_matrix_of_the_docs_is_what_killed_processes_show(tmp_path):
    """Each cell by each way of calling: a process is killed there and another one resumes the thread."""
    cells = {}
    ways = Counter()
    for each in killed("matrix", tmp_path):
        assert each["killed"], each
        if each["kind"] != "undeclared" or each["way"] != "call":  # nothing records those but their superstep
            shown = f"{each['effects']}, asks" if each["questions"] else str(each["effects"])
            cells.setdefault((each["kind"], each["place"]), set()).add(shown)
        ways[each["way"]] += 1
    assert ways == dict.fromkeys(WAYS, len(KINDS) * len(PLACES))
    rows = [f"| {kind} | {' | '.join(' or '.join(sorted(cells[kind, place])) for place in PLACES)} |" for kind in KINDS]
    page = (ROOT / "docs/how-to/effects-once.md").read_text()
    assert "\n".join(rows) in page, rows


def one_call(function, saver=None, **policies):
    """A graph of one node that calls a function of the state."""
    return StateGraph(Log).add_node("pay", function, **policies).add_edge(START, "pay").compile(saver)


def charging(drive, made, fails, **declared):
    """A node that makes one irreversible call."""

    def act(amount: int) -> str:
        made.append(amount)
        if fails:
            raise fails.pop()
        return f"receipt {len(made)}"

    if drive.is_async:

        @effect("irreversible", **declared)
        async def acharge(amount: int) -> str:
            return act(amount)

        async def apay(state: Log):
            return {"log": [await acharge(10)]}

        return apay

    @effect("irreversible", **declared)
    def charge(amount: int) -> str:
        return act(amount)

    return lambda state: {"log": [charge(10)]}


@pytest.mark.parametrize(
    "answer, log, calls",
    [({"decision": "done", "result": "r"}, ["r"], 1), ({"decision": "again"}, ["receipt 2"], 2)],
)
def test_an_irreversible_call_that_failed_is_a_question_and_not_a_retry(drive, saver, answer, log, calls):
    made = []
    thread = drive.on(one_call(charging(drive, made, [TimeoutError("lost")]), saver, retry_policy=AGAIN))
    [question] = thread.invoke(EMPTY)["__interrupt__"]
    assert question.value["call"].endswith("charge(amount=10)")
    assert "TimeoutError('lost')" in question.value["question"] and made == [10]
    assert thread.resume(answer) == {"log": log}
    assert len(made) == calls


def test_who_answers_fail_gets_an_error_and_no_call(drive, saver):
    made = []
    thread = drive.on(one_call(charging(drive, made, [TimeoutError()]), saver, retry_policy=AGAIN))
    thread.invoke(EMPTY)
    with pytest.raises(UnknownOutcomeError, match="may have happened at"):
        thread.resume({"decision": "fail"})
    assert made == [10]


def test_an_answer_again_counts_once(drive, saver):
    """If that call fails too, there is a new question."""
    made = []
    thread = drive.on(one_call(charging(drive, made, [TimeoutError(), TimeoutError()]), saver))
    thread.invoke(EMPTY)
    assert "__interrupt__" in thread.resume({"decision": "again"})
    assert made == [10, 10]
    assert thread.resume({"decision": "done", "result": "r"}) == {"log": ["r"]}
    assert made == [10, 10]


def test_without_a_checkpointer_an_irreversible_call_fails_instead_of_being_retried(drive):
    made = []
    app = one_call(charging(drive, made, [TimeoutError()]), retry_policy=AGAIN)
    with pytest.raises(UnknownOutcomeError) as caught:
        drive.invoke(app, EMPTY)
    assert made == [10] and "pay" in str(caught.value)


def test_an_error_that_says_that_nothing_happened_is_retried(drive, saver):
    made = []
    app = one_call(charging(drive, made, [ConnectionError()], not_done=ConnectionError), saver, retry_policy=AGAIN)
    assert drive.invoke(app, EMPTY, CONFIG) == {"log": ["receipt 2"]}


@pytest.mark.parametrize("found, log, calls", [("r", ["r"], 1), (None, ["receipt 2"], 2)])
def test_a_probe_looks_before_anybody_is_asked(drive, saver, found, log, calls):
    made = []
    probe = {"probe": lambda amount: found}
    app = one_call(charging(drive, made, [TimeoutError()], **probe), saver, retry_policy=AGAIN)
    assert drive.invoke(app, EMPTY, CONFIG) == {"log": log}
    assert len(made) == calls


@pytest.mark.parametrize("kind", ["keyed", "irreversible"])
def test_equal_calls_are_told_apart_by_their_number_and_found_again(saver, kind):
    made = []
    failures = [RuntimeError()]

    @effect(kind)
    def number(group: str) -> int:
        made.append(len(made))
        return made[-1]

    def node(state: Log):
        found = [number("a"), number("a"), number(group="b")]
        if failures:
            raise failures.pop()
        return {"log": found}

    assert one_call(node, saver, retry_policy=AGAIN).invoke(EMPTY, CONFIG) == {"log": [0, 1, 2]}
    assert made == [0, 1, 2]


def test_a_key_is_the_same_for_each_try_and_another_for_another_call(drive, saver):
    keys = []

    def act(key: str) -> str:
        keys.append(key)
        if len(keys) in (1, 3):
            raise TimeoutError
        return "sent"

    @effect("keyed")
    def mail(to: str, idempotency_key: str) -> str:
        return act(idempotency_key)

    @effect("keyed")
    async def amail(to: str, idempotency_key: str) -> str:
        return act(idempotency_key)

    async def anode(state: Log):
        return {"log": [await amail("a"), await amail("b")]}

    node = anode if drive.is_async else lambda state: {"log": [mail("a"), mail("b")]}
    drive.invoke(one_call(node, saver, retry_policy=AGAIN), EMPTY, CONFIG)
    assert keys[0] == keys[1] != keys[2] == keys[3] and len(keys) == 4


@pytest.mark.parametrize("kind, stored", [("pure", 0), (None, 1), ("keyed", 1), ("irreversible", 2)])
def test_what_a_call_of_a_task_stores(kind, stored):
    """Nothing for a pure one; an irreversible one is recorded before it is made, too."""
    saver = InMemorySaver()
    records = []
    record = saver.record
    saver.record = lambda *given: (records.append(given), record(*given))[1]  # type: ignore[method-assign]

    @task(effect=kind)
    def double(x: int) -> int:
        return 2 * x

    @entrypoint(checkpointer=saver)
    def run(x: int) -> int:
        return double(x).result()

    assert run.invoke(2, CONFIG) == 4
    assert len(records) == stored


@pytest.mark.trial
@pytest.mark.parametrize("kind, requests, questions", [(None, 90, 0), ("keyed", 30, 0), ("irreversible", 30, 30)])
def test_thirty_tools_that_fail_after_they_have_acted(drive, saver, kind, requests, questions):
    """crewAI#5802: each is called again by the retry of its node. Counted at the receiver, by key if there is one."""
    received = []

    def act(order: int, key: str | None) -> str:
        received.append(key or f"{order} {len(received)}")
        raise TimeoutError("the response was lost")

    if drive.is_async:

        async def acharge(order: int, idempotency_key: str | None = None) -> str:
            """Charge for an order."""
            return act(order, idempotency_key)

        function = acharge
    else:

        def charge(order: int, idempotency_key: str | None = None) -> str:
            """Charge for an order."""
            return act(order, idempotency_key)

        function = charge
    node = ToolNode([Tool(function, name="charge", effect=kind)])
    calls = [
        {"id": f"call {n}", "type": "function", "function": {"name": "charge", "arguments": json.dumps({"order": n})}}
        for n in range(30)
    ]
    graph = StateGraph(MessagesState).add_node("tools", node, retry_policy=AGAIN).add_edge(START, "tools")
    app = graph.compile(saver, on_failure="finish")
    asked = 0
    for number, call in enumerate(calls):
        thread = thread_config(str(number))
        given = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
        try:
            found = drive.invoke(app, given, thread)
        except TimeoutError:
            continue
        asked += len(found["__interrupt__"])
        answer = {"decision": "done", "result": "receipt"}
        assert drive.invoke(app, Command(resume=answer), thread)["messages"][-1]["content"] == "receipt"
    assert len({*received}) == requests and asked == questions


@pytest.fixture
def trading():
    """A graph whose node makes 209 calls, and fails behind them once; and what has arrived."""
    received = Counter()
    failures = [RuntimeError("lost")]

    @effect("irreversible")
    def trade(order: int) -> int:
        received[order] += 1
        return order

    def node(state: Log):
        found = [trade(n) for n in range(209)]
        if failures:
            raise failures.pop()
        return {"log": found}

    return chain_of(Log, pay=node), received


def test_two_hundred_and_nine_calls_whose_responses_were_lost_are_not_made_again_by_a_replay(trading, saver):
    """agent-framework#3938: the node fails behind its calls, and the resume makes all of them again."""
    graph, received = trading
    app = graph.compile(saver)
    with pytest.raises(RuntimeError):
        app.invoke(EMPTY, CONFIG)
    assert len(app.invoke(None, CONFIG)["log"]) == 209
    assert received == dict.fromkeys(range(209), 1)


@pytest.mark.parametrize("place", ["workers", "server"])
def test_workers_and_servers_do_not_make_them_again_either(trading, place, request):
    graph, received = trading
    url = request.getfixturevalue("postgres") if place == "workers" else ""
    with calling(place, graph.compile(), url) as call:
        with pytest.raises(Failed):
            call("t", EMPTY)
        assert len(call("t", None)["log"]) == 209
    assert received == dict.fromkeys(range(209), 1)


def test_a_model_does_not_see_the_key():
    @effect("keyed")
    def mail(to: str, idempotency_key: str) -> str:
        """Mail."""
        return to

    assert list(Tool(mail).parameters["properties"]) == ["to"]
    assert mail("a") == "a"  # outside of a run


def test_debug_names_the_tools_that_declare_no_effect():
    def search(text: str) -> str:
        """Search."""
        return text

    def graph(*tools):
        return chain_of(MessagesState, tools=ToolNode(tools))

    with pytest.warns(GraphWarning, match="tools of node 'tools' declare no effect: search"):
        graph(search, effect("pure")(named("other"))).compile(debug=True)
    graph(effect("pure")(search)).compile(debug=True)


def named(name):
    def function() -> str:
        """Do."""
        return name

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: effect("irreversable"), "effect must be 'pure', 'keyed' or 'irreversible', got 'irreversable'"),
        (lambda: effect("pure", probe=str), "probe and not_done are for irreversible effects"),
        (lambda: task(effect="x"), "effect must be"),
    ],
)
def test_what_is_no_declaration_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_undoes_a_call_must_be_a_function():
    with pytest.raises(TypeError, match="undo must be a function, got int"):
        effect("keyed", undo=3)



def test_an_irreversible_call_inside_of_another_is_refused(saver):
    @effect("irreversible")
    def inner() -> int:
        return 1

    @effect("irreversible", not_done=RuntimeError)
    def outer() -> int:
        return inner()

    with pytest.raises(RuntimeError, match="cannot be used inside of effect"):
        one_call(lambda state: {"log": [outer()]}, saver).invoke(EMPTY, CONFIG)


def test_on_processes_the_records_are_kept_by_the_driver(saver):
    app = one_call(pay_elsewhere, saver, executor="processes", retry_policy=AGAIN)
    [question] = app.invoke(EMPTY, CONFIG)["__interrupt__"]
    assert "charge_elsewhere(amount=3)" in question.value["question"]
    assert app.invoke(Command(resume={"decision": "done", "result": 1}), CONFIG) == {"log": [1]}


@effect("irreversible")
def charge_elsewhere(amount: int) -> int:
    raise TimeoutError


def pay_elsewhere(state: Log):
    return {"log": [charge_elsewhere(3)]}
