"""What each case is called, which engines run it, what it must reach and what it aims at; and the
verdict.

Pure: nothing is measured here. The table, the plot and the notebook on speed read it. The goals are
those of the project's own plan, P1 to P44; cases that begin with M are of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

Samples = dict[str, dict[str, list[float]]]
"""case → engine → one number of each process"""


@dataclass(frozen=True)
class Goal:
    """What a case must reach and aims at.

    Attributes:
        against: "peer": so many times faster than the peer; "floor": at most so many times the
            floor; the name of another row: at most so many times our own time there; "value": the
            measured value itself, at most; "least": the measured value, at least.
        must, aim: None if there is none.
        must_floor, aim_floor: at most so many times the floor as well.
    """

    against: str = "peer"
    must: float | None = None
    aim: float | None = None
    must_floor: float | None = None
    aim_floor: float | None = None


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        text: what is measured, in few words.
        engines: who has a script for it; the others' columns are of a second table.
    """

    text: str
    goal: Goal = Goal()
    unit: str = "µs"
    engines: tuple[str, ...] = ("ours", "peer", "floor")


ALONE = ("ours",)
PAIR = ("ours", "peer")
ALL = ("ours", "peer", "floor")
SYNC = (*ALL, "burr")
ASYNC = (*ALL, "pydantic_graph", "burr", "llama_index")
QUEUES = ("dbos", "procrastinate", "pgqueuer")
FLEET = ("ours", "floor", *QUEUES)
OTHERS = {
    "pydantic_graph": "pydantic-graph",
    "burr": "Burr",
    "llama_index": "LlamaIndex Workflows",
    "dbos": "DBOS",
    "procrastinate": "procrastinate",
    "pgqueuer": "PgQueuer",
}
"""Further engines, and how they call themselves."""

