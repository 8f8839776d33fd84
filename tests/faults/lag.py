"""R5: with durability "async" a run is never more than one superstep ahead of what is stored."""

from __future__ import annotations

import threading
from contextlib import closing

from kit.graphs import chain_of

from stategraph.checkpoint.errors import StorageError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import CheckFailed, assert_same
from stategraph.testing.graphs import LogState
from stategraph.testing.harness import Mode

from .campaign import trial
from .stages import config

STEPS = 200


def counting(saver, ran, after):
    """One task a superstep, which notes that it ran."""

    def step(state: LogState):
        ran.append(state["left"])
        after()
        return {"left": state["left"] - 1, "log": [state["left"]]}

    return (
        chain_of(LogState, step=step)
        .add_conditional_edges("step", lambda state: "step" if state["left"] else "__end__", ["step", "__end__"])
        .compile(saver)
    )


@trial("R5", quick=6, full=400)
def failing_saves(round):
    """The saves fail from the n-th on: at most one superstep runs after that, the error reaches the caller, and the
    thread goes on from its last stored step once saves work again."""
    random = round.random
    broken_at = 1 + random.randrange(STEPS // (5 if round.number < 12 else 1))
    ran = []
    commits = []  # how many had run when it came

    class Failing(SqliteSaver):
        def commit(self, given):
            commits.append(len(ran))
            if len(commits) > broken_at:
                raise StorageError("planted")
            super().commit(given)

    kind = random.choice(["sync", "async"])
    with closing(Failing(":memory:", synchronous="off")) as saver, Mode(kind) as world:
        app = counting(saver, ran, lambda: None)
        try:
            world.call(app, "invoke", {"left": STEPS, "log": []}, config(), durability="async")
        except StorageError:
            pass
        else:
            raise CheckFailed(f"{kind}: saves failed from the {broken_at}th on, and the run ended well")
        more = len(ran) - commits[broken_at]
        if more > 1:
            raise CheckFailed(f"{kind}: {more} supersteps ran after the save that failed")
        broken_at = 10**9
        result = world.call(app, "invoke", None, config(), durability="async")
        assert_same(result["log"], [*range(STEPS, 0, -1)], f"{kind}: log after the resume")
    round.count("supersteps beyond", more)
    round.count("failed saves")


@trial("R5", quick=3, full=400)
def hanging_saves(round):
    """The n-th save hangs: at most one superstep runs meanwhile."""
    random = round.random
    hang_at = 1 + random.randrange(30)
    ran = []
    more = []
    moved = threading.Event()
    commits = []

    class Hanging(SqliteSaver):
        def commit(self, given):
            commits.append(None)
            if len(commits) == hang_at:
                before = len(ran)
                moved.clear()
                while moved.wait(0.05):  # as long as something moves
                    moved.clear()
                more.append(len(ran) - before)
            super().commit(given)

    kind = random.choice(["sync", "async"])
    with closing(Hanging(":memory:", synchronous="off")) as saver, Mode(kind) as world:
        app = counting(saver, ran, moved.set)
        result = world.call(app, "invoke", {"left": 40, "log": []}, config(), durability="async")
        assert_same(result["log"], [*range(40, 0, -1)], f"{kind}: log")
    if not more:
        raise CheckFailed(f"{kind}: the run was told ended while its {hang_at}th save hung")
    if max(more) > 1:
        raise CheckFailed(f"{kind}: {max(more)} supersteps ran while the {hang_at}th save hung")
    round.count("supersteps beyond", max(more))
    round.count("saves that hung")
