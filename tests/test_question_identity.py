"""A question is known by its key, or by its place and its words: an answer never reaches another one."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from conftest import Drive

from stategraph import START, Command, GraphInterrupt, InMemorySaver, Pregel, StateGraph, interrupt
from stategraph.executors import ProcessExecutor

ONE = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    orders: list[str]
    keys: bool
    seen: str
    got: dict[str, str]


def tools(state: State) -> Any:
    """Two tools side by side ask for an approval each. In each run they come in the order that is told for it."""
    order = _next(state)
    got: dict[str, str] = {}
    signals = []
    for name in order:
        try:
            got[name] = interrupt(f"may {name} run?", key=name if state["keys"] else None)
        except GraphInterrupt as signal:
            signals.append(signal)
    if signals:
        raise signals[0]
    return {"got": got}


async def atools(state: State) -> Any:
    """`tools`, gathered."""

    async def ask(name: str) -> str:
        return str(interrupt(f"may {name} run?", key=name if state["keys"] else None))

    order = _next(state)
    found = await asyncio.gather(*map(ask, order))
    return {"got": dict(zip(order, found, strict=True))}


def twice(state: State) -> Any:
    """Two questions under one key."""
    return {"got": {"a": interrupt("one?", key="k"), "b": interrupt("two?", key="k")}}


def proposal(state: State) -> Any:
    """Asks in the words that are told for this run."""
    words = _next(state)
    return {"got": {"a": interrupt(words, key="proposal" if state["keys"] else None)}}


def number(state: State) -> Any:
    """Wants a number, in words that change."""
    return {"got": {"n": interrupt(_next(state), key="n" if state["keys"] else None, response_schema=int)}}


def proposal_and_proof(state: State) -> Any:
    """Asks in the words that are told for this run, and then whether that is sure."""
    words = _next(state)
    return {"got": {"a": interrupt(words), "b": interrupt("sure?")}}


def _next(state: State) -> str:
    """What is told for this run: a file counts them, since a node may run in another process."""
    path = Path(state["seen"])
    run = len(path.read_text()) if path.exists() else 0
    path.write_text("." * (run + 1))
    return state["orders"][min(run, len(state["orders"]) - 1)]


@pytest.fixture(scope="module", params=["here", "processes"])
def place(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Where nodes run."""
    if request.param == "here":
        yield None
        return
    with ProcessExecutor(1) as executor:
        yield executor


def app_of(node: Any, place: Any, **options: Any) -> Pregel:
    graph = StateGraph(State).add_node("node", node).add_edge(START, "node")
    return graph.compile(InMemorySaver(), executor=place, **options)


def start(drive: Drive, app: Pregel, tmp_path: Path, *orders: str, keys: bool) -> dict[str, str]:
    """Run to the pause; the ids of the questions by their values."""
    given = {"orders": [*orders], "keys": keys, "seen": str(tmp_path / "runs"), "got": {}}
    return ids(drive.invoke(app, given, ONE))


def ids(result: Any) -> dict[str, str]:
    return {question.value: question.id for question in result["__interrupt__"]}


@pytest.fixture(params=[tools, atools], ids=["sequential", "gathered"])
def node(request: pytest.FixtureRequest, drive: Drive, place: Any) -> Any:
    if request.param is atools and place is None and not drive.is_async:
        pytest.skip("a sync run has no coroutines")
    return request.param


