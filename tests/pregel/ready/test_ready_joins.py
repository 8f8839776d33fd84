"""schedule="ready": joins that open for any, for a number, or for all sources that can still arrive."""

import pytest
from kit import flow_graphs
from kit.flow_cases import CASES
from kit.graphs import EMPTY, Log, graph_of
from kit.pausing_graphs import asks, fails
from kit.ready_graphs import (
    ends_by,
    ends_in,
    ends_together,
    ready,
    sends,
    show,
    times,
)

from stategraph import START, Command, InMemorySaver, Overwrite, Send, interrupt

CONFIG = {"configurable": {"thread_id": "t"}, "recursion_limit": 40}
pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")

OTHERWISE = {
    8: "x / y / a / d(a)",  # a router without ends holds back every node
    24: "w / w / w / d(w)",
    26: "b / d(b) / a",  # a question holds back nobody
}


@pytest.mark.parametrize("number", CASES)
def test_joins_open_as_in_supersteps_if_tasks_end_together(number):
    case = CASES[number]
    app = ready(flow_graphs.build(case.graph, case.script))
    with ends_together():
        app.invoke(EMPTY, CONFIG)
        if app.get_state(CONFIG).interrupts:
            app.invoke(Command(resume="yes"), CONFIG)
    assert show([*app.get_state_history(CONFIG)]) == OTHERWISE.get(number, case.steps)


