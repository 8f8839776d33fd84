"""Going on from a checkpoint inside a nested graph: each graph on the way down goes on from the
checkpoint it had then.

Part of the loop: generators that ask for effects and perform none. The graphs around that
checkpoint are forked. What leads down to it is noted with each fork, so that a call which takes it
up, after a crash for example, goes there too.
"""

from __future__ import annotations

from collections.abc import Generator, Set
from dataclasses import replace
from typing import Any, TypeVar

from ...checkpoint.base import (
    OF_TASK,
    REWOUND,
    UNDER_WAY,
    BaseCheckpointSaver,
    CheckpointTuple,
    address,
    coordinates,
)
from ..errors import (
    DrainSignal,
    GraphBubbleUp,
    GraphDrained,
    InvalidUpdateError,
    ParentCommand,
    ThreadUndoingError,
    Undo,
    UndoneSignal,
)
from ..names import (
    INSIDE,
    child_ns,
    depth_of,
    graph_keys,
    has_task_ids,
    last_level,
    numbered_ns,
    split_number,
    without_ids,
)
from ..program.program import Program
from ..program.results import is_graph
from ..running import RUNNING
from ..task.interrupts import asking
from ..task.task import Task
from ..types import Command, RunnableConfig
from .effects import Effect, Effects, Load, Save
from .ledger import Ledger
from .replay import ReplayPoint, ReplayRoute
from .run import Run, run_of
from .snapshots import key_of, plan_to_look


def stopped_here(run: Run, found: CheckpointTuple | None) -> bool:
    """Whether the task that runs a nested graph now has made this checkpoint, when it ran
    before."""
    assert run.parent is not None
    if found is None:
        return False
    if has_task_ids(last_level(run.ns)[0]):
        return True  # nobody else stores there
    made_by: Any = found.metadata.get(OF_TASK)
    if made_by:
        return bool(made_by[-1] == run.parent.id)
    # Of an earlier version.
    around = run_of(run.parent)
    parents: dict[str, str] = found.metadata.get("parents", {})
    return parents.get(around.thread.ns) == around.machine.checkpoint_id


def load_under_way(load: Load) -> Generator[Effect, None, None]:
    """Find what the tasks need that are under way in the checkpoint that was found, if there are
    any: where they have started, and what is recorded there."""
    if load.found is not None and UNDER_WAY in load.found.metadata:
        from .origins import load_origins

        yield from load_origins(load)


# -- the way down ----------------------------------------------------------------------------------


def load_around(run: Run) -> Generator[Effect, None, Load]:
    """The checkpoint of the whole graph that enclosed the nested one which the caller has named.

    Raises:
        ValueError: the call brings new input, or it is not known what encloses that checkpoint.
    """
    thread, given = run.thread, run.settings.given
    assert thread.nested is not None and thread.thread_id is not None
    ns, checkpoint_id = thread.nested
    # Its input comes from the node around it, so there is nobody who could give it another.
    if given is not None and not isinstance(given, Command):
        raise ValueError(
            f"checkpoint {checkpoint_id!r} belongs to a nested graph, which takes no new input: "
            "go on from it with None or a Command, or give the input to a checkpoint of the whole "
            "graph"
        )
    load = Load(
        at=address(thread.thread_id, ns, checkpoint_id),
        saver=saver_of(run.program, thread.saver, ns),
    )
    yield load
    assert load.found is not None  # the driver has refused an unknown one
    yield from load_under_way(load)
    parents = load.found.metadata.get("parents", {})
    if "" not in parents:
        raise ValueError(
            f"checkpoint {checkpoint_id!r} of a nested graph has no checkpoint of the whole graph: "
            "a graph around it stores none (checkpointer=False). Go on from a checkpoint of the "
            "whole graph, or let that graph store its own"
        )
    # Outer graphs before inner ones: each run on the way down takes the first and hands on the
    # rest.
    chain = {**parents, ns: checkpoint_id}
    records = Ledger(load.found.pending_writes or ())
    stages = [(each, chain[each]) for each in sorted(chain, key=depth_of) if each]
    asked = tuple(question.id for record in records.values() for question in record.interrupts)
    run.replay.follow(ReplayRoute(stages, asked=asked))
    run.replay.begin_rewind()
    around = Load(at=address(thread.thread_id, "", parents[""]), may_be_gone=True)
    yield around
    if around.found is None:  # with durability "exit" only one is stored in which its task goes on
        around = Load(continues=parents[""])
        yield around
    if around.found is None:
        raise ValueError(
            f"checkpoint {checkpoint_id!r} of a nested graph was made under a checkpoint of the "
            "whole graph that is not stored: it was deleted, or the call had durability=\"exit\" "
            "and went on. Go on from a checkpoint of the whole graph"
        )
    return around


