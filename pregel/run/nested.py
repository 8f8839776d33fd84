"""Going on from a checkpoint inside a nested graph: each graph on the way down goes on from the
checkpoint it had then.

Part of the loop: generators that ask for effects and perform none. The graphs around that
checkpoint are forked. What leads down to it is noted with each fork, so that a call which takes it
up, after a crash for example, goes there too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeVar

from ...checkpoint.base import (
    CONTINUES,
    UNDER_WAY,
    BaseCheckpointSaver,
    CheckpointTuple,
    address,
    coordinates,
)
from ..errors import InvalidUpdateError, ParentCommand
from ..names import (
    INSIDE,
    child_ns,
    depth_of,
    enclosing_names,
    graph_keys,
    has_task_ids,
    last_level,
    numbered_ns,
    split_number,
    without_ids,
)
from ..program.program import Program
from ..superstep.interrupts import asking
from ..superstep.machine import Machine
from ..superstep.task import Task
from ..types import Command, RunnableConfig
from .effects import Effect, Load
from .replay import ReplayPoint, ReplayRoute
from .run import Run, run_of
from .snapshots import key_of, plan_to_look
from .task_records import read_records, waiting_questions, with_handlers


def stopped_here(run: Run, found: CheckpointTuple | None) -> bool:
    """Whether a nested graph has made this checkpoint under the one from which the run around it
    goes on now."""
    assert run.parent is not None
    if found is None:
        return False
    around = run_of(run.parent)
    parents: dict[str, str] = found.metadata.get("parents", {})
    made_in = parents.get(around.thread.ns)
    if made_in == around.machine.checkpoint_id:
        return True
    start, resumed_at = around.position.found, around.position.resumed_at
    if resumed_at is not None and (has_task_ids(last_level(run.ns)[0]) or made_in == resumed_at):
        # The task has been under way since its origin. Supersteps may have run it since, from a
        # later checkpoint: that is the head now, unless the head has moved on. Where its id is part
        # of the name, nobody else has stored here.
        return True
    # The run around has gone on since: what this graph stored under an earlier checkpoint of it is
    # of an earlier task.
    if start is None or start.checkpoint["id"] != around.machine.checkpoint_id:
        return False
    edited: Any = start.metadata.get(CONTINUES, ())  # the thread around it was edited since
    return made_in in edited


# -- the way down ----------------------------------------------------------------------------------


def load_around(run: Run) -> Generator[Effect, None, RunnableConfig]:
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
    records = read_records(load.found.pending_writes or ())
    stages = [(each, chain[each]) for each in sorted(chain, key=depth_of) if each]
    asked = tuple(question.id for record in records.values() for question in record.interrupts)
    run.replay.follow(ReplayRoute(stages, asked=asked))
    run.replay.begin_rewind()
    return address(thread.thread_id, "", parents[""])


def find_route(run: Run, machine: Machine) -> None:
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
    tasks = with_handlers(plan_to_look(machine, ns), run.position.records)
    place, _ = split_number(route.stages[0][0])
    stable = not has_task_ids(place)
    led = [
        task
        for task in tasks
        if child_ns(ns, task.name, task.id, stable=stable, key=key_of(task)) == place
    ]
    open_ = waiting_questions(tasks, run.position.records) if run.position.at_head else {}
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
    point, origins = rewind_point(run, load.found), find_origin_points(run, load.found)
    run.replay.rewind_to(without_ids(thread.ns), point, origins)
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
    """The checkpoint done anew, and its saver; of one made by an update or a fork, the one it was
    made from."""
    saver = run.thread.saver
    assert saver is not None
    made = found.metadata.get("source") in ("update", "fork")
    return (found.parent_config if made else None) or found.config, saver


def find_origin_points(run: Run, found: CheckpointTuple) -> dict[str, ReplayPoint]:
    """`Rewind.origins`: of the tasks under way in a checkpoint that is done anew."""
    if UNDER_WAY not in found.metadata:
        return {}
    from ..superstep.under_way import find_origin, find_under_way

    saver, checkpoint = run.thread.saver, found.checkpoint
    assert saver is not None
    thread_id, ns, _ = coordinates(found.config)
    points: dict[str, ReplayPoint] = {}
    for slot, known in find_under_way(checkpoint).items():
        key = None if known["send"] is None else known["send"].key
        place = without_ids(child_ns(ns, known["node"], known["id"], stable=True, key=key))
        points.setdefault(place, (address(thread_id, ns, find_origin(checkpoint, slot)), saver))
    return points


def starts_from(run: Run) -> Load:
    """What the run starts from if nothing else is named: its newest checkpoint. A nested graph with
    a history of its own, when a checkpoint around it is done anew and it is entered for the first
    time: its newest before that one."""
    rewind, ns = run.replay.rewind, run.thread.ns
    # Namespaces with task ids are new on a branch, as the tasks are: nothing has to go back there.
    if rewind is None or not ns or has_task_ids(ns) or ns in rewind.entered:
        return Load()
    rewind.enter(ns)
    around = without_ids(ns)
    while around:
        origin, around = rewind.origins.get(around), enclosing_names(around)
        found = origin or rewind.points.get(around)
        if found is not None:
            point, saver = found
            if saver is not run.thread.saver:
                point, saver = rewind.points.get("", (point, saver))
            return Load(point, saver=saver)
    return Load()


# -- namespaces ------------------------------------------------------------------------------------


def ns_of(config: RunnableConfig) -> str:
    """The namespace that a config names; "" for the whole graph's."""
    ns: str = config["configurable"].get("checkpoint_ns", "")
    return ns


Saver = TypeVar("Saver", BaseCheckpointSaver, BaseCheckpointSaver | None)


def saver_of(program: Program, saver: Saver, ns: str) -> Saver | BaseCheckpointSaver:
    """Where the graph of a namespace keeps its checkpoints: with the saver of its own, or of the
    nearest around it."""
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
    return task is not None and getattr(task.node.source, "is_stategraph", False) is True


def pause_parent(run: Run) -> None:
    """Let the task that ran this graph pause, if the run has paused."""
    questions = run.output.questions
    if questions is not None and run.parent is not None:
        order = (1, split_number(run.ns)[1])
        signal = asking(run.parent, questions, order, run.output.wake_at)
        signal.by_hand = not run.output.only_asked
        raise signal


def in_parent(run: Run, signal: ParentCommand) -> BaseException:
    """What a command for the parent graph becomes there: itself, or a mistake if there is none."""
    if run.parent is not None:
        return signal
    return InvalidUpdateError(
        f"{run.program.name}: a node returned Command(graph=Command.PARENT), but there is no "
        "parent graph"
    )
