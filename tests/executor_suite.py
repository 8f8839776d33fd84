"""One suite for every executor: graphs whose runs must be equal, event by event, to those on the driver's own threads.

A test file gives the fixture `executor` and takes the tests with `from executor_suite import *`. The functions of nodes
stand at the top of this module, so that workers find them by name.
"""

from __future__ import annotations

import operator
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from conftest import Drive
from typing_extensions import TypedDict

from stategraph import (
    START,
    CachePolicy,
    Command,
    InMemoryCache,
    InMemorySaver,
    InMemoryStore,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    TimeoutPolicy,
    entrypoint,
    get_config,
    get_runtime,
    get_store,
    get_stream_writer,
    interrupt,
    task,
)
from stategraph.graph.messages import push_message
from stategraph.pregel import ShippingError, WorkerLostError

MODES = ["values", "updates", "custom", "messages", "tasks"]
AT_ONCE = RetryPolicy(initial_interval=0.0, jitter=False)
LONG = 30.0
"""Seconds after which a test that hangs gives up."""


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]
    texts: list
    messages: Annotated[list, operator.add]


class Oops(Exception):
    """Its arguments are not those of its `__init__`."""

    def __init__(self, code: int, *, place: str = "here") -> None:
        super().__init__(f"oops {code}")
        self.code, self.place = code, place


# -- the functions of nodes -----------------------------------------------------------------------------------


def count(state: State) -> State:
    return {"n": state.get("n", 0) + 1, "log": ["count"]}


def word_count(sent: dict, writer: Any) -> State:
    for word in sent["text"].split():
        writer((sent["text"], word))
    return {"log": [len(sent["text"].split())]}


def total(state: State) -> State:
    return {"n": sum(state["log"])}


def spread(state: State) -> list[Send]:
    return [Send("word_count", {"text": text}) for text in state["texts"]]


def below_three(state: State) -> Literal["count", "__end__"]:
    return "count" if state["n"] < 3 else "__end__"


def note_a(state: State) -> State:
    return {"log": ["a"]}


def note_b(state: State) -> State:
    return {"log": ["b"]}


def note_c(state: State) -> State:
    return {"log": ["c", *state["log"]]}


def goes_on(state: State) -> Command[Literal["word_count", "note_b"]]:
    return Command(update={"log": ["went"]}, goto=[Send("word_count", {"text": "x y"}), "note_b"])


def yields(state: State) -> Any:
    yield {"log": ["first"]}
    yield {"log": ["second"]}


def asks_twice(state: State) -> State:
    first = interrupt("first?")
    second = interrupt({"second": first}, response_schema=int)
    return {"log": [("asked", first, second)]}


def asks_once(state: State) -> State:
    return {"log": [("once", interrupt("once?"))]}


def fails_twice(state: State, runtime: Runtime) -> State:
    assert runtime.execution_info is not None
    attempt = runtime.execution_info.node_attempt
    runtime.stream_writer(("attempt", attempt))
    if attempt < 3:
        raise Oops(attempt, place="there")
    return {"log": [("attempt", attempt)]}


def fails(state: State, runtime: Runtime) -> State:
    if not runtime.context:
        raise Oops(7, place="there")
    return {"log": ["fixed"]}


def takes_over(state: State, error: Any) -> State:
    return {"log": [(error.node, type(error.error).__name__, error.error.code, error.error.place)]}


def speaks(state: State, writer: Any) -> State:
    for n in range(20):
        writer(n)
    push_message({"role": "assistant", "content": "hello", "id": "m1"})
    get_stream_writer()("last")
    return {"log": ["spoke"]}


def looks(state: State, config: Any, runtime: Runtime) -> State:
    info = runtime.execution_info
    assert info is not None and runtime is get_runtime() and config == get_config()
    assert info.task_id == runtime.idempotency_key and info.checkpoint_ns.endswith(info.task_id)
    meta = {k: v for k, v in config["metadata"].items() if k != "stategraph_checkpoint_ns"}
    held = (runtime.context, runtime.previous, runtime.store, info.thread_id, info.run_id, info.node_attempt)
    return {"log": [held, meta, config["configurable"]["mine"], config["tags"]]}


def where(state: State) -> State:
    return {"log": [os.getpid()]}


async def awaits(state: State) -> State:
    return {"log": [(get_config()["run_name"], state["n"])]}


