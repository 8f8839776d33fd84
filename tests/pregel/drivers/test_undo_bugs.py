"""Bugs planted into undoing: the rules of `test_undo` notice each of them."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby

import pytest
from kit.crash_points import Killed, killing
from kit.graphs import CONFIG, EMPTY, Log, chain_of
from kit.planted import is_misfit

import stategraph.pregel.drivers.undoing as undoing
from stategraph import Command, InMemorySaver, effect
from stategraph.pregel.drivers.undoing import _Plan
from stategraph.pregel.undo import UndoNote

pytestmark = pytest.mark.trial
DONE = []


@effect("irreversible")
def cancel(item: str, result: str):
    DONE.append(f"cancel {item}")


@effect("irreversible", undo=cancel)
def buy(item: str) -> str:
    DONE.append(f"buy {item}")
    return item


def noted_too_late(patch):
    """Nothing says before the call how it is undone."""
    patch.setattr(UndoNote, "save", lambda self, *given, **more: None)


def first_in_first_undone(patch):
    """In the order in which it was done."""
    as_input = _Plan.as_input

    def turned(self, reason):
        found = as_input(self, reason)
        return {**found, "effects": found["effects"][::-1]}

    patch.setattr(_Plan, "as_input", turned)


def nested_left_out(patch):
    """What graphs inside have done stays."""
    patch.setattr(_Plan, "add_nested", lambda self, found: None)


def undone_once_more(patch):
    """What was undone before on another branch counts as done."""
    walk = _Plan._walk

    def forgetful(self, tip, target):
        self._before = set()
        return walk(self, tip, target)

    patch.setattr(_Plan, "_walk", forgetful)


def unknown_not_asked(patch):
    """A call whose outcome is unknown is taken as not made."""

    def find(entry, call):
        return entry["result"]
        yield

    patch.setattr(undoing, "_find_result", find)


def calls_without_records(patch):
    """Undo functions are called as they are, so a crash repeats them."""
    patch.setattr(undoing, "_call", lambda function, arguments: getattr(function, "__wrapped__", function)(**arguments))


def goes_back_nowhere(patch):
    """The state stays what it was."""

    def end(run, signal):
        signal.plan["clears"] = False
        return end_(run, signal)

    end_ = undoing._end
    patch.setattr(undoing, "_end", end)


BUGS = [
    noted_too_late, first_in_first_undone, nested_left_out, undone_once_more, unknown_not_asked, calls_without_records,
    goes_back_nowhere,
]  # fmt: skip


def answer(question):
    call = question.get("call") or question["effect"]
    item = call.partition("'")[2][0]
    done = f"cancel {item}" if call.startswith("cancel") else f"buy {item}"
    if done in DONE:
        return {"decision": "done", "result": item}
    return {"decision": "again" if "call" in question else "not done"}


def buying(item):
    return lambda state: {"log": [buy(item)]}


def one_run(at, *, stores_first):
    """A death at this storing call, then an undo; and one more of the branch that was undone."""
    DONE.clear()
    saver = InMemorySaver()
    inner = chain_of(Log, x=buying("x")).compile()
    app = chain_of(Log, a=buying("a"), inner=inner, b=buying("b")).compile(saver)
    with killing(saver, at, stores_first=stores_first) as made, suppress(Killed):
        app.invoke(EMPTY, CONFIG)
        app.undo(CONFIG)
    if saver.get_tuple(CONFIG) is None:
        return len(made)
    state = app.undo(CONFIG)
    while state.interrupts:
        app.invoke(Command(resume=answer(state.interrupts[0].value)), CONFIG)
        state = app.get_state(CONFIG)
    tip = next(each for each in app.get_state_history(CONFIG) if not each.metadata.keys() & {"stategraph_undone", "stategraph_undoing"})
    app.undo(tip.config)
    assert (state.values, state.next) == ({"log": []}, ())
    done = [each[4:] for each in DONE if each.startswith("buy")]
    undone = [each[7:] for each in DONE if each.startswith("cancel")]
    assert undone == done[::-1] and all(len([*same]) == 1 for _, same in groupby(sorted(done))), DONE
    return len(made)


def faults():
    for stores_first in (False, True):
        for at in range(1, 60):
            try:
                made = one_run(at, stores_first=stores_first)
            except Exception as error:
                if not is_misfit(error):
                    yield f"{at}: {error!r:.200}"
                made = at
            if made < at:
                break


def test_without_a_bug_nothing_is_noticed():
    assert [*faults()] == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_noticed(bug, monkeypatch):
    bug(monkeypatch)
    assert next(faults(), None)
