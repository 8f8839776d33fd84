"""Checks with real graphs: what a run leaves behind in this checkpointer is what it leaves behind
in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checkpoint.base import CheckpointConflictError
from ..checkpoint.memory import InMemorySaver
from ..graph import START, StateGraph
from ..pregel.task.interrupts import interrupt
from ..pregel.types import Command
from .asserts import SYNC, assert_raises, assert_same, assert_that
from .conformance import register_check
from .graphs import LogState, answers, appending, asking, looping, shown, thread
from .harness import Harness

Script = Callable[[Any], list[Any]]
"""What a program does with a thread of a checkpointer, and what it sees of it."""


def as_in_memory(harness: Harness, script: Script) -> None:
    """The script sees with this checkpointer what it sees with `InMemorySaver`."""
    expected, got = script(InMemorySaver()), script(harness.saver)
    assert_same(got, expected, "what a program sees, compared with InMemorySaver, ")


def history(harness: Harness, app: Any, config: Any = None, **options: Any) -> list[Any]:
    """The snapshots of a thread, newest first."""
    return harness.mode.items(app, "get_state_history", config or thread(), **options)


@register_check("engine")
def a_run_leaves_the_same_history_as_in_memory(harness: Harness) -> None:
    """Fan-out, gathering, a loop: a checkpoint per superstep, the same values of the same types,
    the same order."""

    def script(saver: Any) -> list[Any]:
        app = looping(saver)
        result = harness.invoke(app, {"left": 4, "log": ["start"]})
        again = harness.invoke(app, {"left": 2})
        return [result, again, shown(history(harness, app)), shown(history(harness, app, limit=3))]

    as_in_memory(harness, script)


@register_check("engine")
def durabilities_end_in_the_same_state(harness: Harness) -> None:
    """sync, async and exit differ in what is stored when, never in the end."""
    app = looping(harness.saver)
    for durability in ("sync", "async", "exit"):
        config = thread(durability)
        harness.invoke(app, {"left": 3, "log": []}, config, durability=durability)
    harness.reopen()
    app = looping(harness.saver)
    states = [
        harness.state(app, thread(each)) for each in ("sync", "async", "exit")
    ]
    for each, durability in zip(states, ("sync", "async", "exit"), strict=True):
        assert_same(
            each.values, states[0].values, f"state after a run with durability={durability!r}"
        )
        assert_same(each.next, (), f"next after a run with durability={durability!r}")
    counts = [len(history(harness, app, thread(each))) for each in ("sync", "async", "exit")]
    assert_same(counts, [8, 8, 1], "number of checkpoints with sync, async, exit")


@register_check("engine")
def a_paused_run_is_answered_after_the_saver_was_opened_again(harness: Harness) -> None:
    """People answer days later, in another process: questions, finished siblings and the nested
    graph are all there."""

    def script(saver: Any) -> list[Any]:
        noted: list[Any] = []
        seen: list[Any] = []
        app = asking(saver, lambda *words: noted.append(words))
        harness.invoke(app, {"log": []})
        is_checked = saver is harness.saver
        for turn in range(3):
            if is_checked:
                harness.reopen()
                app = asking(harness.saver, lambda *words: noted.append(words))
            state = harness.state(app, subgraphs=True)
            seen.append(
                (state.next, sorted(repr(each.value) for each in state.interrupts), state.values)
            )
            if state.next:
                harness.invoke(app, answers(app, (turn,), harness.mode), thread())
        return [seen, shown(history(harness, app)), sorted(noted, key=repr)]

    as_in_memory(harness, script)


@register_check("engine")
def a_resume_runs_only_what_failed(harness: Harness) -> None:
    """What finished beside a task that failed was recorded, and is not done twice."""
    ran: list[str] = []
    broken = [True]

    def node(name: str) -> Callable[[LogState], dict[str, Any]]:
        def run(state: LogState) -> dict[str, Any]:
            ran.append(name)
            if name == "b" and broken[0]:
                raise ValueError("out of order", (1,))
            return {"log": [(name,)]}

        return run

    def build() -> Any:
        graph = StateGraph(LogState)
        for name in "abc":
            graph.add_node(name, node(name))
            graph.add_edge(START, name)
        return graph.compile(checkpointer=harness.saver)

    assert_raises(ValueError, harness.mode.call, build(), "invoke", {"log": []}, thread())
    harness.reopen()
    app = build()
    state = harness.state(app)
    told = {task.name: str(task.error) for task in state.tasks if task.error}
    assert_that(
        "b" in told and "out of order" in told["b"],
        f"the error of task 'b' is kept: expected it, got {told}",
    )
    before, broken[0] = sorted(ran), False
    ran.clear()
    result = harness.invoke(app, None)
    assert_same(sorted(before + ran), ["a", "b", "b", "c"], "which nodes ran in both calls")
    assert_same(result["log"], [("a",), ("b",), ("c",)], "log, in path order")


@register_check("engine")
def forks_and_edits_never_touch_the_past(harness: Harness) -> None:
    """Going back, changing something and going on makes a new branch; the old one can still be
    read, step by step."""

    def script(saver: Any) -> list[Any]:
        app = looping(saver)
        harness.invoke(app, {"left": 3, "log": []})
        old = history(harness, app)
        kept = [each.values for each in old]
        past = next(each for each in old if each.metadata["step"] == 2)
        fork = harness.mode.call(
            app, "update_state", past.config, {"log": ["edited"], "left": 1}, as_node="gather"
        )
        edited = harness.state(app, fork).values
        result = harness.invoke(app, None, fork)
        replayed = harness.invoke(app, None, old[-3].config)
        again = [harness.state(app, each.config).values for each in old]
        assert_same(again, kept, "values of the old branch after the fork")
        return [edited, result, replayed, shown(history(harness, app))]

    as_in_memory(harness, script)


@register_check("engine")
def nested_graphs_keep_their_own_threads(harness: Harness) -> None:
    """A nested graph's checkpoints lie in a namespace of their own, found by the parent's and gone
    with its thread."""
    app = asking(harness.saver)
    harness.invoke(app, {"log": []})
    places = {
        found.config["configurable"]["checkpoint_ns"].split(":")[0] for found in harness.listed("t")
    }
    assert_same(places, {"", "nested"}, "namespaces of the thread, without their task ids")
    state = harness.state(app, subgraphs=True)
    inner = next(task.state for task in state.tasks if task.name == "nested")
    assert_same(inner.values["log"], ["before"], "log of the nested graph while it waits")
    harness.call("delete_thread", "t")
    harness.shows(everything=[])


@register_check("engine")
def threads_in_turn_do_not_mix(harness: Harness) -> None:
    """One checkpointer serves many threads; each continues its own state."""
    app = appending(harness.saver, "x")
    for turn in range(3):
        for name in ("a", "b", "a b"):
            harness.invoke(app, {"left": turn + len(name), "log": [name]}, thread(name))
    for name in ("a", "b", "a b"):
        log = harness.state(app, thread(name)).values["log"]
        expected = [each for turn in range(3) for each in [name, *["x"] * (turn + len(name))]]
        assert_same(log, expected, f"log of thread {name!r}")


@register_check("engine", "commit", modes=(SYNC,))
def a_run_overtaken_by_another_is_told(harness: Harness) -> None:
    """Two programs work on one thread: the slower one gets an error that says so; nothing is lost
    or mixed silently."""
    app = appending(harness.saver, "x")
    slow = app.stream({"left": 3, "log": ["slow"]}, thread(), stream_mode="values")
    next(slow)
    quick = app.invoke({"left": 1, "log": ["quick"]}, thread())
    assert_raises(CheckpointConflictError, list, slow)
    assert_same(app.get_state(thread()).values, quick, "state after both")


@register_check("engine")
def a_call_that_is_delivered_twice_is_one_run(harness: Harness) -> None:
    """Queues deliver again what they are not sure of; the same `run_id` is the same run, also after
    others went on."""
    config = {**thread(), "run_id": "delivery-1"}
    app = appending(harness.saver, "x")
    first = harness.invoke(app, {"left": 2, "log": ["one"]}, config)
    harness.reopen()
    app = appending(harness.saver, "x")
    again = harness.invoke(app, {"left": 2, "log": ["one"]}, config)
    assert_same(again, first, "what the second delivery returns")
    result = harness.invoke(app, {"left": 1, "log": ["two"]}, {**thread(), "run_id": "delivery-2"})
    assert_same(
        result["log"], ["one", "x", "x", "two", "x"], "log after a call that is another run"
    )


@register_check("engine")
def commands_and_answers_of_any_value_are_kept(harness: Harness) -> None:
    """None, False and {} are answers; a tuple stays one."""
    answers_given: list[Any] = [None, False, {}, (1, (2,)), ""]
    for number, answer in enumerate(answers_given):
        name = f"{number}"
        graph = StateGraph(LogState)
        graph.add_node("ask", _ask)
        graph.add_edge(START, "ask")
        app = graph.compile(checkpointer=harness.saver)
        harness.invoke(app, {"log": []}, thread(name))
        result = harness.invoke(app, Command(resume=answer), thread(name))
        assert_same(result["log"], [("answer", answer)], f"log after the answer {answer!r}")


def _ask(state: LogState) -> dict[str, Any]:
    return {"log": [("answer", interrupt("?"))]}