def drains(state: State, runtime: Runtime) -> State:
    assert runtime.control is not None and not runtime.drain_requested
    runtime.control.request_drain("enough")
    return {"log": ["drained"]}


@dataclass
class Record:
    n: int = 0
    log: Annotated[list, operator.add] = None  # type: ignore[assignment]


def of_record(state: Record) -> dict:
    assert isinstance(state, Record)
    return {"n": state.n + 1}


@task
def square(n: int) -> int:
    return n * n


@task
def square_or_fail(n: int) -> int:
    if n == 2:
        raise Oops(2)
    return n * n


# -- the graphs -----------------------------------------------------------------------------------------------


def row(*nodes: Any, schema: Any = State, **options: Any) -> Any:
    graph = StateGraph(schema).add_sequence(list(nodes))
    return graph.add_edge(START, next(iter(graph.nodes))).compile(**options)


def map_reduce(**options: Any) -> Any:
    graph = StateGraph(State).add_node(word_count).add_node(total).add_edge("word_count", "total")
    return graph.add_conditional_edges(START, spread, ["word_count"]).compile(**options)


def loop(**options: Any) -> Any:
    graph = StateGraph(State).add_node(count).add_edge(START, "count")
    return graph.add_conditional_edges("count", below_three).compile(**options)


def joins(**options: Any) -> Any:
    graph = StateGraph(State).add_node(note_a).add_node(note_b).add_node(note_c).add_node(count, defer=True)
    graph.add_edge(START, "note_a").add_edge(START, "note_b").add_edge(["note_a", "note_b"], "note_c")
    return graph.add_edge("note_c", "count").add_edge("note_a", "count").compile(**options)


def commands(**options: Any) -> Any:
    graph = StateGraph(State).add_node(goes_on).add_node(note_b).add_node(word_count)
    return graph.add_edge(START, "goes_on").compile(**options)


def questions(**options: Any) -> Any:
    graph = StateGraph(State).add_node(asks_twice).add_node(asks_once).add_node(note_c)
    graph.add_edge(START, "asks_twice").add_edge(START, "asks_once")
    return graph.add_edge(["asks_twice", "asks_once"], "note_c").compile(**options)


def retries(**options: Any) -> Any:
    graph = StateGraph(State).add_node(fails_twice, retry_policy=AT_ONCE).add_edge(START, "fails_twice")
    return graph.compile(**options)


def handled(**options: Any) -> Any:
    graph = StateGraph(State).add_node(fails, error_handler=takes_over).add_node(note_b)
    return graph.add_edge(START, "fails").add_edge(START, "note_b").compile(**options)


def unhandled(**options: Any) -> Any:
    graph = StateGraph(State).add_node(fails).add_node(note_a)
    return graph.add_edge(START, "fails").add_edge(START, "note_a").compile(**options)


def nested(**options: Any) -> Any:
    """A graph as a node, whose own nodes run where its parent's do."""
    graph = StateGraph(State).add_node("inside", row(count, asks_once)).add_node(note_a).add_node(note_b)
    graph.add_edge(START, "inside").add_edge(START, "note_a").add_edge(["inside", "note_a"], "note_b")
    return graph.compile(**options)


def cached(**options: Any) -> Any:
    graph = StateGraph(State).add_node(count, cache_policy=CachePolicy()).add_edge(START, "count")
    return graph.compile(cache=InMemoryCache(), **options)


def squares(function: Any) -> Callable[..., Any]:
    def build(**options: Any) -> Any:
        @entrypoint(**options)
        def flow(ns: list[int], previous: Any) -> Any:
            return [future.result() for future in [function(n) for n in ns]], previous

        return flow

    return build


def calls(*inputs: Any) -> Callable[[Any], None]:
    def script(play: Any) -> None:
        for input in inputs:
            play.call(input)

    return script


def asked(play: Any) -> None:
    """One of two questions is answered; then the next one as well, wrongly, rightly."""
    play.call({"n": 0})
    play.call(Command(resume="which of the two?"))
    play.answer(f="F")
    play.answer(s="no number")
    play.answer(s="7", o="O")


def mended(play: Any) -> None:
    play.call({"n": 0})
    play.call(None)
    play.call(None, context=True)


def forked(play: Any) -> None:
    """An answer that comes after a change from outside goes to the first question asked."""
    play.call({"n": 0})
    play.drive.update_state(play.app, play.config, {"n": 5})
    play.call(Command(resume="yes"))


