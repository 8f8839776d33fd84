"""Going on from a checkpoint inside a nested graph: each graph on the way down goes on from the checkpoint it had then.

Part of the loop: generators that ask for effects and perform none. The graphs around that checkpoint are forked. What
leads down to it is noted with each fork, so that a call which takes it up, after a crash for example, goes there too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...channels.base import MISSING
from ...checkpoint.base import CONTINUES, BaseCheckpointSaver, CheckpointTuple, address
from ..errors import InvalidUpdateError, ParentCommand
from ..names import (
    INSIDE,
    child_ns,
    depth_of,
    enclosing_names,
    graph_keys,
    has_task_ids,
    numbered_ns,
    split_number,
    without_ids,
)
from ..program.program import Program
from ..superstep.interrupts import asking
from ..superstep.machine import Machine
from ..types import Command, RunnableConfig
from .effects import Effect, Load
from .run import Rewind, Run, Way, run_of
from .snapshots import Place, read_stored, waiting_questions, with_handlers


def outermost(run: Run) -> Run:
    """The run of the whole graph."""
    while run.parent is not None:
        run = run_of(run.parent)
    return run


def answers(run: Run) -> bool:
    """Whether the call brings answers."""
    return isinstance(run.input, Command) and run.input.resume is not MISSING


def is_time_travel(run: Run) -> bool:
    """Whether the config names a checkpoint and what follows it is to be done anew. An answer to a question that waits
    is for the checkpoint that asks it."""
    addressed = (run.config.get("configurable") or {}).get("checkpoint_id") is not None
    if not addressed or run.ns:
        return False
    return not answers(run) or (run.way is not None and not run.way.stored and not run.way.live)


def stopped_here(run: Run, found: CheckpointTuple | None) -> bool:
    """Whether a nested graph has made this checkpoint under the one from which the run around it goes on now."""
    assert run.parent is not None
    if found is None:
        return False
    around = run_of(run.parent)
    parents: dict[str, str] = found.metadata.get("parents", {})
    made_in = parents.get(around.ns)
    if made_in == around.machine.checkpoint_id:
        return True
    here = around.found is not None and around.found.checkpoint["id"] == around.machine.checkpoint_id
    return here and made_in in around.found.metadata.get(CONTINUES, ())  # the thread around it was edited since


# -- the way down ---------------------------------------------------------------------------------------------------


def start_inside(run: Run) -> Generator[Effect, None, None]:
    """Start from the checkpoint of the whole graph that enclosed the nested one which the config names.

    Raises:
        ValueError: the call brings new input, or it is not known what encloses that checkpoint.
    """
    assert run.way is not None and run.thread_id is not None
    ((ns, checkpoint_id),) = run.way.stages
    if run.input is not None and not isinstance(run.input, Command):
        raise ValueError(
            f"{checkpoint_id!r} is a checkpoint of a nested graph and takes no new "
            "input: go on from it with None or a Command, or give the input to a checkpoint of the whole graph"
        )
    load = Load(at=address(run.thread_id, ns, checkpoint_id), saver=saver_of(run.program, run.saver, ns))
    yield load
    assert load.found is not None  # the driver has refused an unknown one
    parents = load.found.metadata.get("parents", {})
    if "" not in parents:
        raise ValueError(
            f"nested checkpoint {checkpoint_id!r} does not say in which checkpoint of the whole graph it is nested: a "
            "graph around it keeps none (checkpointer=False)"
        )
    chain = {**parents, ns: checkpoint_id}
    run.way.stages = [(each, chain[each]) for each in sorted(chain, key=depth_of) if each]
    stored = read_stored(load.found.pending_writes or ())
    run.way.asked = tuple(question.id for known in stored.values() for question in known.interrupts)
    run.rewound = Rewind()
    configurable = {**run.config["configurable"], "checkpoint_id": parents[""]}
    del configurable["checkpoint_ns"]
    run.config = {**run.config, "configurable": configurable}


def find_way(run: Run, machine: Machine) -> None:
    """Find out which task of the open superstep leads to the nested checkpoint."""
    found: CheckpointTuple = run.found
    if run.way is None:
        noted: Any = found.metadata.get(INSIDE)
        if noted is not None:
            run.way = Way([(ns, id) for ns, id in noted["stages"]], noted["task"], stored=True)
        return
    if not run.way.stages:
        return
    tasks = machine.plan(coerce=False)
    then: Any = Place(run.program, machine, ns_of(found.config))
    for task in tasks:
        task.run = then
    tasks = with_handlers(tasks, run.stored)
    place, _ = split_number(run.way.stages[0][0])
    stable = not has_task_ids(place)
    led = [task for task in tasks if child_ns(then.ns, task.name, task.id, stable=stable) == place]
    run.way.task = led[0].path_text if led else None
    if run.way.asked:
        open_ = waiting_questions(tasks, run.stored)
        run.way.live = run.saved_id == run.head and any(question in open_ for question in run.way.asked)


@contextmanager
def noted_way(run: Run) -> Iterator[None]:
    """Note the way in the metadata of the checkpoint that is cut meanwhile."""
    way = run.way
    if way is None or not way.stages:
        yield
        return
    run.metadata[INSIDE] = {"stages": [[*stage] for stage in way.stages], "task": way.task}
    try:
        yield
    finally:
        del run.metadata[INSIDE]


def take_seed(run: Run) -> Generator[Effect, None, CheckpointTuple | None]:
    """The checkpoint from which this nested graph goes on, if it lies on the way; else None.

    A graph that the same task had run before the one that leads further has ended: it goes on from its end.
    """
    assert run.parent is not None and run.thread_id is not None
    around = run_of(run.parent)
    way = around.way
    if way is None or not way.stages or around.machine.step != way.step or way.task not in (None, run.parent.path_text):
        return None
    ns, checkpoint_id = way.stages[0]
    (place, wanted), (here, number) = split_number(ns), split_number(run.ns)
    if without_ids(here) != without_ids(place) or number > wanted:
        return None
    last = number == wanted
    if not last or way.stored:  # this graph may have gone on since
        own = Load()
        yield own
        if stopped_here(run, own.found):
            run.head = own.head
            around.way = None if last else way
            return own.found
    if last:
        around.way = None
        run.way = Way(way.stages[1:], asked=way.asked)
        load = Load(at=address(run.thread_id, ns, checkpoint_id))
    else:
        ns = numbered_ns(place, number)
        load = Load(address(run.thread_id, way.stages[0][0], checkpoint_id), address(run.thread_id, ns))
    yield load
    if load.found is None:
        return None
    run.head = load.head if ns == run.ns else None
    run.seeded = ns != run.ns or not stopped_here(run, load.found)
    run.rewound = run.rewound or Rewind()
    run.rewound.points[without_ids(run.ns)] = rewind_point(run, load.found)
    run.rewound.entered.add(run.ns)
    return load.found


# -- histories of their own -----------------------------------------------------------------------------------------


def rewind_point(run: Run, found: CheckpointTuple) -> tuple[RunnableConfig, BaseCheckpointSaver]:
    """The checkpoint done anew, and its saver; of one made by an update or a fork, the one it was made from."""
    assert run.saver is not None
    made = found.metadata.get("source") in ("update", "fork")
    return (found.parent_config if made else None) or found.config, run.saver


def starts_from(run: Run) -> Load:
    """What the run starts from if nothing else is named: its newest checkpoint. A nested graph with a history of its
    own, when a checkpoint around it is done anew and it is entered for the first time: its newest before that one."""
    if run.rewound is None or not run.ns or has_task_ids(run.ns) or run.ns in run.rewound.entered:
        return Load()
    run.rewound.entered.add(run.ns)
    around, points = without_ids(run.ns), run.rewound.points
    while around:
        around = enclosing_names(around)
        if around in points:
            point, saver = points[around]
            if saver is not run.saver:
                point, saver = points.get("", (point, saver))
            return Load(point, saver=saver)
    return Load()


# -- namespaces -----------------------------------------------------------------------------------------------------


def ns_of(config: RunnableConfig) -> str:
    """The namespace that a config names; "" for the whole graph's."""
    ns: str = config["configurable"].get("checkpoint_ns", "")
    return ns


