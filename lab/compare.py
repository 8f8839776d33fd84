"""`compare`: two threads, or two branches of one, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, NamedTuple

from ..pregel.app import Pregel, check_compiled
from ..pregel.types import AnyConfig
from ..testing.comparing import hide_ids
from ..testing.recording import RecordedTask
from ..testing.thread_reader import read_thread
from ..visualize.trace.changes import Block, ChangeList
from ..visualize.trace.diff import Change, diff
from ..visualize.trace.values import count_noun


class Pair(NamedTuple):
    """The same step of two threads, or a step of one.

    Attributes:
        number, other_number: which step of each it is, from 1; None where it has none like it.
        nodes: those that ran.
        changes: what is different in the second: inputs, writes, routes, questions, errors.
    """

    number: int | None
    other_number: int | None
    nodes: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Comparison(ChangeList):
    """Two threads, step by step. Notebooks show it.

    Attributes:
        pairs: the steps, aligned by the nodes that ran in them and not by their numbers.
        state: how the states at the end differ.
    """

    pairs: tuple[Pair, ...]
    state: tuple[Change, ...]

    @property
    def same(self) -> bool:
        """Whether both did the same."""
        alike = all(each.number and each.other_number and not each.changes for each in self.pairs)
        return alike and not self.state

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]
        """The comparison in a sentence."""
        different = [each for each in self.pairs if each.changes or not each.number]
        return (
            "both did the same"
            if self.same
            else f"{len(different)} of {count_noun(len(self.pairs), 'step')} differ",
        )

    def blocks(self) -> Iterator[Block]:
        """Yield a block for each step that differs, and one for the state at the end."""
        for each in self.pairs:
            nodes = ", ".join(each.nodes)
            if each.number is None:
                yield Block(f"only the second, step {each.other_number}: {nodes}", each.changes)
            elif each.other_number is None:
                yield Block(f"only the first, step {each.number}: {nodes}", each.changes)
            elif each.changes:
                yield Block(f"step {each.number} and {each.other_number}: {nodes}", each.changes)
        if self.state:
            yield Block("the state at the end", self.state)


def compare(
    app: Pregel[Any, Any, Any, Any],
    one: AnyConfig,
    other: AnyConfig,
    *,
    other_app: Pregel[Any, Any, Any, Any] | None = None,
) -> Comparison:
    """Compare two stored threads, or two branches of one.

    Steps are aligned by the nodes that ran in them, so a step more in one does not make all that
    follow different. Random ids (UUIDs) count as the same.

    Args:
        app: the graph that ran them, with its checkpointer. It is only read.
        one, other: the threads; with a `checkpoint_id`, the line that leads there.
        other_app: the graph that ran the second, if it is another.

    Raises:
        TypeError: the graph is not compiled.
        ThreadError: one of them cannot be read as runs; says why.
    """
    check_compiled(app)
    first, second = read_thread(app, one), read_thread(other_app or app, other)
    left = [step for run in first.runs for step in run.steps]
    right = [step for run in second.runs for step in run.steps]
    names = [[tuple(task.node for task in step) for step in steps] for steps in (left, right)]
    pairs: list[Pair] = []
    for kind, i, j, k, m in _align(*names):
        if kind == "equal":
            for a, b in zip(range(i, j), range(k, m), strict=True):
                changed = diff(_forms(left[a]), _forms(right[b]))
                pairs.append(Pair(a + 1, b + 1, names[0][a], changed))
            continue
        pairs += [Pair(a + 1, None, names[0][a], diff(_forms(left[a]), {})) for a in range(i, j)]
        pairs += [Pair(None, b + 1, names[1][b], diff({}, _forms(right[b]))) for b in range(k, m)]
    ends = (hide_ids(each.runs[-1].state) for each in (first, second))
    return Comparison(tuple(pairs), diff(*ends))


def _align(one: list[Any], other: list[Any]) -> Iterator[tuple[str, int, int, int, int]]:
    """What stays, goes and comes, as `SequenceMatcher` says it; what they begin with stays."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    yield "equal", 0, same, 0, same
    rest = SequenceMatcher(a=one[same:], b=other[same:], autojunk=False)
    for kind, *places in rest.get_opcodes():
        i, j, k, m = (each + same for each in places)
        yield kind, i, j, k, m


def _forms(step: tuple[RecordedTask, ...]) -> dict[str, Any]:
    """What the tasks of a step did, by their nodes; their ids say nothing."""
    found: dict[str, Any] = {}
    for number, task in enumerate(step):
        name = task.node if task.node not in found else f"{task.node} {number + 1}"
        form = hide_ids(task.to_json()).items()
        found[name] = {key: each for key, each in form if key not in ("node", "id", "ids")}
    return found
