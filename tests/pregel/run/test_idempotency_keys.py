"""An idempotency key survives the death of a process, whatever the durability of each call was."""

from __future__ import annotations

import threading

import pytest
from kit import cluster
from kit.crash_points import Death, Died, dying
from kit.drive import each_case, each_schedule
from kit.graphs import EMPTY, Log, thread_config

from stategraph import START, Runtime, StateGraph

postgres = cluster.emptied


class Keys:
    """Makes nodes that note their keys."""

    def __init__(self):
        self.seen = {}
        self.began = threading.Event()

    def chain(self, *names, nested=None):
        """Nodes in a row, with a graph behind the first of them."""
        builder, row = StateGraph(Log), [*names]
        for name in names:
            builder.add_node(name, self.note(name))
        if nested is not None:
            builder.add_node(*nested)
            row.insert(1, nested[0])
        for before, after in zip([START, *row], row, strict=False):
            builder.add_edge(before, after)
        return builder

    def note(self, name):
        def run(state, runtime: Runtime):
            self.began.set()
            self.seen.setdefault(name, set()).add(runtime.idempotency_key)
            return {"log": [name]}

        return run

    def wait_for_next(self):
        """A node begins while the last call stores, if one can."""
        self.began.clear()
        self.began.wait(0.02)


@pytest.mark.trial
@each_schedule
@each_case("first, then", [("async", "sync"), ("sync", "async"), ("async", "async")])
def test_an_idempotency_key_survives_a_crash_at_any_point(drive, saver, schedule, first, then):
    keys = Keys()
    inner = keys.chain("inner 1", "inner 2").compile(schedule=schedule)
    app = keys.chain("a", "b", nested=("inner", inner)).compile(saver, schedule=schedule)
    for at in range(1, 12):
        keys.seen.clear()
        config = thread_config(f"{first} {then} {at}")
        death = Death(at, meanwhile=keys.wait_for_next)
        with dying(saver, death):
            try:
                drive.invoke(app, EMPTY, config, durability=first)
            except Died:
                pass
        if not death.dead:
            break
        if drive.get_state(app, config).created_at is not None:
            drive.invoke(app, None, config, durability=then)
            several = {name: found for name, found in keys.seen.items() if len(found) > 1}
            assert not several, f"died at storing call {at}: these have several keys"
    assert at > 4
