"""A call with a run id that is delivered twice at once: one delivery runs the nodes, the other gets a conflict first."""

import threading
from contextlib import ExitStack, contextmanager

import pytest
from faults.campaign import patched
from kit import cluster
from kit.crash_points import STORING
from kit.drive import each_durability, each_schedule
from kit.graphs import CONFIG, Log, chain_of

from stategraph import CheckpointConflictError, Command, interrupt
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver

postgres = cluster.emptied
NAMED = {**CONFIG, "run_id": "r"}


GIVEN = {"log": ["in"]}


def build(saver, ran, schedule, *, asks=False, stops=False):
    def node(state):
        if asks:
            interrupt("?")
        ran.append("node")
        return {"log": ["node"]}

    def last(state):
        ran.append("last")
        return {"log": ["last"]}

    return chain_of(Log, node=node, last=last).compile(
        checkpointer=saver, schedule=schedule, interrupt_before=["node"] if stops else None
    )


@contextmanager
def another(saver, request):
    """A saver of another process on the same threads. Threads in memory belong to one."""
    if isinstance(saver, SqliteSaver):
        path = str(request.getfixturevalue("tmp_path") / "threads.db")
        with SqliteSaver.from_conn_string(path, synchronous="off") as other:
            yield other
    elif isinstance(saver, PostgresSaver):
        with PostgresSaver.from_conn_string(request.getfixturevalue("postgres")) as other:
            yield other
    else:
        yield saver


@contextmanager
def before_the_first_store(saver, call, acall):
    """What has been loaded is out of date: another call runs before anything is stored."""
    due = [1]

    def around(store):
        def run(*given):
            if due and due.pop():
                call()
            return store(*given)

        return run

    def around_async(store):
        async def run(*given):
            if due and due.pop():
                await acall()
            return await store(*given)

        return run

    with ExitStack() as stack:
        for name in STORING:
            stack.enter_context(patched(saver, name, around(getattr(saver, name))))
            stack.enter_context(patched(saver, f"a{name}", around_async(getattr(saver, f"a{name}"))))
        yield


CALLS = {
    # what is delivered, whether the graph asks, and how the thread came to where it stands
    "first input": (GIVEN, False, None),
    "input": (GIVEN, False, [GIVEN, CONFIG]),
    "input taken before": (GIVEN, False, [GIVEN, NAMED]),
    "nothing": (None, False, [GIVEN, CONFIG]),
    "update": (Command(update={"log": ["up"]}), False, [GIVEN, CONFIG]),
    "first command": (Command(update=GIVEN, goto="node"), False, None),
    "answer": (Command(resume="yes"), True, [GIVEN, CONFIG]),
}


@pytest.mark.trial
@pytest.mark.parametrize("call", CALLS)
@each_durability
@each_schedule
def test_of_two_deliveries_that_begin_at_one_checkpoint_one_runs_the_nodes(
    drive, saver, request, call, durability, schedule
):
    given, asks, before = CALLS[call]
    ran = []
    if before is not None:
        drive.invoke(build(saver, ran, schedule, asks=asks, stops=not asks), *before, durability="sync")
        assert ran == []
    with another(saver, request) as second:
        first, other = (build(each, ran, schedule, asks=asks) for each in (saver, second))
        refused = []

        def deliver():
            try:
                other.invoke(given, NAMED, durability=durability)
            except CheckpointConflictError:
                refused.append("second")

        async def adeliver():
            try:
                await other.ainvoke(given, NAMED, durability=durability)
            except CheckpointConflictError:
                refused.append("second")

        with before_the_first_store(saver, deliver, adeliver):
            try:
                drive.invoke(first, given, NAMED, durability=durability)
            except CheckpointConflictError:
                refused.append("first")
        assert ran == ["node", "last"]
        assert len(refused) == 1
        state = drive.get_state(first, CONFIG)
        assert state.next == () and state.values["log"][-2:] == ["node", "last"]
        # Delivered once more, it is recognized.
        if given is not None:
            drive.invoke(first, given, NAMED, durability=durability)
        assert ran == ["node", "last"]


@pytest.mark.trial
@each_durability
@each_schedule
@pytest.mark.parametrize("multitask", [None, "enqueue"])
def test_a_concurrent_delivery_is_refused_or_waits(drive, saver, durability, schedule, multitask):
    ran = []
    entered, release = threading.Event(), threading.Event()

    def node(state):
        ran.append("node")
        entered.set()
        assert release.wait(20)
        return {"log": ["node"]}

    app = chain_of(Log, node=node).compile(saver, schedule=schedule)
    results = []

    def deliver(**options):
        try:
            results.append(drive.invoke(app, GIVEN, NAMED, durability=durability, **options)["log"])
        except CheckpointConflictError:
            results.append("conflict")

    first = threading.Thread(target=deliver)
    first.start()
    assert entered.wait(20)
    if multitask is None:
        deliver()
        release.set()
        first.join()
        assert results == ["conflict", ["in", "node"]]
    else:
        second = threading.Thread(target=deliver, kwargs={"multitask": multitask})
        second.start()
        release.set()
        first.join()
        second.join()
        assert results == [["in", "node"], ["in", "node"]]
    assert ran == ["node"]