CASES = {
    "P1": Case("superstep: self-loop with a router", Goal("peer", 15, 25, None, 3), "µs", SYNC),
    "P2": Case("invoke of a 3-node chain", Goal("peer", 12, 20), "µs", SYNC),
    "P2-async": Case("ainvoke of a chain of 3 async nodes", Goal(), "µs", ASYNC),
    "P3": Case("superstep, async node", Goal("peer", 15, 25), "µs", ASYNC),
    "P4": Case("superstep with InMemorySaver", Goal("peer", 12, 20), "µs", SYNC),
    "P5": Case(
        "superstep with SQLite, synchronous=NORMAL", Goal("peer", 6, 9, 1.7, 1.4), "µs", SYNC
    ),
    "P6": Case(
        "superstep with SQLite, synchronous=FULL", Goal("peer", 4, None, None, 1.3), "µs", SYNC
    ),
    "P7": Case("fan-out of 5 sync nodes + join", Goal("peer", 10, 15), "µs", SYNC),
    "P7-wait": Case("the same, the 5 wait for each other"),
    "P7-async": Case("fan-out of 5 async nodes + join", Goal(), "µs", ASYNC),
    "P8": Case("5,000 Sends, sync node (per task)", Goal("peer", 25, 50)),
    "P8-linear": Case(
        "time of 100,000 Sends ÷ of 10,000", Goal("value", None, 12), "x", ("ours", "floor")
    ),
    "P9": Case(
        "5,000 Sends, async node (per task)",
        Goal("peer", 25, 50),
        "µs",
        (*ALL, "pydantic_graph", "burr"),
    ),
    "P10": Case("superstep, 2,000 state keys", Goal("P1", 3, 2)),
    "P11-build": Case("build + compile, 1,000 nodes (per node)", Goal("peer", 3, 6), "µs", PAIR),
    "P11-step": Case("superstep in a graph of 1,000 nodes", Goal("P1", 1.2), "µs", PAIR),
    "P12": Case("bytes stored per byte appended to a list", Goal("value", 12, 5), "x", PAIR),
    "P12-delta": Case("the same, LangGraph's list in a DeltaChannel", Goal(), "x", PAIR),
    "P13-time": Case("import", Goal("floor", 2.4, 1.4), "s", ASYNC),
    "P13-memory": Case("resident memory after import", Goal("value", None, 25), "MB", ASYNC),
    "P14": Case("one step on 10,000 checkpoints ÷ on 10", Goal("value", 2, 1.2), "x", ALONE),
    "P15-memory": Case("1,000,000 supersteps: growth after 10,000", Goal("value", 5), "MB", ALONE),
    "P15-speed": Case("the same: speed at the end ÷ at the start", Goal("least", 0.9), "x", ALONE),
    "P16": Case("commits of a superstep with one task", Goal("value", 1, 1), "commits", PAIR),
    "P16-tasks": Case("the same, 5 tasks that end together", Goal("value", 2, 1), "commits", PAIR),
    "P17": Case("ainvoke beside 20 blocked to_threads ÷ alone", Goal("value", 2, 1), "x", ALONE),
    "P18": Case(
        "superstep, 200 live threads, SQLite NORMAL",
        Goal("floor", 3.4, 2),
        "µs",
        ("ours", "floor"),
    ),
    "P18-growth": Case("the same, 1,000 live threads ÷ 50", Goal("value", 1.2), "x", ALONE),
    "P19": Case(
        "superstep, 400 live threads, Postgres",
        Goal("floor", 4.2, 2),
        "µs",
        ("ours", "floor"),
    ),
    "P20": Case(
        "superstep, 200 live threads, SQLite FULL",
        Goal(),
        "µs",
        ("ours", "floor"),
    ),
    "P20-groups": Case("the same: speed ÷ one commit at a time", Goal("least", 3, 5), "x", ALONE),
    "P21": Case("superstep of a chat of 1,000 messages", Goal("peer", 15, None, 36)),
    "P21-long": Case("superstep of a chat of 10,000 messages", Goal("peer", 20, None, 5.5)),
    "P21-file": Case("the same with SQLite", Goal("peer", 50), "µs", PAIR),
    "P23": Case("a Send into a graph of 2 nodes, SQLite", Goal("peer", 9, 14.5), "ms", PAIR),
    "P29-timeout": Case(
        "what a timeout adds, sync node",
        Goal("floor", 1.5, 1.1),
        "µs",
        ("ours", "floor"),
    ),
    "P29-async": Case("the same, async node", Goal("P1", 2.2), "µs", PAIR),
    "P29-cache": Case("what a result found in the cache adds", Goal("P1", 5.9), "µs", PAIR),
    "P44": Case("a turn of an agent of 6 nodes, SQLite", Goal("peer", 5, 8), "ms", PAIR),
    "P24": Case("left of 128 finished threads of 200 KB", Goal("value", 1, 0), "MB", PAIR),
    "P24-chats": Case("left of 32 finished chats of 400 KB", Goal("value", 1, 0.1), "MB", PAIR),
    "P30": Case("P1 to P4, LangChain loaded ÷ before", Goal("value", 1.05, 1), "x", ALONE),
    "P31": Case("LangGraph program: invoke of 3 nodes", Goal("peer", 1, 8), "µs", PAIR),
    "P31-agent": Case("LangGraph program: agent of 10 turns", Goal("peer", 1, 3), "µs", PAIR),
    "P31-prebuilt": Case("the same, prebuilt, LangChain's model", Goal("peer", 1, 3), "µs", PAIR),
    "P31-prebuilt-async": Case("the same by ainvoke", Goal("peer", 1, 3), "µs", PAIR),
    "P35": Case("superstep, 1,000 messages of LangChain", Goal("peer", 5), "µs", PAIR),
    "P35-first": Case("a call that gives 1,000 of them", Goal("peer", 1), "µs", PAIR),
    "P35-file": Case("superstep with SQLite, 1,000 of them", Goal("peer", 3), "µs", PAIR),
    "P37": Case("a chunk of a LangChain model", Goal("peer", 1, 2), "µs", PAIR),
    "P26": Case("fresh process to the first result", Goal("peer", 7, None, 1.5, 1.25), "ms"),
    "P26-help": Case(
        "python -m stategraph --help",
        Goal("floor", 1.6, 1.25),
        "ms",
        ("ours", "floor"),
    ),
    "P38-pool": Case("200 tasks with 1 MB each ÷ a bare pool", Goal("value", 1.5), "x", ALONE),
    "P38-processes": Case("the same, own processes ÷ a bare pool", Goal("value", 1.3), "x", ALONE),
    "P38-dask": Case("the same, Dask ÷ bare Dask", Goal("value", 1.5), "x", ALONE),
    "P38-ray": Case("the same, Ray ÷ bare Ray", Goal("value", 1.3), "x", ALONE),
    "P39-graph": Case("get_graph(), 10,000 nodes (per node)", Goal("P1", 3), "µs", ALONE),
    "P39-held": Case("chunks held for a reader who sleeps", Goal("value", 1000), "", ALONE),
    "P40-off": Case("superstep with validate=() ÷ without", Goal("value", 1.02, 1), "x", ALONE),
    "P40-input": Case('what validate="input" adds to a call', Goal("P1", 4.4, 1.5), "µs", ALONE),
    "P40-nodes": Case('what validate="nodes" adds to a step', Goal("P1", 1.5, 0.75), "µs", ALONE),
    "P40-writes": Case('the same, validate="writes"', Goal("P1", 1.5, 0.75), "µs", ALONE),
    "P40-model": Case("superstep of a pydantic model", Goal("peer", 15, 25), "µs", PAIR),
    "E-once": Case("what runtime.once adds to a call, SQLite", Goal(), "µs", ALONE),
    "E-keyed": Case('what @effect("keyed") adds', Goal(), "µs", ALONE),
    "E-irreversible": Case('what @effect("irreversible") adds', Goal(), "µs", ALONE),
    "E-undoable": Case('what @effect("keyed", undo=...) adds', Goal(), "µs", ALONE),
    "E-undo": Case("undoing such a call", Goal(), "µs", ALONE),
    "P28-1": Case("a job of 1 node, one worker", Goal("floor", 1.75, 1.3), "ms", FLEET),
    "P28-3": Case("a job of 3 nodes", Goal("floor", 1.4, 1.3), "ms", FLEET),
    "P36-1": Case("the first's processor time", Goal("floor", 1.9, 1.5), "ms", FLEET),
    "P36-3": Case("the second's", Goal("floor", 1.95, 1.5), "ms", FLEET),
    "P36-exit": Case('the same, durability="exit"', Goal("P36-3", 0.56), "ms", ALONE),
    "P22-state": Case("get_state, a list grown in 1,000 steps", Goal("peer", 1, 2)),
    "P22-history": Case("get_state_history(limit=1) of it", Goal("peer", 1, 2), "µs", PAIR),
    "P22-filter": Case("get_state_history(filter=) of it", Goal("peer", 1, 2), "µs", PAIR),
    "P22-page": Case("get_state_history(limit=10) of it", Goal("peer", 1, 2), "µs", PAIR),
    "P22-all": Case("get_state_history() of it", Goal("peer", 1, 2), "µs", PAIR),
    "P22-middle": Case("get_state of its middle", Goal("peer", 1, 2), "µs", PAIR),
    "P22-fork": Case("get_state of a fork of it", Goal("peer", 1, 2), "µs", PAIR),
    "P22-update": Case("update_state in its middle", Goal("peer", 1, 2), "µs", PAIR),
    "P22-memory": Case("get_state of it with InMemorySaver", Goal("peer", 1, 2), "µs", PAIR),
    "P22-memory-middle": Case("the same of its middle", Goal("peer", 1, 2), "µs", PAIR),
    "P22-memory-all": Case("its whole history, InMemorySaver", Goal("peer", 1, 2), "µs", PAIR),
    "P41": Case("list(None, limit=10) of 10,000 threads, SQLite", Goal("P1", 150), "µs", PAIR),
    "P41-memory": Case("the same with InMemorySaver", Goal("P1", 150), "µs", PAIR),
    "P27": Case("get_state, a text of 60 MB", Goal("peer", 0.83, 1), "µs"),
    "P33": Case("one thread of 10,000 by its metadata", Goal("peer", 0.67, 20), "µs", PAIR),
    "P33-postgres": Case("the same with Postgres", Goal("value", 36_000, 1_000), "µs", ALONE),
    "P33-memory": Case("the same with InMemorySaver", Goal("peer", 0.67), "µs", PAIR),
    "P34": Case("longest superstep of others during prune()", Goal("value", 50), "ms", ALONE),
    "M-graph-3": Case("a compiled graph of 3 nodes", Goal(), "KB", PAIR),
    "M-graph-100": Case("a compiled graph of 100 nodes", Goal(), "KB", PAIR),
    "M-thread": Case("a thread of 3 supersteps in InMemorySaver", Goal(), "KB", PAIR),
    "M-step": Case("a superstep of history in InMemorySaver", Goal(), "B", ALL),
    "M-step-file": Case("a superstep of history in an SQLite file", Goal(), "B", ALL),
    "M-send": Case("a Send, at its superstep's worst moment", Goal(), "B", ALL),
    "M-send-waiting": Case("a Send that waits for its turn", Goal(), "B", ALL),
}


