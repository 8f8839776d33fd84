"""Every name that the engine reserves and every namespace: made and parsed here, spelled nowhere
else.

The texts are part of what is stored and of what users see, so they never change. Rooms below define
those that they need themselves: `checkpoint` the writes that describe a task, how a trigger's name
begins and what stands before a task's id; `channels` the mark of an `Overwrite`. Pure functions. A
test over the syntax tree holds that no other file spells a name or takes a namespace apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

from ..channels.aggregate import Overwrite
from ..checkpoint.base import ERROR, ERROR_SOURCE, INTERRUPT, NO_WRITES, RESUME, RETURN, SLEEP
from ..checkpoint.records import KEY_MARK, SLOT, TRIGGER
from ..checkpoint.records import NS_END as NS_END  # for who splits the ids of drawings, too
from ..checkpoint.records import has_task_ids as has_task_ids  # retention asks it, too

# -- nodes -----------------------------------------------------------------------------------------

START: Final = "__start__"
"""The name of the virtual node that takes the input."""
END: Final = "__end__"
"""The name to route to when a path is over."""
EndName: TypeAlias = Literal["__end__"]
"""Its type, for the annotations of routers."""
INPUT: Final = "__input__"
"""`as_node=` of an update that is taken as input; as such, the first part of its path."""
COPY: Final = "__copy__"
"""`as_node=` of an update that clones the checkpoint."""
PARENT: Final[Literal["__parent__"]] = "__parent__"
"""`Command(graph=...)`: the graph around this one."""
TAG_HIDDEN: Final = "stategraph:hidden"
"""A node with this tag is left out of the streams and of the "*" breakpoint."""

UNDO: Final = "__undo__"
"""The node that undoes what a thread has done; in the record of an effect, what undoes it."""
SPENT: Final = "__spent__"
"""The channel of a graph with a budget: what its thread has spent, by unit."""

_HANDLER: Final = "__error_handler__"
DEFAULT_HANDLER: Final = "__default_error_handler__"
"""The node that handles the errors of all nodes without a handler of their own."""


def handler_name(node: str) -> str:
    """The node that handles the errors of one other node.

    >>> handler_name("plan")
    '__error_handler__plan'
    """
    return _HANDLER + node


def is_handler(node: str) -> bool:
    """Whether a node has the name of an error handler."""
    return node.startswith((_HANDLER, DEFAULT_HANDLER))


def handled_node(handler: str) -> str | None:
    """The node whose errors a handler takes; None of any other node, and of the default handler.

    >>> handled_node("__error_handler__plan"), handled_node("plan")
    ('plan', None)
    """
    if not handler.startswith(_HANDLER):
        return None
    return handler.removeprefix(_HANDLER)


# -- the paths of tasks ----------------------------------------------------------------------------

PULL: Final = "__pregel_pull"
"""The first part of the path of a task that a channel triggered."""
PUSH: Final = "__pregel_push"
"""The first part of the path of a task that a `Send` or a `@task` call made."""
HANDLER_PATH: Final = "node_error_handler"
"""In the path of an error handler's task, after the path of the task that failed."""


def path_text(path: tuple[Any, ...]) -> str:
    """A path as one string that sorts like the path; stored beside a task's writes.

    >>> path_text(("__pregel_push", 3, False))
    '~__pregel_push, 0000000003, 0000000000'
    """
    return "~" + ", ".join(map(_part_text, path))


_CALL: Final = re.compile(rf"(~{PUSH}, (~.*), \d{{10,}}, 0{{9}}1), (.*)", re.DOTALL)


def call_text(path: tuple[Any, ...], name: str) -> str:
    """The path of a `@task` call as text, with the name of the function."""
    return f"{path_text(path)}, {name}"


def split_call(text: str) -> tuple[str, str, str] | None:
    """What `call_text` gave, as (path of the call, path of its caller, name); None of any other
    path.

    >>> split_call(call_text((PUSH, (PULL, "plan"), 0, True), "look"))[1:]
    ('~__pregel_pull, plan', 'look')
    """
    found = _CALL.fullmatch(text)
    return None if found is None else (found[1], found[2], found[3])


def _part_text(part: Any) -> str:
    if isinstance(part, tuple):
        return path_text(part)
    # With leading zeros, numbers sort as text.
    return f"{part:010d}" if isinstance(part, int) else str(part)


