"""An interrupt is identified by its key, or by its value with a counter among equal ones: an answer never reaches
another one.
"""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import TypedDict

import pytest
from kit.graphs import CONFIG, chain_of

from stategraph import (
    Command,
    GraphInterrupt,
    InMemorySaver,
    interrupt,
    task,
)
from stategraph.executors import ProcessExecutor
from stategraph.pregel.task import interrupts


class State(TypedDict, total=False):
    orders: list[str]
    keys: bool
    seen: str
    got: dict[str, str]


def tools(state):
    """Two tools side by side ask for an approval each. In each run they come in the order that is told for it."""
    order = _next(state)
    got = {}
    signals = []
    for name in order:
        try:
            got[name] = interrupt(f"may {name} run?", key=name if state["keys"] else None)
        except GraphInterrupt as signal:
            signals.append(signal)
    if signals:
        raise signals[0]
    return {"got": got}


def in_turn(state):
    """The tools one after the other: the node pauses at the first that has no answer."""
    return {"got": {name: interrupt(f"may {name} run?", key=name if state["keys"] else None) for name in _next(state)}}


async def atools(state):
    """`tools`, gathered."""

    async def ask(name):
        return str(interrupt(f"may {name} run?", key=name if state["keys"] else None))

    order = _next(state)
    found = await asyncio.gather(*map(ask, order))
    return {"got": dict(zip(order, found, strict=True))}


def twice(state):
    """Two questions under one key."""
    return {"got": {"a": interrupt("one?", key="k"), "b": interrupt("two?", key="k")}}


def proposal(state):
    """Asks in the words that are told for this run."""
    words = _next(state)
    return {"got": {"a": interrupt(words, key="proposal" if state["keys"] else None)}}


def number(state):
    """Wants a number, in words that change."""
    return {"got": {"n": interrupt(_next(state), key="n" if state["keys"] else None, response_schema=int)}}


def proposal_and_proof(state):
    """Asks in the words that are told for this run, and then whether that is sure."""
    words = _next(state)
    return {"got": {"a": interrupt(words), "b": interrupt("sure?")}}


def _next(state):
    """What is told for this run: a file counts them, since a node may run in another process."""
    path = Path(state["seen"])
    run = len(path.read_text()) if path.exists() else 0
    path.write_text("." * (run + 1))
    return state["orders"][min(run, len(state["orders"]) - 1)]


@pytest.fixture(scope="module", params=["here", "processes"])
def place(request):
    """Where nodes run."""
    if request.param == "here":
        yield None
        return
    with ProcessExecutor(1) as executor:
        yield executor


def app_of(node, place, **options):
    return chain_of(State, node=node).compile(InMemorySaver(), executor=place, **options)


def start(thread, tmp_path, *orders, keys):
    """Run to the pause; the ids of the questions by their values."""
    given = {"orders": [*orders], "keys": keys, "seen": str(tmp_path / "runs"), "got": {}}
    return ids(thread.invoke(given))


def ids(result):
    return {question.value: question.id for question in result["__interrupt__"]}


@pytest.fixture(params=[tools, atools], ids=["sequential", "gathered"])
def node(request, drive, place):
    if request.param is atools and place is None and not drive.is_async:
        pytest.skip("a sync run has no coroutines")
    return request.param


def test_tools_that_swap_places_get_their_own_answers(drive, place, node, tmp_path):
    thread = drive.on(app_of(node, place))
    asked = start(thread, tmp_path, "ab", "ba", keys=False)
    given = {asked["may a run?"]: "A", asked["may b run?"]: "B"}
    assert thread.invoke(Command(resume=given))["got"] == {"a": "A", "b": "B"}


def test_with_keys_each_gets_its_own(drive, place, node, tmp_path):
    thread = drive.on(app_of(node, place))
    asked = start(thread, tmp_path, "ab", "ba", "ab", keys=True)
    paused = thread.resume({asked["may b run?"]: "B"})
    assert ids(paused) == {"may a run?": asked["may a run?"]}
    assert thread.resume("A")["got"] == {"a": "A", "b": "B"}


def test_a_key_is_used_once(drive, place, tmp_path):
    thread = drive.on(app_of(twice, place))
    start(thread, tmp_path, "", keys=True)
    with pytest.raises(ValueError, match="two questions under the key 'k'"):
        thread.invoke(Command(resume="yes"))


@pytest.mark.parametrize("key", ["", 1, ("a",)])
def test_a_key_is_a_text(drive, key):
    app = app_of(lambda _: {"got": {"a": interrupt("?", key=key)}}, None)
    with pytest.raises(TypeError, match="must be a non-empty string"):
        drive.invoke(app, {"got": {}}, CONFIG)


