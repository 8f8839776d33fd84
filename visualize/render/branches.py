"""The branches of a stored thread: a drawing of where they diverge, and a comparison of the ends of
two of them.

Only reads, and combines the drawings of other modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...checkpoint.base import RunnableConfig, address, coordinates
from ...pregel.app import Pregel
from ...pregel.types import AnyConfig
from ..drawing import Drawing
from ..group import group
from ..model import GraphEdge, GraphModel, GraphNode
from ..trace.changes import MOST_NAMES, SOURCES, Block, ChangeList, headline, shorten
from ..trace.diff import DIFF_LIMITS, Change, DiffLimits, diff
from ..trace.index import Point, ThreadIndex, list_chains
from ..trace.reader import read_snapshot, read_trace
from ..trace.records import Trace, TraceStep
from ..trace.values import count_noun, sanitize


class BranchTree(Drawing):
    """The branches of a thread as a drawing: each node represents consecutive checkpoints, and has
    the id of the last of them.

    Attributes:
        tips: the config of each branch's newest checkpoint, by the number of the branch in the
            drawing: to look at it, to continue from it, or to `compare` it with another.
    """

    def __init__(self, model: GraphModel, tips: Mapping[int, RunnableConfig]) -> None:
        super().__init__(model)
        self.tips = tips

    def __repr__(self) -> str:
        return f"<BranchTree of {self.name}: {count_noun(len(self.tips), 'branch', 'branches')}>"


def branches(app: Pregel, config: AnyConfig) -> BranchTree:
    """Return where the branches of a thread diverge: forks, replays from a checkpoint, and states
    changed by `update_state` at an older one. A notebook shows the result as a drawing;
    `print(tree)` draws it with characters.

    Args:
        config: the thread.

    Raises:
        TypeError: `app` is not a compiled graph.
        ValueError: the graph has no checkpointer, or the config names no stored thread.
    """
    thread_id, ns, _ = coordinates(read_snapshot(app, config).config)
    index = ThreadIndex(thread_id, ns)
    index.refresh(app)
    return draw_branches(index)


def draw_branches(index: ThreadIndex) -> BranchTree:
    """Return the branches of a thread whose checkpoints have been read."""
    points = index.points
    after = group((point.parent, id) for id, point in points.items() if point.parent in points)
    nodes, edges = [], []
    tips: dict[int, RunnableConfig] = {}
    chains = {chain[-1]: chain for chain in list_chains(index, after)}
    held = {id: tip for tip, chain in chains.items() for id in chain}
    places = {id: place for place, id in enumerate(points)}
    for tip in sorted(chains, key=places.__getitem__):
        chain = chains[tip]
        lines = _describe_chain(chain, points)
        if tip not in after:
            tips[len(tips) + 1] = address(index.thread_id, index.ns, tip)
            newest = ", the newest" if tip == index.head else ""
            lines.insert(0, f"branch {len(tips)}{newest}")
        nodes.append(GraphNode(tip, "\n".join(lines), "steps", metadata={"checkpoint": tip}))
        parent = points[chain[0]].parent
        if parent in points:
            edges.append(GraphEdge(held[parent], tip))
    model = GraphModel(f"thread {index.thread_id}", nodes, edges)
    return BranchTree(model, tips)


def _describe_chain(chain: Sequence[str], points: Mapping[str, Point]) -> list[str]:
    """Return the numbers of its steps, what ran in them, and what will run after them."""
    first, last = points[chain[0]], points[chain[-1]]
    names: dict[str, None] = {}
    for point in map(points.__getitem__, chain):
        ran = points[point.parent].next if point.parent in points else ()
        names |= dict.fromkeys([SOURCES[point.source]] if point.source in SOURCES else ran)
    numbers = f"step {last.number}"
    if first.number != last.number:
        numbers = f"steps {max(first.number, 0)} to {last.number}"
    lines = [numbers, sanitize(", ".join(shorten(list(names), 3)), 60)]
    return [*lines, f"next: {sanitize(', '.join(last.next), 60)}"] if last.next else lines


# -- two of them -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison(ChangeList):
    """Two lines of checkpoints: what they share, what only one of them has, and the changes that
    turn the state of the first into that of the second."""

    one: Trace
    other: Trace
    changes: tuple[Change, ...]

    def blocks(self) -> Iterator[Block]:
        """Yield what they share, what each has of its own, and how their states differ."""
        both = sum(
            a.checkpoint == b.checkpoint and a.checkpoint is not None
            for a, b in zip(self.one.steps, self.other.steps, strict=False)
        )
        yield Block("both", (), _list_steps(self.one.steps[:both]))
        yield Block("only the first", (), _list_steps(self.one.steps[both:]))
        yield Block("only the second", (), _list_steps(self.other.steps[both:]))
        yield Block("state: from the first to the second", self.changes)

    def __repr__(self) -> str:
        return f"<Comparison of two lines: {count_noun(len(self.changes), 'change')}>"


def compare(
    app: Pregel, one: AnyConfig, other: AnyConfig, limits: DiffLimits = DIFF_LIMITS
) -> Comparison:
    """Compare two branches of a thread, or two threads.

    Args:
        one, other: a thread, or one of its checkpoints: `branches(app, config).tips` has the ends
            of branches.
        limits: how much to show of the states.

    Raises:
        TypeError, ValueError: as `branches` does.
    """
    before, after = (read_snapshot(app, config).values for config in (one, other))
    changes = diff(before, after, limits)
    return Comparison(read_trace(app, one), read_trace(app, other), changes)


def _list_steps(steps: Iterable[TraceStep]) -> list[str]:
    return shorten([headline(step) for step in steps], 2 * MOST_NAMES) or ["nothing"]