# -- channels --------------------------------------------------------------------------------------

TASKS: Final = "__pregel_tasks"
"""The channel of the Sends."""
ROOT: Final = "__root__"
"""The only channel of a state that is not made of keys."""
PREVIOUS: Final = "__previous__"
"""The channel of what the last run of an entrypoint saved."""


def under_way_name(slot: int) -> str:
    """The channel that says which task is under way, by the number of its slot.

    >>> under_way_name(0)
    '__under_way__:0'
    """
    return f"{SLOT}{slot}"


def under_way_number(channel: str) -> int:
    """The number of the slot of a channel of `under_way_name`.

    >>> under_way_number("__under_way__:12")
    12
    """
    return int(channel.removeprefix(SLOT))


def is_under_way(channel: str) -> bool:
    """Whether a channel says which task is under way."""
    return channel.startswith(SLOT)


_JOIN: Final = "join:"
_JOIN_END: Final = ":"
KIND_SEP: Final = "|"
"""In the name of a join's channel, after what it waits for and between its sources; no node has it
in its name."""


def trigger_name(node: str) -> str:
    """The channel that edges, routers and commands write to make a StateGraph's node run.

    >>> trigger_name("plan")
    'branch:to:plan'
    """
    return TRIGGER + node


def triggered_node(channel: str) -> str | None:
    """The node that a channel of `trigger_name` triggers; None of any other channel.

    >>> triggered_node("branch:to:plan"), triggered_node("plan")
    ('plan', None)
    """
    if not channel.startswith(TRIGGER):
        return None
    return channel.removeprefix(TRIGGER)


def join_name(sources: Iterable[str], separator: str, target: str) -> str:
    """The channel in which a StateGraph's join gathers which of its sources have finished.

    >>> join_name(("a", "b"), "+", "c")
    'join:a+b:c'
    """
    return f"{_JOIN}{separator.join(sources)}{_JOIN_END}{target}"


def split_join(channel: str) -> tuple[str, str] | None:
    """The sources, with what separates them, and the target of a channel of `join_name`; None of
    any other.

    >>> split_join("join:a+b:c")
    ('a+b', 'c')
    """
    if not channel.startswith(_JOIN):
        return None
    sources, _, target = channel.removeprefix(_JOIN).rpartition(_JOIN_END)
    return sources, target


def split_kind(sources: str) -> tuple[str, tuple[str, ...]]:
    """What a join waits for and its sources, if the sources in its channel's name tell both; else
    two empty ones.

    >>> split_kind("2|a|b"), split_kind("a+b")
    (('2', ('a', 'b')), ('', ()))
    """
    kind, *names = sources.split(KIND_SEP)
    return (kind, tuple(names)) if names else ("", ())


ROUTING: Final = (TRIGGER, _JOIN)
"""How the names of the channels begin that a StateGraph has beside its keys."""


def is_routing(channel: str) -> bool:
    """Whether a channel has a name that a StateGraph gives its triggers and joins."""
    return channel.startswith(ROUTING)


# -- keys of what is stored, and of what a reader gets ---------------------------------------------

BEFORE_FIRST: Final = "__before_first__"
"""As a `checkpoint_id`: the thread as it was when nothing was stored."""
RAN: Final = "__ran__"
"""In what a node has seen of its triggers: the version of the state when it ran last, where those
do not tell it. Under TASKS stands the same of its Sends."""
GRAPH: Final = "__graph__"
"""In `versions_seen`: the fingerprint of the graph that made the checkpoint."""
BY_COMMAND: Final = "stategraph_command"
"""In a checkpoint's metadata: a call with a `run_id` made it that brought a `Command`."""
DELIVERED: Final = "stategraph_delivered"
"""In a checkpoint's metadata: the calls with a `run_id` that brought answers earlier on the thread
and made no checkpoint of their own."""
INSIDE: Final = "stategraph_inside"
"""In the metadata of a fork made to go on inside a nested graph: which task leads there, to
what."""

METADATA_PREFIX: Final = "stategraph_"
"""How the keys begin that a task's metadata has beside the user's."""
STEP: Final = "stategraph_step"
NODE: Final = "stategraph_node"
TRIGGERS: Final = "stategraph_triggers"
PATH: Final = "stategraph_path"
CHECKPOINT_NS: Final = "stategraph_checkpoint_ns"
"""In the metadata of a task's config, like the four above: where in the run it stands."""