def test_a_changed_interrupt_value_interrupts_again(drive, place, tmp_path):
    """An approval is of what was shown."""
    thread = drive.on(app_of(proposal, place))
    first = start(thread, tmp_path, "pay 4", "pay 4000", keys=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        paused = thread.resume({first["pay 4"]: "yes"})
    assert list(ids(paused)) == ["pay 4000"] and ids(paused)["pay 4000"] != first["pay 4"]
    if place is None:
        assert any("from 'pay 4' to 'pay 4000'" in str(each.message) for each in told)
    assert thread.resume("no")["got"] == {"a": "no"}


def test_with_a_key_an_interrupt_value_may_change(drive, place, tmp_path):
    thread = drive.on(app_of(proposal, place))
    start(thread, tmp_path, "pay 4 (12:00)", "pay 4 (12:01)", keys=True)
    assert thread.invoke(Command(resume="yes"))["got"] == {"a": "yes"}


@pytest.mark.parametrize("keys", [True, False])
def test_a_rejected_answer_leaves_the_question_under_its_id(drive, place, tmp_path, keys):
    thread = drive.on(app_of(number, place))
    words = ("n?", "n now?", "n at last?") if keys else ("n?",)
    first = start(thread, tmp_path, *words, keys=keys)
    with pytest.raises(ValueError, match="valid integer"):
        thread.resume("none")
    (question,) = thread.state.interrupts
    assert question.id == first["n?"]
    assert thread.resume({question.id: "7"})["got"] == {"n": 7}


@pytest.fixture(params=["supersteps", "ready"])
def schedule(request):
    return request.param


@pytest.fixture(params=["sync", "exit"])
def durability(request):
    return request.param


@pytest.mark.filterwarnings("ignore:node 'node'. question")
def test_after_an_edit_interrupt_values_count_again_once_they_were_shown(drive, place, tmp_path, schedule, durability):
    """What a person edits before approving is approved as edited; what is shown since is approved as shown."""
    thread = drive.on(app_of(proposal, place, schedule=schedule))
    start(thread, tmp_path, "pay 4", "pay 40", "pay 4000", keys=False)
    thread.update({"got": {"note": "edited"}})
    assert list(ids(thread.invoke(None, durability=durability))) == ["pay 40"]
    assert list(ids(thread.resume("yes", durability=durability))) == ["pay 4000"]
    assert thread.resume("no", durability=durability)["got"] == {"a": "no"}


def test_an_answer_given_before_an_edit_applies_to_the_new_interrupt_value(
    drive, place, tmp_path, schedule, durability
):
    thread = drive.on(app_of(proposal_and_proof, place, schedule=schedule))
    start(thread, tmp_path, "pay 4", "pay 4", "pay 40", keys=False)
    assert list(ids(thread.resume("yes"))) == ["sure?"]
    thread.update({"got": {"note": "edited"}})
    assert list(ids(thread.invoke(None, durability=durability))) == ["sure?"]
    assert thread.resume("no", durability=durability)["got"] == {"a": "yes", "b": "no"}


# -- questions whose order changes -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:node 'node'. question")
@pytest.mark.parametrize("keys", [True, False], ids=["keyed", "unkeyed"])
@pytest.mark.parametrize(("named", "durability"), [(True, "sync"), (False, "exit")])
def test_questions_end_after_one_answer_each_in_any_order(drive, place, tmp_path, keys, named, schedule, durability):
    """An answer stays with the task if the node, running again, comes to another question first."""
    thread = drive.on(app_of(in_turn, place, schedule=schedule))
    asked = start(thread, tmp_path, "abc", "bca", "cab", "bac", keys=keys)
    shown = []
    for name in "abc":
        ((words, id),) = asked.items()
        shown.append(words)
        answer = name.upper()
        result = thread.invoke(Command(resume={id: answer} if named else answer), durability=durability)
        asked = ids(result) if "__interrupt__" in result else {}
    assert shown == ["may a run?", "may b run?", "may c run?"]
    assert not asked and result["got"] == {"a": "A", "b": "B", "c": "C"}


@pytest.mark.filterwarnings("ignore:node 'node'. question")
@pytest.mark.parametrize("keys", [True, False], ids=["keyed", "unkeyed"])
def test_open_questions_stay_shown_if_an_attempt_does_not_reach_them(drive, place, tmp_path, keys, schedule):
    thread = drive.on(app_of(tools, place, schedule=schedule))
    asked = start(thread, tmp_path, "abc", "c", "bac", keys=keys)
    paused = thread.resume({asked["may a run?"]: "A"})
    left = {words: id for words, id in asked.items() if words != "may a run?"}
    assert ids(paused) == left
    assert {each.value: each.id for each in thread.state.interrupts} == left
    given = {left["may b run?"]: "B", left["may c run?"]: "C"}
    assert thread.resume(given)["got"] == {"a": "A", "b": "B", "c": "C"}


@pytest.mark.filterwarnings("ignore:node 'node'. question")
def test_each_of_equal_questions_takes_one_answer(drive, schedule):
    """Equal questions cannot be told apart: which of them takes which answer does not matter, if each takes one."""
    orders = ["oo?", "?oo", "o?o"]

    def node(_):
        order = orders.pop(0) if orders else "oo?"
        return {"got": [(kind, interrupt(kind)) for kind in order]}

    thread = drive.on(app_of(node, None, schedule=schedule))
    result, answers = thread.invoke({"got": {}}), []
    while "__interrupt__" in result:
        (question,) = result["__interrupt__"]
        answers.append((question.value, len(answers)))
        result = thread.resume({question.id: len(answers) - 1})
    assert sorted(result["got"]) == sorted(answers) and len(answers) == 3


@pytest.mark.filterwarnings("ignore:node 'node'. question")
@pytest.mark.parametrize("inside", ["graph", "memory", "stateless", "task"])
def test_an_answer_for_a_nested_interrupt_is_kept_while_the_node_interrupts_first(drive, local_saver, schedule, inside):
    """The node runs something that asks, and asks a question of its own; the order changes in each run."""
    kinds = {"graph": None, "memory": True, "stateless": False}

    def ask(_):
        return {"got": interrupt("inside?")}

    if inside == "task":
        run = task(ask)
    else:
        inner = chain_of(State, ask=ask).compile(kinds[inside])
    orders = ["io", "oi", "io"]

    def node(_):
        got = {}
        for kind in orders.pop(0) if orders else "io":
            if kind == "o":
                got["own"] = interrupt("own?")
            else:
                got["inside"] = run({}).result()["got"] if inside == "task" else inner.invoke({"got": {}})["got"]
        return {"got": got}

    async def anode(_):
        got = {}
        for kind in orders.pop(0) if orders else "io":
            if kind == "o":
                got["own"] = interrupt("own?")
            else:
                got["inside"] = (await run({}) if inside == "task" else await inner.ainvoke({"got": {}}))["got"]
        return {"got": got}

    if inside == "task" and drive.is_async:

        async def aask(given):
            return ask(given)

        run = task(aask)
    thread = drive.on(chain_of(State, node=anode if drive.is_async else node).compile(local_saver, schedule=schedule))
    asked = ids(thread.invoke({"got": {}}))
    shown = []
    while asked:
        ((words, id),) = asked.items()
        shown.append(words)
        result = thread.resume({id: words.upper()})
        asked = ids(result) if "__interrupt__" in result else {}
    assert shown == ["inside?", "own?"] and result["got"] == {"own": "OWN?", "inside": "INSIDE?"}


def test_a_node_that_ends_without_its_answered_interrupt_warns(drive, place, tmp_path):
    thread = drive.on(app_of(in_turn, place))
    asked = start(thread, tmp_path, "ab", "", keys=True)
    with pytest.warns(UserWarning, match="ended without asking 'may a run\\?' again"):
        assert thread.invoke(Command(resume={asked["may a run?"]: "A"}))["got"] == {}


def test_where_warnings_are_errors_the_node_fails_and_can_be_resumed(drive, tmp_path):
    thread = drive.on(app_of(proposal, None))
    start(thread, tmp_path, "pay 4", "pay 40", "pay 4", keys=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="has changed since it was answered"):
            thread.resume("yes")
    assert "has changed" in str(thread.state.tasks[0].error)
    assert thread.invoke(None)["got"] == {"a": "yes"}


def test_an_answer_that_no_interrupt_uses_warns(drive, place, tmp_path):
    thread = drive.on(app_of(in_turn, place))
    asked = start(thread, tmp_path, "ab", "b", "b", keys=True)
    paused = thread.resume({asked["may a run?"]: "A"})
    with pytest.warns(UserWarning, match="ended without asking the question with id"):
        assert thread.resume({ids(paused)["may b run?"]: "B"})["got"] == {"b": "B"}


def test_answers_in_any_order_are_no_cause_for_a_warning(drive, tmp_path, schedule):
    thread = drive.on(app_of(in_turn, None, schedule=schedule))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        asked = start(thread, tmp_path, "ab", "ba", "ab", keys=True)
        asked = ids(thread.resume(asked and {asked["may a run?"]: "A"}))
        assert thread.resume({asked["may b run?"]: "B"})["got"] == {"a": "A", "b": "B"}


@pytest.mark.parametrize("version", ["0.2.0", "0.1.0"])
def test_a_thread_of_an_earlier_version_takes_answers_by_its_ids(drive, place, tmp_path, version, monkeypatch):
    """Ids of 0.2.0 were made of place and value, those before of the place alone."""
    app, identify = app_of(tools, None), interrupts.identify

    def earlier(ns, place, content, equal):
        known = identify(ns, place, content, equal)
        return interrupts.Question(known.earlier[version == "0.1.0"])

    with monkeypatch.context() as before:
        before.setattr(interrupts, "identify", earlier)
        asked = start(drive.on(app), tmp_path, "abc", keys=False)
    paused = drive.invoke(app, Command(resume={asked["may b run?"]: "B"}), CONFIG)
    left = {words: id for words, id in asked.items() if words != "may b run?"}
    assert ids(paused) == left, "they keep their ids"
    given = {left["may a run?"]: "A", left["may c run?"]: "C"}
    assert drive.invoke(app, Command(resume=given), CONFIG)["got"] == {"a": "A", "b": "B", "c": "C"}
