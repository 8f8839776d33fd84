"""Checks with real graphs: what a run leaves behind in this saver is what it leaves behind in
memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checkpoint.base import CheckpointConflictError
from ..checkpoint.memory import InMemorySaver
from ..graph import START, StateGraph
from ..pregel.superstep.interrupts import interrupt
from ..pregel.types import Command
from .conformance import SYNC, check, holds, raises, same
from .graphs import State, answers, appending, asking, looping, shown, thread
from .harness import Desk

Script = Callable[[Desk, Any], list[Any]]
"""What a program does with a thread of a saver, and what it saw meanwhile."""


def as_in_memory(desk: Desk, script: Script) -> None:
    """The script sees with this saver what it sees with `InMemorySaver`."""
    expected = script(desk, InMemorySaver())
    got = script(desk, desk.saver)
    same(got, expected, "what a program sees, compared with InMemorySaver, ")


def history(desk: Desk, app: Any, config: Any = None, **options: Any) -> list[Any]:
    """The snapshots of a thread, newest first."""
    return desk.world.items(app, "get_state_history", config or thread(), **options)


@check("engine")
def a_run_leaves_the_same_history_as_in_memory(desk: Desk) -> None:
    """Fan-out, gathering, a loop: a checkpoint per superstep, the same values of the same types,
    the same order."""

    def script(desk: Desk, saver: Any) -> list[Any]:
        app = looping(saver)
        result = desk.world.call(app, "invoke", {"left": 4, "log": ["start"]}, thread())
        again = desk.world.call(app, "invoke", {"left": 2}, thread())
        return [result, again, shown(history(desk, app)), shown(history(desk, app, limit=3))]

    as_in_memory(desk, script)


@check("engine")
def durabilities_end_in_the_same_state(desk: Desk) -> None:
    """sync, async and exit differ in what is stored when, never in the end."""
    app = looping(desk.saver)
    for durability in ("sync", "async", "exit"):
        config = thread(durability)
        desk.world.call(app, "invoke", {"left": 3, "log": []}, config, durability=durability)
    desk.reopen()
    app = looping(desk.saver)
    states = [desk.world.call(app, "get_state", thread(each)) for each in ("sync", "async", "exit")]
    for each, durability in zip(states, ("sync", "async", "exit"), strict=True):
        same(each.values, states[0].values, f"state after a run with durability={durability!r}")
        same(each.next, (), f"next after a run with durability={durability!r}")
    counts = [len(history(desk, app, thread(each))) for each in ("sync", "async", "exit")]
    same(counts, [8, 8, 1], "number of checkpoints with sync, async, exit")


@check("engine")
def a_paused_run_is_answered_after_the_saver_was_opened_again(desk: Desk) -> None:
    """People answer days later, in another process: questions, finished siblings and the nested
    graph are all there."""
    noted: list[Any] = []

    def script(desk: Desk, saver: Any, reopen: bool) -> list[Any]:
        seen: list[Any] = []
        app = asking(saver, lambda *words: noted.append(words))
        desk.world.call(app, "invoke", {"log": []}, thread())
        for turn in range(3):
            if reopen:
                desk.reopen()
                app = asking(desk.saver, lambda *words: noted.append(words))
            state = desk.world.call(app, "get_state", thread(), subgraphs=True)
            seen.append(
                (state.next, sorted(repr(each.value) for each in state.interrupts), state.values)
            )
            if state.next:
                desk.world.call(app, "invoke", answers(app, (turn,), desk.world), thread())
        return [seen, shown(history(desk, app)), sorted(noted, key=repr)]

    expected = script(desk, InMemorySaver(), False)
    noted.clear()
    same(
        script(desk, desk.saver, True),
        expected,
        "what a program sees, compared with InMemorySaver, ",
    )


@check("engine")
def a_resume_runs_only_what_failed(desk: Desk) -> None:
    """What finished beside a task that failed was recorded, and is not done twice."""
    ran: list[str] = []
    broken = [True]

    def node(name: str) -> Callable[[State], dict[str, Any]]:
        def run(state: State) -> dict[str, Any]:
            ran.append(name)
            if name == "b" and broken[0]:
                raise ValueError("out of order", (1,))
            return {"log": [(name,)]}

        return run

    def build() -> Any:
        graph = StateGraph(State)
        for name in "abc":
            graph.add_node(name, node(name))
            graph.add_edge(START, name)
        return graph.compile(checkpointer=desk.saver)

    raises(
        ValueError,
        "a run whose node fails",
        desk.world.call,
        build(),
        "invoke",
        {"log": []},
        thread(),
    )
    desk.reopen()
    app = build()
    state = desk.world.call(app, "get_state", thread())
    told = {task.name: str(task.error) for task in state.tasks if task.error}
    holds(
        "b" in told and "out of order" in told["b"],
        f"the error of task 'b' is kept: expected it, got {told}",
    )
    before, broken[0] = sorted(ran), False
    ran.clear()
    result = desk.world.call(app, "invoke", None, thread())
    same(sorted(before + ran), ["a", "b", "b", "c"], "which nodes ran in both calls")
    same(result["log"], [("a",), ("b",), ("c",)], "log, in path order")


@check("engine")
def forks_and_edits_never_touch_the_past(desk: Desk) -> None:
    """Going back, changing something and going on makes a new branch; the old one can still be
    read, step by step."""

    def script(desk: Desk, saver: Any) -> list[Any]:
        app = looping(saver)
        desk.world.call(app, "invoke", {"left": 3, "log": []}, thread())
        old = history(desk, app)
        kept = [each.values for each in old]
        past = next(each for each in old if each.metadata["step"] == 2)
        fork = desk.world.call(
            app, "update_state", past.config, {"log": ["edited"], "left": 1}, as_node="gather"
        )
        edited = desk.world.call(app, "get_state", fork).values
        result = desk.world.call(app, "invoke", None, fork)
        replayed = desk.world.call(app, "invoke", None, old[-3].config)
        again = [desk.world.call(app, "get_state", each.config).values for each in old]
        same(again, kept, "values of the old branch after the fork")
        return [edited, result, replayed, shown(history(desk, app))]

    as_in_memory(desk, script)


@check("engine")
def nested_graphs_keep_their_own_threads(desk: Desk) -> None:
    """A nested graph's checkpoints lie in a namespace of their own, found by the parent's and gone
    with its thread."""
    app = asking(desk.saver)
    desk.world.call(app, "invoke", {"log": []}, thread())
    places = {
        found.config["configurable"]["checkpoint_ns"].split(":")[0] for found in desk.listed("t")
    }
    same(places, {"", "nested"}, "namespaces of the thread, without their task ids")
    state = desk.world.call(app, "get_state", thread(), subgraphs=True)
    inner = next(task.state for task in state.tasks if task.name == "nested")
    same(inner.values["log"], ["before"], "log of the nested graph while it waits")
    desk.call("delete_thread", "t")
    same(desk.ids(None), [], "list(None) after delete_thread")


@check("engine")
def threads_in_turn_do_not_mix(desk: Desk) -> None:
    """One saver serves many threads; each continues its own state."""
    app = appending(desk.saver, "x")
    for turn in range(3):
        for name in ("a", "b", "a b"):
            desk.world.call(app, "invoke", {"left": turn + len(name), "log": [name]}, thread(name))
    for name in ("a", "b", "a b"):
        log = desk.world.call(app, "get_state", thread(name)).values["log"]
        expected = [each for turn in range(3) for each in [name, *["x"] * (turn + len(name))]]
        same(log, expected, f"log of thread {name!r}")


@check("engine", "commit", worlds=(SYNC,))
def a_run_overtaken_by_another_is_told(desk: Desk) -> None:
    """Two programs work on one thread: the slower one gets an error that says so; nothing is lost
    or mixed silently."""
    app = appending(desk.saver, "x")
    slow = app.stream({"left": 3, "log": ["slow"]}, thread(), stream_mode="values")
    next(slow)
    quick = app.invoke({"left": 1, "log": ["quick"]}, thread())
    raises(CheckpointConflictError, "a run that was overtaken", list, slow)
    same(app.get_state(thread()).values, quick, "state after both")


@check("engine")
def a_call_that_is_delivered_twice_is_one_run(desk: Desk) -> None:
    """Queues deliver again what they are not sure of; the same `run_id` is the same run, also after
    others went on."""
    config = {**thread(), "run_id": "delivery-1"}
    app = appending(desk.saver, "x")
    first = desk.world.call(app, "invoke", {"left": 2, "log": ["one"]}, config)
    desk.reopen()
    app = appending(desk.saver, "x")
    again = desk.world.call(app, "invoke", {"left": 2, "log": ["one"]}, config)
    same(again, first, "what the second delivery returns")
    result = desk.world.call(
        app, "invoke", {"left": 1, "log": ["two"]}, {**thread(), "run_id": "delivery-2"}
    )
    same(result["log"], ["one", "x", "x", "two", "x"], "log after a call that is another run")


@check("engine")
def commands_and_answers_of_any_value_are_kept(desk: Desk) -> None:
    """None, False and {} are answers; a tuple stays one."""
    answers_given: list[Any] = [None, False, {}, (1, (2,)), ""]
    for number, answer in enumerate(answers_given):
        name = f"{number}"
        graph = StateGraph(State)
        graph.add_node("ask", _ask)
        graph.add_edge(START, "ask")
        app = graph.compile(checkpointer=desk.saver)
        desk.world.call(app, "invoke", {"log": []}, thread(name))
        result = desk.world.call(app, "invoke", Command(resume=answer), thread(name))
        same(result["log"], [("answer", answer)], f"log after the answer {answer!r}")


def _ask(state: State) -> dict[str, Any]:
    return {"log": [("answer", interrupt("?"))]}