Kept = TypeVar("Kept", BaseCheckpointSaver, BaseCheckpointSaver | None)


def saver_of(program: Program, saver: Kept, ns: str) -> Kept | BaseCheckpointSaver:
    """Where the graph of a namespace keeps its checkpoints: with the saver of its own, or of the nearest around it."""
    nearest: Kept | BaseCheckpointSaver = saver
    for name in graph_keys(ns):
        child = program.nested.get(name)
        if child is None:
            return nearest  # it has not run in this process, so nothing is known of it
        if isinstance(child.checkpointer, BaseCheckpointSaver):
            nearest = child.checkpointer
        program = child.program
    return nearest


# -- back to the graph around -----------------------------------------------------------------------


def pause_parent(run: Run) -> None:
    """Let the task that ran this graph pause, if the run has paused."""
    if run.paused is not None and run.parent is not None:
        signal = asking(run.parent, run.paused, (1, split_number(run.ns)[1]))
        signal.by_hand = not run.only_asked
        raise signal


def in_parent(run: Run, signal: ParentCommand) -> BaseException:
    """What a command for the parent graph becomes there: itself, or a mistake if there is none."""
    if run.parent is not None:
        return signal
    return InvalidUpdateError(
        f"{run.program.name}: a node returned Command(graph=Command.PARENT), but there is no "
        "parent graph"
    )
