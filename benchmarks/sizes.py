"""How much work each case does. Constants only; a quick look has its own, and tests make them
tiny."""

from __future__ import annotations

import os

QUICK = bool(os.environ.get("BENCH_QUICK"))

SECONDS = 0.15 if QUICK else 1.0
"""How long rounds are repeated within one process."""
FEWEST, MOST = (2, 8) if QUICK else (3, 20)
"""Rounds per process, the warm-up counted: enough for the slow, and no endless tries for luck for
the quick."""

STEPS = 200 if QUICK else 500
"""Supersteps of a loop."""
INVOKES = 50 if QUICK else 100
"""Calls in one round, where one call is short."""
SENDS = 1_000 if QUICK else 5_000
FEW, MANY = (2_000, 20_000) if QUICK else (10_000, 100_000)
KEYS = 2_000
NODES = 1_000

CALLS = 100
"""Calls of a function whose effect is recorded, by one task."""
NESTED = 20 if QUICK else 100
"""Sends of P23, each to a graph inside."""

APPENDS, PEER_APPENDS = (300, 100) if QUICK else (1_000, 400)
"""How long a list P12 makes; an engine that stores all of it at each step gets a shorter one."""
ITEM = 200
"""Bytes appended at a time."""
SHORT, LONG = (10, 1_000) if QUICK else (10, 10_000)
"""Checkpoints of the two threads of P14."""
STRETCH, STRETCHES = 10_000, 10 if QUICK else 100
"""P15 runs so many stretches of so many supersteps, and measures after each."""
JOBS = 200 if QUICK else 1_000
INPUTS = 50 if QUICK else 200
"""Tasks of P38."""
"""Jobs of a fleet that are counted."""
COMMITS = 20
"""Supersteps over which P16 counts commits."""
TOGETHER = 5
"""Tasks of one superstep that end together."""

CHAT, LONG_CHAT = 1_000, 2_000 if QUICK else 10_000
"""Messages of the chats of P21 and P35."""
TURNS, PEER_TURNS = (30, 5) if QUICK else (60, 10)
"""Supersteps of these; an engine that stores the whole list at each step takes fewer."""
AGENT_TURNS, AGENT_TEXT = 5 if QUICK else 20, 2_000
"""Turns of the agent of P44; bytes of each text in it."""
LIVE, LIVE_SERVER = (40, 40) if QUICK else (200, 400)
"""Threads that are live at once in P18 and P20, and in P19."""
LIVE_TURNS, GROWTH_TURNS = (5, 5) if QUICK else (20, 10)
"""Supersteps of each of them; in P18-growth."""
ENDED = 16 if QUICK else 128
"""Threads of P24 that have ended."""
FINISHED = 8 if QUICK else 32
"""Chats of P24."""
CHUNKS = 100 if QUICK else 300
"""Tokens of P37."""
CHAIN = 1_000 if QUICK else 10_000
"""Nodes of the drawing of P39."""
SAID = 10_000 if QUICK else 100_000
"""Chunks of a node of P39."""

GROWN = 300 if QUICK else 1_000
"""Supersteps of the thread that P22 reads."""
TEXT = 6_000_000 if QUICK else 60_000_000
"""Characters of P27."""
THREADS = 1_000 if QUICK else 10_000
"""Threads among which P33 finds one."""
PRUNED = 200 if QUICK else 2_000
"""Threads that P34 prunes."""

HELD = 20 if QUICK else 50
"""Compiled graphs, and threads, of which memory is the average."""
PENDING = 300 if QUICK else 1_000
"""Sends of which memory is the average."""