ONE = {"n": 0}
STORIES: dict[str, tuple[Callable[..., Any], Callable[[Any], None]]] = {
    "map-reduce": (map_reduce, calls({"texts": ["one two", "three", "four five six"]})),
    "loop": (loop, calls(ONE)),
    "joins": (joins, calls(ONE)),
    "commands": (commands, calls(ONE)),
    "generator": (lambda **o: row(yields, note_c, **o), calls(ONE)),
    "questions": (questions, asked),
    "an answer without a question": (lambda **o: row(asks_once, **o), forked),
    "retries": (retries, calls(ONE)),
    "handled": (handled, calls(ONE)),
    "unhandled": (unhandled, mended),
    "nested": (nested, calls(ONE, Command(resume="yes"))),
    "speaks": (lambda **o: row(speaks, **o), calls(ONE)),
    "cached": (cached, calls(ONE, ONE)),
    "looks": (lambda **o: row(looks, **o), calls(ONE)),
    "drains": (lambda **o: row(drains, note_a, **o), calls(ONE, None)),
    "records": (lambda **o: row(of_record, schema=Record, **o), calls({"n": 1, "log": []})),
    "tasks": (squares(square), calls([1, 2, 3], [4])),
    "tasks that fail": (squares(square_or_fail), calls([1, 2, 3])),
}


def told(chunk: Any) -> str:
    """A chunk without what differs from run to run."""
    mode, data = chunk
    if mode == "tasks" and data.get("error") is not None:
        data = {**data, "error": (type(data["error"]).__name__, str(data["error"]))}
    if mode == "messages":
        data = (data[0], data[1]["stategraph_node"])
    return f"{mode}: {without_ids(data)}"


def without_ids(value: Any) -> str:
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}", "ID", repr(value))


class Play:
    """A story as it is told: chunks (in order, mode by mode: a reader and a task's thread race), errors, history."""

    def __init__(self, drive: Drive, build: Callable[..., Any], **options: Any) -> None:
        self.drive = drive
        self.app = build(checkpointer=InMemorySaver(), **options)
        self.config = {"configurable": {"thread_id": "1", "mine": 1}, "run_id": "run", "tags": ["t"], "max_concurrency": 1}
        self.seen: list[str] = []

    def call(self, input: Any, **options: Any) -> None:
        try:
            chunks = self.drive.stream(self.app, input, self.config, stream_mode=MODES, **options)
            self.seen += sorted((told(chunk) for chunk in chunks), key=lambda text: text.partition(":")[0])
        except BaseException as error:
            notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
            self.seen.append(without_ids((type(error), str(error), vars(error).get("code"), notes)))

    def answer(self, **answers: Any) -> None:
        """Answer pending questions, each known by its first letter."""
        pending = self.drive.get_state(self.app, self.config).interrupts
        of = {str(q.value if isinstance(q.value, str) else "second")[0]: q.id for q in pending}
        self.call(Command(resume={of[letter]: answer for letter, answer in answers.items()}))

    def end(self) -> list[str]:
        for state in self.drive.history(self.app, self.config):
            tasks = [(t.name, t.path, t.result, repr(t.error), t.interrupts) for t in state.tasks]
            self.seen.append(without_ids((state.values, state.next, state.metadata, tasks)))
        return self.seen


def play(drive: Drive, story: str, **options: Any) -> list[str]:
    build, script = STORIES[story]
    told = Play(drive, build, **options)
    script(told)
    return told.end()


# -- equal to the local run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", STORIES)
def test_a_run_is_equal_to_the_local_one_event_by_event(drive: Drive, executor: Any, story: str) -> None:
    here, there = play(drive, story), play(drive, story, executor=executor)
    assert there == here


def test_all_that_a_task_tells_is_told_before_its_end(drive: Drive, executor: Any) -> None:
    for _ in range(3):
        told = drive.stream(map_reduce(executor=executor), {"texts": ["a b c", "d e"]}, stream_mode=["custom", "updates"])
        ends = [i for i, (mode, data) in enumerate(told) if mode == "updates" and "word_count" in data]
        assert len(ends) == 2
        for text, words in (("a b c", 3), ("d e", 2)):
            at = [i for i, (mode, data) in enumerate(told) if mode == "custom" and data[0] == text]
            assert [told[i][1][1] for i in at] == text.split()
            assert any(end > at[-1] and told[end][1]["word_count"] == {"log": [words]} for end in ends)


