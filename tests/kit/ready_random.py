"""Random graphs with schedule="ready", and savers that die."""

import random
from zlib import crc32

from kit.graphs import EMPTY as EMPTY
from kit.ready_graphs import State
from stategraph import START, InMemorySaver, Send, StateGraph, interrupt


class Died(BaseException):
    """The process ends here."""


class MortalSaver(InMemorySaver):
    """Dies before it stores its commit number `left`."""

    left = -1

    def commit(self, commits):
        if self.left == 0:
            raise Died
        self.left -= 1
        return super().commit(commits)

    async def acommit(self, commits):
        return self.commit(commits)


def make_graph(
    seed,
    *,
    asks=True,
    even=False,
    defers=False,
    waves=False,
    races=False,
    wait=str,
):
    """Levels of nodes; edges, joins, routers and Sends lead down, some routers up again.

    Args:
        asks: some nodes ask.
        defers: some nodes are deferred.
        even: all ways to a node are of equal length, and no router is there. Of deferred nodes on several levels, which
            wake together, the ways would not be: only those of one level are deferred.
        waves: joins do not only wait for all.
        races: some nodes let Sends race, of which one may fail.
        wait: what a node does while it runs.
    """
    dice = random.Random(seed)
    levels = [[f"n{depth}{place}" for place in range(dice.randint(1, 3))] for depth in range(dice.randint(2, 4))]
    names = [name for level in levels for name in level]
    late = f"n{crc32(str(seed).encode()) % len(levels)}" if even else "n"
    builder = StateGraph(State)
    for name in names:
        node = _asking(name) if asks and dice.random() < 0.2 else _node(name, wait)
        builder.add_node(name, node, defer=defers and name.startswith(late) and crc32(f"{seed}{name}".encode()) % 4 == 0)
    for name in levels[0]:
        builder.add_edge(START, name)
    for depth, level in enumerate(levels[:-1]):
        below = levels[depth + 1] if even else [name for deeper in levels[depth + 1 :] for name in deeper]
        for name in level:
            ends = dice.sample(below, dice.randint(1, min(2, len(below))))
            kind = "edge" if even else dice.choice(["edge", "edge", "router", "send", "up"])
            if races and crc32(f"race {seed}{name}".encode()) % 2:
                builder.add_conditional_edges(name, _race(ends[:1] if even else ends, crc32(name.encode()) % 3), ends)
            elif kind == "edge":
                for end in ends:
                    builder.add_edge(name, end)
            elif kind == "router":
                builder.add_conditional_edges(name, _pick(name, ends), ends)
            elif kind == "send":
                builder.add_conditional_edges(name, _send(ends[0], dice.randint(1, 3)), [ends[0]])
            else:
                top = dice.choice(names[: names.index(name) + 1])
                builder.add_conditional_edges(name, _up(name, top, ends), [top, *ends])
        if not even and len(level) > 1 and dice.random() < 0.5:
            kinds = ["any", "reachable", "reachable", "all"] if waves else ["all"]
            end = dice.choice(below)
            kind = kinds[crc32(f"{seed}{end}".encode()) % len(kinds)]
            builder.add_edge(level, end, kind if builder.nodes[end].defer is False else "all")
    return builder


def _node(name, wait):
    def run(state):
        wait(f"{name}{state.get('n', '')}")
        if state.get("n", "").endswith("!"):
            raise ArithmeticError("it never wins")
        return {"log": [f"{name}({len(state['log'])}{state.get('n', '')})"]}

    return run


def _asking(name):
    def run(state):
        return {"log": [f"{name}({interrupt(name)}{len(state['log'])})"]}

    return run


def _pick(name, ends):
    return lambda state: ends[crc32(f"{name}{state['log'][-1]}".encode()) % len(ends)]


def _send(end, count):
    return lambda state: [Send(end, {"log": state["log"], "n": f"#{number}"}) for number in range(count)]


def _race(ends, count):
    names = ["#!", *(f"#{number}" for number in range(count + 1))]
    return lambda state: [
        Send(ends[place % len(ends)], {"log": state["log"], "n": name}, race="r") for place, name in enumerate(names)
    ]


def _up(name, top, ends):
    return lambda state: ends if sum(each.startswith(name) for each in state["log"]) > 1 else [top, ends[0]]


def by_chance(seed):
    """An order of ends that depends on the tasks and on the state in which they are at work."""

    def rank(task):
        now = task.run.output  # of the whole call
        origin = task.run.machine
        return crc32(f"{seed}{task.name}{task.path[1:]}{origin.step}{type(now).__name__}".encode()), task.path, origin.step

    return rank
