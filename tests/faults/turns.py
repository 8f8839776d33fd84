"""R49: calls of one thread that take turns in one process (`multitask=`): none comes second, and each has what it was told."""

import threading
import time
from collections import Counter

from kit.drive import run_threads
from kit.graphs import Log

from stategraph import START, GraphDrained, StateGraph, ThreadBusyError
from stategraph.testing import CheckFailed, assert_same
from stategraph.testing.harness import Mode

from .campaign import trial
from .stages import config, sqlite


def line(saver):
    """Three nodes, each of which takes a moment."""

    def work(state):
        time.sleep(0.002)
        return {}

    graph = StateGraph(Log).add_sequence([(name, work) for name in "abc"])
    return graph.add_edge(START, "a").compile(saver)


@trial("R49", quick=2, full=2_000)
def calls_that_take_turns(round):
    """Eight callers, sync and async, call one thread at once, each with one of the ways: nobody gets a conflict. Who is
    told ok or was interrupted has its input in the state, once; who is rejected has not. With rollbacks: at most once."""
    random = round.random
    ways = ["reject", "enqueue", "interrupt", *(["rollback"] if round.number % 2 else [])]
    plan = [(random.choice(ways), random.choice(["sync", "async"]), random.random() / 100) for _ in range(8)]
    ended = {}
    with sqlite(round).open() as saver:
        app = line(saver)

        def call(number):
            how, world, pause = plan[number]
            time.sleep(pause)
            try:
                with Mode(world) as mode:
                    ended[number] = mode.call(app, "invoke", {"log": [number]}, config(), multitask=how)
            except BaseException as error:
                ended[number] = error

        callers = [threading.Thread(target=call, args=(number,)) for number in range(len(plan))]
        run_threads(callers)
        assert_same(len(ended), len(plan), f"{plan}: calls that have ended")
        found = Counter(app.get_state(config()).values["log"])
    for number, outcome in ended.items():
        if not isinstance(outcome, (dict, ThreadBusyError, GraphDrained)):
            raise CheckFailed(f"{plan}: call {number} ended with {outcome!r}")
        rejected = isinstance(outcome, ThreadBusyError)
        if "rollback" not in ways or rejected:
            assert_same(found[number], 0 if rejected else 1, f"{plan}: the input of call {number} in the state")
        elif found[number] > 1:
            raise CheckFailed(f"{plan}: the input of call {number} is in the state {found[number]} times")
        round.count("rejected" if rejected else "drained" if isinstance(outcome, GraphDrained) else "ok")