METADATA: Final = "__metadata__"
"""In a chunk of "updates": what is said of the update itself, such as that it came from the
cache."""
CACHED_WRITES: Final = "__pregel_ns_writes"
"""The first part of every namespace in the cache of task results."""

# -- namespaces ------------------------------------------------------------------------------------
# A nested graph keeps its checkpoints in a namespace: the levels from the outermost graph down,
# joined by "|". A level is `node:task id`, so that each task has a namespace of its own, or the
# bare name of the node where the graph keeps one history (checkpointer=True), or `node:=key` where
# it keeps one for each key of a Send. A number after a level counts the graphs that the same task
# runs, from the second on: `node:task id|1`.

NS_SEP: Final = "|"
"""Between the levels of a namespace; inside one, NS_END between the node's name and the task's
id."""


def child_ns(
    ns: str, node: str, task_id: str, *, stable: bool = False, key: str | None = None
) -> str:
    """The namespace of the first graph that a task runs; with `stable`, the same in every run, and
    one for each key.

    Raises:
        ValueError: a node below the outermost graph has a number as its name; a stable namespace
            could not tell it from the number of a task.

    >>> child_ns("outer:1d44", "inner", "46e4")
    'outer:1d44|inner:46e4'
    >>> child_ns("outer:1d44", "inner", "46e4", stable=True)
    'outer|inner'
    >>> child_ns("outer:1d44", "inner", "46e4", stable=True, key="a|b")
    'outer|inner:=a%7Cb'
    """
    child = join_ns(ns, f"{node}{NS_END}{task_id}")
    if not stable:
        return child
    names = [name for name, *_ in node_levels(child.split(NS_SEP))]
    for name in names[1:]:
        if _is_number(name):
            raise ValueError(
                f"the name of node {name!r} must not be a number: it runs a graph with "
                "checkpointer=True, whose history is found by the names of the nodes around it; "
                "rename the node, or compile that graph with checkpointer=None"
            )
    level = node if key is None else keyed_level(node, key)
    return join_ns(without_ids(ns), level)


def keyed_level(node: str, key: str) -> str:
    """The level of the memory that a node's graph keeps for one key.

    >>> keyed_level("agent", "customer-7"), keyed_level("agent", "a|b:c%")
    ('agent:=customer-7', 'agent:=a%7Cb%3Ac%25')
    """
    for mark in _ESCAPED:
        key = key.replace(mark, f"%{ord(mark):02X}")
    return f"{node}{KEY_MARK}{key}"


_ESCAPED: Final = ("%", NS_SEP, NS_END)  # the first stands in what is written for the others


def split_key(level: str) -> tuple[str, str | None]:
    """What `keyed_level` was given; no key for any other level.

    >>> split_key("agent:=a%7Cb%3Ac%25"), split_key("agent:1d44"), split_key("agent")
    (('agent', 'a|b:c%'), ('agent', None), ('agent', None))
    """
    node, marked, key = level.partition(KEY_MARK)
    if not marked:
        return level.split(NS_END)[0], None
    for mark in reversed(_ESCAPED):
        key = key.replace(f"%{ord(mark):02X}", mark)
    return node, key


def memory_ns(ns: str, path: Iterable[tuple[str, str | None]]) -> str:
    """The namespace of a memory, from the one around it down.

    >>> memory_ns("", [("team", None), ("agent", "customer-7")])
    'team|agent:=customer-7'
    """
    for node, key in path:
        ns = child_ns(ns, node, "", stable=True, key=key)
    return ns


def memory_below(ns: str, around: str) -> list[tuple[str, str | None]] | None:
    """The nodes, each with its key, that lead from one namespace to one inside it that belongs to
    no task; None if that is no such namespace.

    >>> memory_below("team|agent:=customer-7", "team"), memory_below("team|agent:1d44", "team")
    ([('agent', 'customer-7')], None)
    """
    inside = ns.removeprefix(f"{around}{NS_SEP}" if around else "")
    levels = inside.split(NS_SEP)
    # One with a number is the second graph that a task runs: no Send names it.
    if has_task_ids(inside) or any(map(_is_number, levels[1:])):
        return None
    if not inside or (around and inside == ns):
        return None
    return [split_key(level) for level in levels]