def find_route(run: Run) -> None:
    """Find out which task of the open superstep leads to the nested checkpoint."""
    found, route = run.position.found, run.replay.route
    assert found is not None
    if route is None:
        noted: Any = found.metadata.get(INSIDE)
        if noted is not None:
            run.replay.follow(
                ReplayRoute([(ns, id) for ns, id in noted["stages"]], noted["task"], stored=True)
            )
        return
    # This is the graph that was named; there is nothing further down.
    if not route.stages:
        return
    ns = ns_of(found.config)
    tasks = run.ledger.with_handlers(plan_to_look(run.machine, ns))
    place, _ = split_number(route.stages[0][0])
    stable = not has_task_ids(place)
    led = [
        task
        for task in tasks
        if child_ns(ns, task.name, task.id, stable=stable, key=key_of(task)) == place
    ]
    open_ = run.ledger.find_waiting(tasks) if run.position.at_head else {}
    waits = not open_.keys().isdisjoint(route.asked)
    run.replay.follow(replace(route, task=led[0].path_text if led else None, waits=waits))


def noted_route(run: Run) -> dict[str, Any] | None:
    """The route as the metadata of a fork tell it; None if it leads nowhere."""
    route = run.replay.route
    if route is None or not route.stages:
        return None
    return {"stages": [[*stage] for stage in route.stages], "task": route.task}


def load_seed(run: Run) -> Generator[Effect, None, Load | None]:
    """The checkpoint from which this nested graph goes on, if it lies on the route; else None.

    A task may run several graphs, numbered in the order of their calls. One that it had run before
    the one into which the route leads has ended: it goes on from its end.
    """
    parent, thread = run.parent, run.thread
    assert parent is not None and thread.thread_id is not None
    around = run_of(parent)
    route = around.replay.route
    if route is None or not _leads_here(route, run, parent):
        return None
    ns, checkpoint_id = route.stages[0]
    place, wanted = split_number(ns)
    number = split_number(thread.ns)[1]
    is_wanted = number == wanted
    if not is_wanted or route.stored:  # this graph may have gone on since
        own = Load()
        yield own
        if stopped_here(run, own.found):
            around.replay.follow(None if is_wanted else route)
            return own
    if is_wanted:
        around.replay.follow(None)
        run.replay.follow(ReplayRoute(route.stages[1:], asked=route.asked))
        load = Load(at=address(thread.thread_id, ns, checkpoint_id))
    else:
        before = address(thread.thread_id, ns, checkpoint_id)
        ns = numbered_ns(place, number)
        load = Load(before, address(thread.thread_id, ns))
    yield load
    if load.found is None:
        return None
    if ns != thread.ns:
        load.head = None  # nothing is stored yet where it goes on
    run.replay.seed(ns != thread.ns or not stopped_here(run, load.found))
    run.replay.rewind_to(without_ids(thread.ns), rewind_point(run, load.found))
    run.replay.begin_rewind().enter(thread.ns)
    return load


def _leads_here(route: ReplayRoute, run: Run, parent: Task) -> bool:
    """Whether a route leads into this graph, or into one that the same task runs after it."""
    # The route counts in the superstep that it was made for. Later tasks of that node start over.
    if not route.stages or run_of(parent).machine.step != route.step:
        return False
    place, wanted = split_number(route.stages[0][0])
    here, number = split_number(run.thread.ns)
    return (
        route.task in (None, parent.path_text)
        and without_ids(here) == without_ids(place)
        and number <= wanted
    )


# -- histories of their own ------------------------------------------------------------------------


def rewind_point(run: Run, found: CheckpointTuple) -> ReplayPoint:
    """The checkpoint done anew, and its checkpointer; of one made by an update or a fork, the one
    it was made from."""
    saver = run.thread.saver
    assert saver is not None
    thread_id, ns, _ = coordinates(found.config)
    made_on = find_made_on(found)
    return (found.config if made_on is None else address(thread_id, ns, made_on)), saver


def find_made_on(found: CheckpointTuple) -> str | None:
    """The checkpoint on which an edit or a fork was made; of several on top of each other, the one
    below them. None if this is none, or has undone nothing."""
    if found.metadata.get("source") not in ("update", "fork"):
        return None
    noted: Any = found.metadata.get(REWOUND)
    if noted is None and found.parent_config is not None:
        noted = found.parent_config["configurable"]["checkpoint_id"]
    return noted or None


