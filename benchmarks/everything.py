"""All cases by name. What each is called in the table, and what it must reach, is in `goals.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cases
import chats
import contracts
import dropin
import effects
import live_threads
import memory
import reads
import stored
from cases import Engine


def fleet(case: str, _: Engine) -> float:
    """A case of workers. Only ours has them, and the peer's process must not load us."""
    import fleet_ours

    return fleet_ours.CASES[case]()


def dropin_case(name: str, engine: Engine) -> float:
    """A case of a program written for LangGraph: `langgraph` is the engine that runs here."""
    if engine.StateGraph.__module__.startswith("stategraph"):
        import stategraph.compat.langgraph  # noqa: F401
    return dropin.CASES[name]()


def executor(name: str, _: Engine) -> float:
    """A case of executors. Only ours has them."""
    import executor_inputs

    return executor_inputs.ratio(name)


CASES: dict[str, Callable[[Engine], float]] = {
    "P1": cases.p1,
    "P2": cases.p2,
    "P2-async": cases.p2_async,
    "P3": cases.p3,
    "P4": stored.p4,
    "P5": stored.p5,
    "P6": stored.p6,
    "P7": cases.p7,
    "P7-wait": cases.p7_wait,
    "P7-async": cases.p7_async,
    "P8": cases.p8,
    "P8-linear": cases.p8_linear,
    "P9": cases.p9,
    "P10": cases.p10,
    "P11-build": cases.p11_build,
    "P11-step": cases.p11_step,
    "P12": stored.p12,
    "P12-delta": stored.p12_delta,
    "P14": stored.p14,
    "P15-memory": cases.p15_memory,
    "P15-speed": cases.p15_speed,
    "P16": stored.p16,
    "P16-tasks": stored.p16_tasks,
    "P17": live_threads.p17,
    "P18": live_threads.p18,
    "P18-growth": live_threads.p18_growth,
    "P19": live_threads.p19,
    "P20": live_threads.p20,
    "P20-groups": live_threads.p20_groups,
    "P21": chats.p21,
    "P21-long": chats.p21_long,
    "P21-file": chats.p21_file,
    "P44": chats.p44,
    "P24": live_threads.p24,
    "P24-chats": chats.p24_chats,
    "P35": chats.p35,
    "P35-first": chats.p35_first,
    "P35-file": chats.p35_file,
    "P37": chats.p37,
    "P30": stored.p30,
    **{name: partial(dropin_case, name) for name in dropin.CASES},
    "P23": stored.p23,
    "P29-timeout": cases.p29_timeout,
    "P29-async": cases.p29_async,
    "P29-cache": cases.p29_cache,
    **{f"P38-{name}": partial(executor, name) for name in ("pool", "processes", "dask", "ray")},
    "P40-off": contracts.off,
    "P40-input": contracts.given,
    "P40-nodes": lambda e: contracts.added(e, "nodes"),
    "P40-writes": lambda e: contracts.added(e, "writes"),
    "P40-model": contracts.model,
    "E-once": lambda e: effects.added(e, effects.call_once),
    "E-keyed": lambda e: effects.added(e, effects.declared("keyed")),
    "E-irreversible": lambda e: effects.added(e, effects.declared("irreversible")),
    "E-undoable": lambda e: effects.added(e, effects.declared("keyed", undo=True)),
    "E-undo": effects.undone,
    "P39-graph": cases.p39_graph,
    "P39-held": cases.p39_held,
    **{name: partial(fleet, name) for name in ("P28-1", "P28-3", "P36-1", "P36-3", "P36-exit")},
    "P22-state": reads.p22_state,
    "P22-history": reads.p22_history,
    "P22-page": partial(reads.p22_history, limit=10),
    "P22-all": partial(reads.p22_history, limit=None),
    "P22-middle": reads.p22_middle,
    "P22-fork": reads.p22_fork,
    "P22-update": reads.p22_update,
    "P22-memory": partial(reads.p22_state, in_memory=True),
    "P22-memory-middle": partial(reads.p22_middle, in_memory=True),
    "P22-memory-all": partial(reads.p22_history, limit=None, in_memory=True),
    "P22-filter": reads.p22_filter,
    "P41": reads.p41,
    "P41-memory": partial(reads.p41, in_memory=True),
    "P27": reads.p27,
    "P33": reads.p33,
    "P33-postgres": reads.p33_postgres,
    "P33-memory": reads.p33_memory,
    "P34": reads.p34,
    "M-graph-3": memory.graph_of_3,
    "M-graph-100": memory.graph_of_100,
    "M-thread": memory.thread,
    "M-step": memory.superstep,
    "M-step-file": memory.superstep_in_file,
    "M-send": memory.send,
    "M-send-waiting": memory.send_waiting,
}