def test_tools_that_swap_get_nobodys_answer_and_both_are_asked_anew(
    drive: Drive, place: Any, node: Any, tmp_path: Path
) -> None:
    app = app_of(node, place)
    asked = start(drive, app, tmp_path, "ab", "ba", keys=False)
    given = {asked["may a run?"]: "A", asked["may b run?"]: "B"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        paused = drive.invoke(app, Command(resume=given), ONE)
    anew = ids(paused)
    assert set(anew) == {"may a run?", "may b run?"} and set(anew.values()).isdisjoint(given), "neither answer was used"
    if place is None:
        texts = "\n".join(str(each.message) for each in told)
        assert "from 'may a run?' to 'may b run?'" in texts and "interrupt(value, key=...)" in texts
    given = {anew["may a run?"]: "A", anew["may b run?"]: "B"}
    assert drive.invoke(app, Command(resume=given), ONE)["got"] == {"a": "A", "b": "B"}


def test_with_keys_each_gets_its_own(drive: Drive, place: Any, node: Any, tmp_path: Path) -> None:
    app = app_of(node, place)
    asked = start(drive, app, tmp_path, "ab", "ba", "ab", keys=True)
    paused = drive.invoke(app, Command(resume={asked["may b run?"]: "B"}), ONE)
    assert ids(paused) == {"may a run?": asked["may a run?"]}
    assert drive.invoke(app, Command(resume="A"), ONE)["got"] == {"a": "A", "b": "B"}


def test_a_key_is_used_once(drive: Drive, place: Any, tmp_path: Path) -> None:
    app = app_of(twice, place)
    start(drive, app, tmp_path, "", keys=True)
    with pytest.raises(ValueError, match="two questions under the key 'k'"):
        drive.invoke(app, Command(resume="yes"), ONE)


@pytest.mark.parametrize("key", ["", 1, ("a",)])
def test_a_key_is_a_text(drive: Drive, key: Any) -> None:
    app = app_of(lambda _: {"got": {"a": interrupt("?", key=key)}}, None)
    with pytest.raises(TypeError, match="must be a non-empty string"):
        drive.invoke(app, {"got": {}}, ONE)


def test_what_is_proposed_in_other_words_is_asked_anew(drive: Drive, place: Any, tmp_path: Path) -> None:
    """An approval is of what was shown."""
    app = app_of(proposal, place)
    first = start(drive, app, tmp_path, "pay 4", "pay 4000", keys=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        paused = drive.invoke(app, Command(resume={first["pay 4"]: "yes"}), ONE)
    assert list(ids(paused)) == ["pay 4000"] and ids(paused)["pay 4000"] != first["pay 4"]
    if place is None:
        assert any("from 'pay 4' to 'pay 4000'" in str(each.message) for each in told)
    assert drive.invoke(app, Command(resume="no"), ONE)["got"] == {"a": "no"}


def test_with_a_key_words_may_change(drive: Drive, place: Any, tmp_path: Path) -> None:
    app = app_of(proposal, place)
    start(drive, app, tmp_path, "pay 4 (12:00)", "pay 4 (12:01)", keys=True)
    assert drive.invoke(app, Command(resume="yes"), ONE)["got"] == {"a": "yes"}


@pytest.mark.parametrize("keys", [True, False])
def test_a_rejected_answer_leaves_the_question_under_its_id(
    drive: Drive, place: Any, tmp_path: Path, keys: bool
) -> None:
    app = app_of(number, place)
    words = ("n?", "n now?", "n at last?") if keys else ("n?",)
    first = start(drive, app, tmp_path, *words, keys=keys)
    with pytest.raises(ValueError, match="valid integer"):
        drive.invoke(app, Command(resume="none"), ONE)
    (question,) = drive.get_state(app, ONE).interrupts
    assert question.id == first["n?"]
    assert drive.invoke(app, Command(resume={question.id: "7"}), ONE)["got"] == {"n": 7}


@pytest.fixture(params=["supersteps", "ready"])
def schedule(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["sync", "exit"])
def durability(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.filterwarnings("ignore:node 'node'. question")
def test_after_an_edit_the_words_count_again_once_they_were_shown(
    drive: Drive, place: Any, tmp_path: Path, schedule: Any, durability: Any
) -> None:
    """What a person edits before approving is approved as edited; what is shown since is approved as shown."""
    app = app_of(proposal, place, schedule=schedule)
    start(drive, app, tmp_path, "pay 4", "pay 40", "pay 4000", keys=False)
    drive.update_state(app, ONE, {"got": {"note": "edited"}})
    assert list(ids(drive.invoke(app, None, ONE, durability=durability))) == ["pay 40"]
    assert list(ids(drive.invoke(app, Command(resume="yes"), ONE, durability=durability))) == ["pay 4000"]
    assert drive.invoke(app, Command(resume="no"), ONE, durability=durability)["got"] == {"a": "no"}


def test_an_answer_given_before_an_edit_stays_that_of_the_words_since(
    drive: Drive, place: Any, tmp_path: Path, schedule: Any, durability: Any
) -> None:
    app = app_of(proposal_and_proof, place, schedule=schedule)
    start(drive, app, tmp_path, "pay 4", "pay 4", "pay 40", keys=False)
    assert list(ids(drive.invoke(app, Command(resume="yes"), ONE))) == ["sure?"]
    drive.update_state(app, ONE, {"got": {"note": "edited"}})
    assert list(ids(drive.invoke(app, None, ONE, durability=durability))) == ["sure?"]
    assert drive.invoke(app, Command(resume="no"), ONE, durability=durability)["got"] == {"a": "yes", "b": "no"}