def middle(samples: Samples) -> dict[str, dict[str, float]]:
    """The medians."""
    return {
        name: {e: median(values) for e, values in engines.items()}
        for name, engines in samples.items()
    }


def reached(name: str, found: dict[str, dict[str, float]]) -> tuple[float | None, str]:
    """The ratio (or value) that the goal is about, and "aim", "must", "no", or "" if there is
    nothing to judge.

    Args:
        found: the medians of all cases: some are judged beside P1.
    """
    case, mine = CASES[name], found[name]
    goal, ratio = case.goal, _ratio(case, mine, found)
    bounds = goal.must, goal.aim, goal.must_floor, goal.aim_floor
    if ratio is None or all(bound is None for bound in bounds):
        return ratio, ""
    good: Callable[[float], bool] = (
        ratio.__ge__ if goal.against in ("peer", "least") else ratio.__le__
    )
    floors = mine["ours"] / mine["floor"] if "floor" in mine else 0.0

    def meets(bound: float | None, floor: float | None) -> bool:
        named = bound is not None or floor is not None
        return named and (bound is None or good(bound)) and (floor is None or floors <= floor)

    if meets(goal.aim, goal.aim_floor):
        return ratio, "aim"
    return ratio, "must" if meets(goal.must, goal.must_floor) else "no"


