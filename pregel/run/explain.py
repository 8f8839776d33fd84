"""Why did my node not run? The answer, from a program and a stored checkpoint; nothing is run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ...channels.base import BaseChannel
from ...channels.named_barrier import NamedBarrierValue, NamedBarrierValueAfterFinish
from ...checkpoint.base import CheckpointTuple
from ..program.program import Node, Program
from ..superstep.machine import Machine
from ..types import TO_NODE
from .snapshots import View, view


class NodeStatus(NamedTuple):
    """What a node is up to.

    Attributes:
        state: "next" if it would run now, "waiting" if it has been asked for in part, "idle" if not at all.
        why: a sentence.
        missing: the nodes that an open join still waits for.
    """

    state: Literal["next", "waiting", "idle"]
    why: str
    missing: tuple[str, ...] = ()


def explain(program: Program, found: CheckpointTuple | None) -> dict[str, NodeStatus]:
    """The status of every node that is not hidden, at this checkpoint."""
    names = [name for name, node in program.nodes.items() if not node.hidden]
    if found is None:
        return {name: NodeStatus("idle", "the thread has not started") for name in names}
    seen = view(program, found, live=True)
    return {name: _status(program.nodes[name], seen) for name in names}


def _status(node: Node, seen: View) -> NodeStatus:
    tasks = [t for t in seen.tasks if t.name == node.name]
    if tasks:
        return _of_tasks(node, seen, [t.id for t in tasks])
    missing: list[str] = []
    sentences = []
    waiting = False
    for trigger in node.triggers:
        channel = seen.machine.channels[trigger]
        asked, sentence, absent = _of_trigger(trigger, channel, seen.machine, node)
        waiting = waiting or asked
        missing.extend(absent)
        sentences.append(sentence)
    if not node.triggers:
        return NodeStatus("idle", "nothing triggers it: it takes over when the node it handles fails")
    return NodeStatus("waiting" if waiting else "idle", "; ".join(sentences), tuple(missing))


def _of_tasks(node: Node, seen: View, ids: list[str]) -> NodeStatus:
    """It is part of the open superstep."""
    stored = [seen.stored.get(task_id) for task_id in ids]
    asked = [s for s in stored if s is not None and not s.finished and s.interrupts]
    if asked:
        return NodeStatus("next", f"paused: it asked {asked[0].interrupts[0].value!r} and waits for the answer")
    failed = [s for s in stored if s is not None and not s.finished and s.error is not None]
    if failed:
        return NodeStatus("next", f"it failed with {failed[0].error!r} and runs again on resume")
    if all(s is not None and s.finished for s in stored):
        if all(known is not None and known.finished for known in (seen.stored.get(t.id) for t in seen.tasks)):
            return NodeStatus("idle", "it has run; what it wrote is part of the next checkpoint")
        return NodeStatus("waiting", "it has finished; its superstep waits for the others")
    return NodeStatus("next", "it runs in the next superstep")


def _of_trigger(
    name: str, channel: BaseChannel[Any, Any, Any], machine: Machine, node: Node
) -> tuple[bool, str, list[str]]:
    """Whether this trigger has been touched, what it waits for, and the nodes a join still misses."""
    if isinstance(channel, (NamedBarrierValue, NamedBarrierValueAfterFinish)):
        absent = sorted(str(n) for n in channel.names - channel.seen)
        if absent:
            come = ", ".join(sorted(map(str, channel.seen))) or "nobody"
            sentence = f"the join {name!r} still waits for {', '.join(absent)} ({come} has come)"
            return bool(channel.seen), sentence, absent
        return True, f"the join {name!r} is complete and waits until nothing else can run", []
    version = machine.versions.get(name)
    led = name.startswith(TO_NODE)
    if version is None:
        return False, "nothing has led to it yet" if led else f"its trigger {name!r} was never written", []
    if not channel.is_available():
        return node.defer, "nothing leads to it now" if led else f"its trigger {name!r} holds nothing now", []
    said = "since something last led to it" if led else f"since its trigger {name!r} last changed"
    return False, f"it has run {said}", []