def test_a_run_says_where_and_a_node_wins(drive: Drive, executor: Any, elsewhere: bool) -> None:
    graph = StateGraph(State).add_node("here", where, executor="threads").add_node("there", where)
    app = graph.add_edge(START, "here").add_edge("here", "there").compile()
    here, there = drive.invoke(app, {}, executor=executor)["log"]
    assert here == os.getpid() and (there != os.getpid()) == elsewhere
    assert drive.invoke(app, {})["log"] == [os.getpid()] * 2
    pinned = StateGraph(State).add_node("there", where, executor=executor).add_edge(START, "there").compile()
    for run in (None, "threads"):
        assert (drive.invoke(pinned, {}, executor=run)["log"] != [os.getpid()]) == elsewhere


# -- what only matters where functions leave the process ----------------------------------------------------------


def test_async_functions_are_awaited_there_in_any_run(drive: Drive, far: Any) -> None:
    assert drive.invoke(row(awaits, executor=far), {"n": 3})["log"] == [("awaits", 3)]


def test_an_error_has_the_traceback_of_its_worker(drive: Drive, far: Any) -> None:
    with pytest.raises(Oops) as caught:
        drive.invoke(row(fails, executor=far), {"n": 0})
    assert (caught.value.code, caught.value.place) == (7, "there")
    assert "executor_suite.py" in str(caught.value.__cause__) and "raise Oops(7" in str(caught.value.__cause__)


def gives_a_lock(state: State) -> Any:
    import threading

    return {"log": [1, {"lock": threading.Lock()}]}


def test_what_cannot_travel_is_named_with_node_and_place(drive: Drive, far: Any) -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(ShippingError, match=r"""'note_c'.*state\["log"\]\[1\]\["lock"\]: cannot pickle '_thread.lock'"""):
        drive.invoke(row(note_c, executor=far), {"log": [0, {"lock": lock}]})
    with pytest.raises(ShippingError, match=r"""'gives_a_lock'.*result\["log"\]\[1\]\["lock"\]: cannot pickle"""):
        drive.invoke(row(gives_a_lock, executor=far), {})
    with pytest.raises(ShippingError, match=r"""'looks'.*config\["configurable"\]\["mine"\]: cannot pickle"""):
        drive.invoke(row(looks, executor=far), {}, {"configurable": {"mine": lock}})
    assert drive.invoke(row(count, executor=far), {}, {"configurable": {"mine": lock}})["n"] == 1, "nobody asks for it"


def puts(state: State, runtime: Runtime) -> None:
    runtime.store.put(("a",), "b", {})


def gets(state: State) -> None:
    get_store().get(("a",), "b")


def runs_a_graph(state: State) -> Any:
    return row(count).invoke(state)


def calls_a_task(state: State) -> State:
    return {"n": square(3).result()}


@pytest.mark.parametrize("node", [puts, gets, runs_a_graph, calls_a_task])
def test_what_stays_with_the_driver_says_so(drive: Drive, far: Any, node: Any) -> None:
    with pytest.raises(RuntimeError, match=rf"'{node.__name__}' runs on an executor.* stays with the driver"):
        drive.invoke(row(node, executor=far, store=InMemoryStore()), {"n": 0})


def kills_its_worker(state: State) -> State:
    path = Path(state["texts"][0])
    with path.open("a") as file:
        file.write("x")
    if path.stat().st_size <= state["n"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"log": ["survived"]}


def deadly(**options: Any) -> Any:
    graph = StateGraph(State).add_node(kills_its_worker).add_node(note_a)
    return graph.add_edge(START, "kills_its_worker").add_edge(START, "note_a").compile(**options)


def test_a_worker_that_dies_costs_a_try(world: Drive, mortal: Any, tmp_path: Path) -> None:
    given = {"texts": [str(tmp_path / "tries")], "n": 2}
    assert world.invoke(deadly(executor=mortal), given)["log"] == ["survived", "a"]
    assert (tmp_path / "tries").read_text() == "xxx"