def in_unit(value: float, unit: str) -> float:
    """A measured value (seconds, bytes, or a plain number) in the unit of its case."""
    return value * {"µs": 1e6, "KB": 1e-3}.get(unit, 1)


def _ratio(
    case: Case, mine: dict[str, float], found: dict[str, dict[str, float]]
) -> float | None:
    if "ours" not in mine:
        return None
    if case.goal.against == "peer":
        return mine["peer"] / mine["ours"] if "peer" in mine else None
    if case.goal.against == "floor":
        return mine["ours"] / mine["floor"] if "floor" in mine else None
    if case.goal.against in CASES:
        other = found.get(case.goal.against, {})
        return mine["ours"] / other["ours"] if "ours" in other else None
    return in_unit(mine["ours"], case.unit)


def goal_text(goal: Goal) -> str:
    """Must and aim in few words."""
    signs = {"peer": ("≥ ", "x"), "value": ("≤ ", ""), "least": ("≥ ", "")}
    sign, tail = signs.get(goal.against, ("≤ ", f"x {goal.against}"))
    words = []
    for bound, floor in ((goal.must, goal.must_floor), (goal.aim, goal.aim_floor)):
        parts = [f"{sign}{bound:g}{tail}"] if bound is not None else []
        parts += [f"≤ {floor:g}x floor"] if floor is not None else []
        words.append(", ".join(parts) or "-")
    return " / ".join(words)