ONE_BY_ONE = {
    "the first is enough": ("S>a S>b [a,b]any>d d>z", {}, "adzb", "a / d(a) / z / b"),
    "what comes before the start is of the wave": ("S>a S>b S>c r:c=d [a,b]any>d", {}, "abcd", "a / b / c / d(a+b)"),
    "what starts before the start is so, too": (
        "S>a S>x>b S>c r:c=d [a,b]any>d", {}, "axbcd", "a / x / b / c / d(a+b)",
    ),
    "two of three": ("S>a S>b S>c [a,b,c]2>d", {}, "cbda", "c / b / d(b+c) / a"),
    "late while it runs, and all it leads to": (
        "S>a S>x>y>b [a,b]any>d r:d=a", {"d": ["a", []]}, "adxyb", "a / d(a) / a / d(a) / x / y / b",
    ),
    "a late one, and a new one of the same node": (
        "S>a S>b [a,b]any>d r:d=b", {"d": ["b", "b", []]}, "adb", "a / d(a) / b / b / d(b) / b / d(b)",
    ),
    "whoever can still come": ("r:S=a|x|c x>b [a,b,c]reachable>d", {"__start__": [["a", "x"]]}, "axb", "a / x / b / d(a+b)"),
    "it chose otherwise": ("S>a S>x r:x=b|e [a,b]reachable>d", {"x": ["e"]}, "axde", "a / x / d(a) / e"),
    "the ways part": ("S>a S>x r:x=b|e>f [a,b]reachable>d", {"x": ["b"]}, "axbd", "a / x / b / d(a+b)"),
    "one join leads to another": (
        "[a,b]reachable>d [d,e,c]reachable>f S>a S>b1>b S>e", {}, ["e", "a", "b1", "b"], "e / a / b1 / b / d(a+b) / f(d+e)",
    ),
    "each turn is a wave": (
        "S>s r:s=a|b [a,b]reachable>s", {"s": [["a", "b"], ["a"], []]}, "bas", "s / b / a / s(a+b) / a / s(a)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("graph", "script", "order", "steps"), ONE_BY_ONE.values(), ids=ONE_BY_ONE)
@pytest.mark.parametrize("saved", [True, False])
def test_one_end_after_the_other(drive, graph, script, order, steps, saved):
    app = flow_graphs.build(graph, script).compile(InMemorySaver() if saved else None, schedule="ready")
    with ends_in(*order):
        result = drive.invoke(app, EMPTY, CONFIG)
    assert [text for _, text in result["log"]] == steps.replace(" / ", " ").split()
    if saved:
        assert show(drive.history(app, CONFIG)) == steps


def test_what_is_late_is_late_after_an_edit(drive):
    app = flow_graphs.build("S>a S>b S>c [a,b]any>d", {"b": ["ask", None], "c": ["ask", None]})
    app = ready(app)
    drive.invoke(app, EMPTY, CONFIG)
    drive.update_state(app, CONFIG, {"log": [(9, "c")]}, "c")
    state = drive.get_state(app, CONFIG)
    assert state.next == ("b",)
    result = drive.invoke(app, Command(resume="yes"), CONFIG)
    assert [text for _, text in result["log"]] == ["a", "d(a)", "c", "b"]


@pytest.mark.parametrize("wait", ["any", 1])
@pytest.mark.parametrize("sent", [False, True])
def test_an_update_as_the_target_that_has_failed_ends_its_wave(drive, wait, sent, local_saver):
    """What runs beside it comes too late for the join, as it does if the target succeeds."""
    builder = graph_of(Log, "S>b q>a", q=asks("q"), d=fails("d", 1)).add_edge(["a", "b"], "d", wait=wait)
    builder.add_conditional_edges(START, lambda state: [Send("q", EMPTY)] if sent else "q", ["q"])
    thread = drive.on(builder.compile(local_saver, schedule="ready"))
    with pytest.raises(ValueError, match="d failed"), ends_in("b", "q", "d"):
        thread.invoke(EMPTY)
    thread.update({"log": ["mended"]}, "d")
    assert thread.resume("yes")["log"] == ["b", "mended", ("q", "yes"), "a"]


# -- joins that wait for all ---------------------------------------------------------------------------------------

THREE = {"p": sends("w", 1, 2, 3)}
GATHERED = {
    "several tasks of a source": ("S>p S>db r:p=w [w,db]>d", THREE, ["p", "db", "d"], "p / db / w1 / w2 / w3 / d"),
    "what leads to a source": ("S>p S>x>y>w S>db r:p=w [w,db]>d", {"p": sends("w", 1)}, ["p", "w1", "db", "d"], "p / w1 / db / x / y / w / d"),
    "an edge beside the open join": ("S>p S>db>d r:p=w [w,db]>d", THREE, ["p", "w1", "db", "d"], "p / w1 / db / w2 / w3 / d"),
    "what the sources lead back to is the next turn": (
        "S>s r:s=a|b|E a>s b>s [a,b]>d", {"s": times(3, "a", "b", node="s")}, ["a", "b", "d", "s"],
        "s / a / b / d / s / a / b / d / s",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("graph", "routes", "order", "steps"), GATHERED.values(), ids=GATHERED)
def test_a_join_for_all_waits_for_what_still_leads_to_its_sources(drive, graph, routes, order, steps):
    def rank(task):
        number = task.send.arg["n"] if task.send else ""
        return order.index(each) if (each := f"{task.name}{number}") in order else len(order)

    app = ready(graph, routes)
    for turn in (1, 2):  # nothing that has arrived is left over for the second one
        with ends_by(rank):
            result = drive.invoke(app, {"log": Overwrite([])}, CONFIG)
        assert result["log"] == steps.replace(" / ", " ").split(), turn


def test_a_join_for_all_waits_for_a_source_that_asks(drive):
    def ask(state):
        return {"log": [interrupt("?") if state["n"] == 2 else "w"]}

    thread = drive.on(ready("S>p S>db r:p=w [w,db]>d", THREE, {"w": ask}), CONFIG)
    with ends_in("p", "db", "d"):
        thread.invoke(EMPTY)
        state = thread.state
        assert (state.values["log"], state.next) == (["p", "db", "w", "w"], ("w", "d"))
        assert thread.app.explain(CONFIG)["d"].why == "it was triggered and waits for what leads to it: w"
        assert thread.resume("yes")["log"][-2:] == ["yes", "d"]