def test_a_task_that_kills_its_workers_fails_after_three(world: Drive, mortal: Any, tmp_path: Path) -> None:
    app = deadly(executor=mortal, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    with pytest.raises(WorkerLostError, match="'kills_its_worker' lost its worker on .* 3 times") as caught:
        world.invoke(app, {"texts": [str(tmp_path / "tries")], "n": 5}, thread)
    assert caught.value.tries == 3 and len((tmp_path / "tries").read_text()) <= 3
    tasks = world.get_state(app, thread).tasks
    assert [(t.name, t.result) for t in tasks] == [("kills_its_worker", None), ("note_a", {"log": ["a"]})]


def waits_for_a_file(state: State, runtime: Runtime) -> State:
    """Only its first attempt waits, for longer than any test."""
    assert runtime.execution_info is not None
    folder = Path(state["texts"][0])
    if runtime.execution_info.node_attempt == 1:
        (folder / "pid").write_text(str(os.getpid()))
        while not (folder / "go").exists():
            time.sleep(0.01)
        (folder / "late").touch()
    return {"log": ["in time"]}


def limited(seconds: float, **options: Any) -> Any:
    graph = StateGraph(State).add_node(waits_for_a_file, timeout=seconds, retry_policy=AT_ONCE)
    return graph.add_edge(START, "waits_for_a_file").compile(**options)


def test_an_attempt_whose_time_is_up_is_over(world: Drive, far: Any, ends_for_real: bool, tmp_path: Path) -> None:
    assert world.invoke(limited(1.0, executor=far), {"texts": [str(tmp_path)]})["log"] == ["in time"]
    pid = int((tmp_path / "pid").read_text())
    if ends_for_real:
        due = time.monotonic() + LONG
        while Path(f"/proc/{pid}").exists() and time.monotonic() < due:
            time.sleep(0.01)
        assert not Path(f"/proc/{pid}").exists()
    (tmp_path / "go").touch()


def beats(state: State, runtime: Runtime) -> State:
    for _ in range(8):
        time.sleep(0.1)
        runtime.heartbeat()
    return {"log": ["alive"]}


def test_a_sign_of_life_reaches_the_driver(world: Drive, far: Any) -> None:
    graph = StateGraph(State).add_node(beats, timeout=TimeoutPolicy(idle_timeout=0.6)).add_edge(START, "beats")
    assert world.invoke(graph.compile(executor=far), {"n": 0})["log"] == ["alive"]


def reads_much(state: State) -> State:
    return {"n": len(state["texts"][0])}


def test_a_large_value_is_packed_once_a_superstep(drive: Drive, far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stategraph.executors import Executor, executor_of

    class Sum(TypedDict, total=False):
        texts: list
        n: Annotated[int, operator.add]

    shared: list[int] = []
    there: Executor = executor_of(far)
    share = there.share
    monkeypatch.setattr(there, "share", lambda blob: (shared.append(len(blob)), share(blob))[1])
    graph = StateGraph(Sum)
    for name in "abcd":
        graph.add_node(name, reads_much).add_edge(START, name)
    text = "x" * 100_000
    assert drive.invoke(graph.compile(executor=far), {"texts": [text], "n": 0}, {"max_concurrency": 1})["n"] == 400_000
    assert len(shared) == 1, "four tasks read it"


# -- drivers that die -----------------------------------------------------------------------------------------------


def works_or_waits(sent: dict) -> State:
    """The third waits for good, the first time."""
    folder = Path(sent["folder"])
    with (folder / "log").open("a") as file:
        file.write(f"{sent['n']} ")
    if sent["n"] == 3 and (folder / "log").read_text().count("3") == 1:
        while not (folder / "over").exists():
            time.sleep(0.01)
    return {"log": [sent["n"]]}


def six(state: State) -> list[Send]:
    return [Send("works_or_waits", {"n": n, "folder": state["texts"][0]}) for n in range(6)]


def six_tasks(**options: Any) -> Any:
    graph = StateGraph(State).add_node(works_or_waits).add_node(total).add_edge("works_or_waits", "total")
    return graph.add_conditional_edges(START, six, ["works_or_waits"]).compile(**options)


ONE_BY_ONE = {"configurable": {"thread_id": "1"}, "max_concurrency": 1}


def be_a_driver(folder: str) -> None:
    """What a process does that will be killed."""
    from stategraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(f"{folder}/threads.db") as saver:
        app = six_tasks(checkpointer=saver, executor="processes")
        app.invoke({"texts": [folder]}, ONE_BY_ONE)