def load_rewound(run: Run) -> Generator[Effect, None, Load]:
    """What a run starts from while a checkpoint around it is done anew: its newest checkpoint. A
    graph with a history of its own, when it is entered for the first time: its newest before that
    one, without what the tasks that are done anew have stored."""
    rewind, ns = run.replay.rewind, run.thread.ns
    load = Load()
    yield load
    # Namespaces with task ids are new on a branch, as the tasks are: nothing has to go back there.
    if rewind is None or not ns or has_task_ids(ns) or ns in rewind.entered:
        return load
    rewind.enter(ns)
    if stopped_here(run, load.found):  # its task goes on, as after an edit
        return load
    point = rewind.find_point(ns, run.thread.saver)
    if point is not None and (load.found is None or not _was_made_by(load.found, rewind.anew)):
        config, saver = point
        load = Load(config, saver=saver, branch=rewind.points.get(""))
        yield load
    while load.found is not None and _was_made_by(load.found, rewind.anew):
        # They may have begun before that checkpoint. On a branch, what is older in this history
        # may not be their past; their parents are.
        parent = load.found.parent_config
        before = Load(at=parent, may_be_gone=True)
        if parent is not None:
            yield before
        load.found = before.found
    return load


def _was_made_by(found: CheckpointTuple, tasks: Set[str]) -> bool:
    made_by: Any = found.metadata.get(OF_TASK, ())
    return not tasks.isdisjoint(made_by)


def save_kept(run: Run) -> Effects:
    """With durability "exit", store the checkpoints of nested graphs, where the run around them
    stands at a stored one itself. If it does not, and has none to store, what its tasks have done
    is not stored, so neither is this."""
    inside = run.take_kept()
    if inside and run.machine.checkpoint_id == run.position.saved_id:
        yield Save(None, inside=inside)


# -- namespaces ------------------------------------------------------------------------------------


def ns_of(config: RunnableConfig) -> str:
    """The namespace that a config names; "" for the whole graph's."""
    ns: str = config["configurable"].get("checkpoint_ns", "")
    return ns


Saver = TypeVar("Saver", BaseCheckpointSaver, BaseCheckpointSaver | None)


def saver_of(program: Program, saver: Saver, ns: str) -> Saver | BaseCheckpointSaver:
    """Where the graph of a namespace keeps its checkpoints: with the checkpointer of its own, or of
    the nearest around it."""
    nearest: Saver | BaseCheckpointSaver = saver
    for name in graph_keys(ns):
        child = program.nested.get(name)
        if child is None:
            return nearest  # it has not run in this process, so nothing is known of it
        if isinstance(child.checkpointer, BaseCheckpointSaver):
            nearest = child.checkpointer
        program = child.program
    return nearest


# -- back to the graph around ----------------------------------------------------------------------


def is_graph_node(task: Any) -> bool:
    """Whether a task's node is a graph itself, not a function that calls one."""
    return task is not None and is_graph(task.node.source)


def pause_parent(run: Run) -> None:
    """Let the task that ran this graph pause, if the run has paused."""
    questions = run.output.questions
    if questions is not None and run.parent is not None:
        order = (1, split_number(run.ns)[1])
        signal = asking(run.parent, questions, order, run.output.wake_at)
        signal.by_hand = not run.output.only_asked
        raise signal


def may_undo(run: Run, error: BaseException) -> bool:
    """Whether a call that an error has ended undoes what it has done, or continues to."""
    if run.parent is not None:
        return False
    fails = run.settings.on_failure == "undo" and isinstance(error, Exception)
    return fails or isinstance(error, (Undo, ThreadUndoingError))


def leaving(run: Run, signal: GraphBubbleUp) -> BaseException:
    """What a signal that ends a call is to its caller: itself in a node, whose run it ends as well;
    else an Exception."""
    if isinstance(signal, ParentCommand) and run.parent is None:
        return InvalidUpdateError(
            f"{run.program.name}: node {signal.node!r} returned Command(graph=Command.PARENT), but "
            "there is no parent graph"
        )
    if RUNNING.get() is not None or isinstance(signal, UndoneSignal):
        return signal
    if isinstance(signal, DrainSignal):
        return GraphDrained(signal.reason)
    error = InvalidUpdateError(
        f"{run.program.name}: a signal that no graph knows ended the call, {signal!r}. Raise an "
        "Exception to fail"
    )
    error.__cause__ = signal
    return error