def join_id(inside: str, name: str) -> str:
    """Return the id of a node in a drawing, given that of the enclosing node, which is empty at the
    top."""
    return f"{inside}{NS_END}{name}" if inside else name


def join_ns(ns: str, level: str) -> str:
    """A namespace with one more level.

    >>> join_ns("", "outer"), join_ns("outer", "inner")
    ('outer', 'outer|inner')
    """
    return f"{ns}{NS_SEP}{level}" if ns else level


def numbered_ns(ns: str, number: int) -> str:
    """The namespace of another graph that the same task runs; the first one is number 0.

    >>> numbered_ns("outer:1d44", 0), numbered_ns("outer:1d44", 1)
    ('outer:1d44', 'outer:1d44|1')
    """
    return f"{ns}{NS_SEP}{number}" if number else ns


def split_number(ns: str) -> tuple[str, int]:
    """What `numbered_ns` was given.

    >>> split_number("outer:1d44"), split_number("outer:1d44|1")
    (('outer:1d44', 0), ('outer:1d44', 1))
    """
    before, _, last = ns.rpartition(NS_SEP)
    return (before, int(last)) if before and _is_number(last) else (ns, 0)


def last_level(ns: str) -> tuple[str, ...]:
    """The parts of a namespace that belong to its innermost graph: its level, and its number if it
    has one.

    >>> last_level("outer:1d44|inner:46e4"), last_level("outer:1d44|inner:46e4|1")
    (('inner:46e4',), ('inner:46e4', '1'))
    """
    before, number = split_number(ns)
    level = before.rpartition(NS_SEP)[2]
    return (level, str(number)) if number else (level,)


def without_ids(ns: str) -> str:
    """A namespace that is the same on every branch of a thread: the names of the nodes, with their
    keys.

    >>> without_ids("outer:1d44|1|inner:46e4"), without_ids("outer:1d44|inner:=customer-7")
    ('outer|inner', 'outer|inner:=customer-7')
    """
    levels = enumerate(ns.split(NS_SEP))
    names = [level for place, level in levels if level and not (place and _is_number(level))]
    return NS_SEP.join(
        name if KEY_MARK in name else name.split(NS_END)[0] for name in names
    )


def enclosing_names(names: str) -> str:
    """What `without_ids` gives of the graph around: all levels but the last."""
    return names.rpartition(NS_SEP)[0]


def depth_of(ns: str) -> int:
    """How many graphs are around the one of this namespace."""
    if not ns:
        return 0
    return without_ids(ns).count(NS_SEP) + 1


def graph_keys(ns: str) -> list[str]:
    """The keys of `Program.nested` under which the graphs on the way to a namespace are known.

    >>> graph_keys("outer:1d44|1|inner:46e4")
    ['outer|1', 'inner']
    """
    return [NS_SEP.join(level) for level in node_levels(ns.split(NS_SEP))] if ns else []


def node_levels(levels: Iterable[str]) -> list[list[str]]:
    """Of each level of a namespace the node's name, and the graph's number if it has one.

    >>> node_levels(("outer:1d44", "1", "inner:46e4"))
    [['outer', '1'], ['inner']]
    """
    found: list[list[str]] = []
    for level in levels:
        if found and _is_number(level):
            found[-1].append(level)
        elif level:
            found.append([level.split(NS_END)[0]])
    return found


def _is_number(level: str) -> bool:
    return level.isascii() and level.isdigit()


# -- what nobody else may be called ----------------------------------------------------------------

_ENGINE: Final = "__pregel_"
RESERVED: Final = frozenset(
    {
        INPUT, INTERRUPT, RESUME, ERROR, ERROR_SOURCE, NO_WRITES, RETURN, SLEEP, COPY,
        METADATA, TAG_HIDDEN, "__scheduled__", "__snapshot_bumps__", Overwrite(None).type,
        "configurable", "checkpoint_id", "checkpoint_ns", "checkpoint_map", NS_SEP, NS_END,
    }
)  # fmt: skip
"""Names that no channel, managed value or node may have."""


def is_reserved(name: str) -> bool:
    """Whether the engine needs this name for itself."""
    return name in RESERVED or name.startswith(_ENGINE)


def is_internal(channel: str) -> bool:
    """Whether a channel is the engine's, not a key of the state."""
    return channel.startswith(("__", *ROUTING))
