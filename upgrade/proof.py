"""`prove`: a verdict on every stored thread, by comparing what two graphs would do next with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..channels.base import check_kind
from ..checkpoint.base import BaseCheckpointSaver, address
from ..pregel.app import Pregel, check_compiled
from ..pregel.drivers import threads as threads_driver
from ..pregel.run.update_state import store_migrated
from ..pregel.task.interrupts import identity_of
from .outline import Outline, converted, differences, migration_of, outline
from .outlook import LevelOutlook, Outlook, TaskOutlook, look

Kind = Literal["same", "migrates", "changes", "breaks"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Reason = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one thread.

    Attributes:
        kind: "same": the same tasks are pending, the state loads, questions keep their ids, and
            nothing ahead of them differs. "migrates": so it is with what `migrate` makes of the
            thread. "changes": it continues, but otherwise. "breaks": it cannot continue, or loses
            a question.
        reasons: sentences, the gravest first.
        next: the nodes that the next call runs.
    """

    thread_id: str
    kind: Kind
    reasons: tuple[str, ...] = ()
    next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdicts on all threads.

    Attributes:
        verdicts: one for each thread that belongs to the graph.
        others: how many threads were left out, because other graphs have stored them.
        compared: whether there was an old graph to compare with; without one, edges and joins that
            differ ahead of a thread are not seen.
    """

    verdicts: tuple[Verdict, ...]
    others: int = 0
    compared: bool = True

    @property
    def holds(self) -> bool:
        """Whether no thread breaks."""
        return not any(verdict.kind == "breaks" for verdict in self.verdicts)

    def count(self) -> dict[Kind, int]:
        """Return how many threads have each verdict."""
        found = Counter(verdict.kind for verdict in self.verdicts)
        return {kind: found[kind] for kind in KINDS}

    def by_reason(self) -> dict[tuple[Kind, str], list[Verdict]]:
        """Return the threads by verdict and first reason, the gravest and then the most frequent
        first."""
        found: dict[tuple[Kind, str], list[Verdict]] = {}
        for verdict in self.verdicts:
            reason = verdict.reasons[0] if verdict.reasons else ""
            found.setdefault((verdict.kind, reason), []).append(verdict)
        order = {kind: place for place, kind in enumerate(reversed(KINDS))}
        return dict(sorted(found.items(), key=lambda each: (order[each[0][0]], -len(each[1]))))


Before = Callable[[str], Outlook | None]
"""What the old graph would do next with a thread."""


def prove(
    new: Pregel[Any, Any, Any, Any],
    old: Pregel[Any, Any, Any, Any] | None = None,
    *,
    threads: Iterable[str] | None = None,
    filter: Mapping[str, Any] | None = None,
) -> Proof:
    """Return a verdict on each stored thread: what would become of it under a new version of its
    graph. Reads the threads and plans what would run next; runs no node and stores nothing.

    Args:
        new: the new version, with a checkpointer, and with the `migrate` that is to be deployed.
        old: the version that runs now, with a checkpointer of its own on the same database: types
            that only the old one knows must not be known to the new one. Without it, each thread
            is judged by what is stored.
        threads: the ids of the threads; all by default.
        filter: only threads with a checkpoint whose metadata has these values.

    Raises:
        TypeError: a graph is not compiled.
        ValueError: a graph has no checkpointer.
    """
    for which, app in {"new": new, **({} if old is None else {"old": old})}.items():
        check_compiled(app)
        if not isinstance(app.checkpointer, BaseCheckpointSaver):
            raise ValueError(
                f"the {which} graph must have a checkpointer to read threads from: "
                "compile(checkpointer=...)"
            )
    check_kind("threads", threads, Iterable | None, "ids of threads")
    given = new.checkpointer.threads(filter=filter) if threads is None else threads
    if old is None:
        return judge_all(new, given, None, None)
    return judge_all(new, given, lambda id: look(old, id), outline(old))


def judge_all(
    new: Pregel[Any, Any, Any, Any],
    threads: Iterable[str],
    before: Before | None,
    structure: Outline | None,
) -> Proof:
    """Return the verdicts on threads.

    Args:
        before: the outlook under the old graph; None: there is no old graph.
        structure: the structure of the old graph.
    """
    judge = _Judge(new, structure)
    verdicts, others = [], 0
    for thread_id in threads:
        known, after = _look_twice(new, thread_id, before)
        if after is None:
            continue
        if judge.is_mine(after):
            verdicts.append(judge.decide(known, after))
        else:
            others += 1
    return Proof(tuple(verdicts), others, before is not None)


def _look_twice(
    new: Pregel[Any, Any, Any, Any], thread_id: str, before: Before | None
) -> tuple[Outlook | None, Outlook | None]:
    """The outlooks under both graphs. A thread that moves on in between is looked at again; what
    an earlier proof has saved of it counts as unknown then."""
    known: Outlook | None = None
    for _ in range(LOOKS):
        known = None if before is None else before(thread_id)
        after = look(new, thread_id)
        if known is None or after is None or known.levels[0].head == after.levels[0].head:
            return known, after
    return None, after


LOOKS = 3
"""How often to look at a thread that moves on."""


class _Judge:
    """Compares what two graphs would do with a thread."""

    def __init__(self, new: Pregel[Any, Any, Any, Any], old: Outline | None) -> None:
        self._new = outline(new)
        self._old = None if old is None else converted(old, new)
        self._names = {name for name in new.program.fingerprint if name.startswith("node ")}
        self._names |= {f"node {name!r}" for name in (() if old is None else old.marks)}
        self._app = new
        self._names |= {f"node {name!r}" for name in migration_of(new).renamed}
        self._ahead: dict[Any, tuple[str, ...]] = {}

    def is_mine(self, after: Outlook) -> bool:
        """Whether the graph, or its old version, has stored a thread. Graphs that share a database
        are told apart by the names of their nodes."""
        names = {name for name in after.made_by if name.startswith("node ")}
        return not names or not self._names or not names.isdisjoint(self._names)

    def decide(self, before: Outlook | None, after: Outlook) -> Verdict:
        """Return the verdict on one thread."""
        reasons = [*self._compare(before, after)]
        order = {kind: place for place, kind in enumerate(reversed(KINDS))}
        reasons.sort(key=lambda reason: order[reason[0]])
        kind: Kind = reasons[0][0] if reasons else "same"
        texts = tuple(dict.fromkeys(text for _, text in reasons))
        return Verdict(after.thread_id, kind, texts, after.levels[0].next)

    def _compare(self, before: Outlook | None, after: Outlook) -> Iterator[Reason]:
        known = {} if before is None else {level.ns: level for level in before.levels}
        for level in after.levels:
            yield from self._compare_level(known.get(level.ns), level)
        for name in after.unknown:
            yield "changes", f"the graph that {name!r} calls is not known, so it was not proved"

    def _compare_level(
        self, before: LevelOutlook | None, after: LevelOutlook
    ) -> Iterator[Reason]:
        place = f"in {'|'.join(after.graph)!r}: " if after.graph else ""
        yield from (("breaks", place + text) for text in after.faults)
        lost: Kind = "breaks" if after.unasked else "changes"
        yield from ((lost, place + text) for text in after.lost)
        if after.changed:
            yield "migrates", f"{place}{', '.join(after.changed)}"
        if before is None or before.faults or after.faults:
            yield from (each for task in after.tasks for each in self._compare_inside(None, task))
            return
        mine = {task.id: task for task in after.tasks}
        for task in before.tasks:
            yield from self._compare_task(task, mine.pop(task.id, None), place)
        for task in mine.values():
            yield "changes", f"{place}node {task.name!r} runs next"
        if Counter(map(self._rename_in(after.graph), before.next)) != Counter(after.next):
            text = f"{_list(after.next)} in place of {_list(before.next)}"
            yield "changes", f"{place}the next call runs {text}"
        if self._old is not None:
            gone = [key for key in before.keys if f"key {key!r}" in self._gone_keys(after.graph)]
            yield from (("changes", f"{place}key {key!r} is gone, with its value") for key in gone)
            yield from (("changes", place + text) for text in self._find_ahead(before, after))

    def _compare_task(
        self, before: TaskOutlook, after: TaskOutlook | None, place: str
    ) -> Iterator[Reason]:
        name = repr(before.name)
        if after is None:
            if before.questions:
                yield "breaks", f"{place}node {name} loses its question"
            elif before.standing == "due":
                yield "changes", f"{place}node {name} does not run next"
            else:
                yield "changes", f"{place}node {name} starts over ({before.standing})"
            return
        if before.name != after.name and before.questions:  # a node's name is in their ids
            asked = [{*map(identity_of, each.questions)} for each in (before, after)]
            if asked[0] <= asked[1]:
                yield "migrates", f"{place}the questions of {after.name!r} have other ids"
            else:
                yield "breaks", f"{place}node {name} loses its question"
        elif set(before.questions) - set(after.questions):
            yield "breaks", f"{place}node {name} loses its question"
        elif before.standing != after.standing:
            yield "changes", f"{place}node {name} is {after.standing}, was {before.standing}"
        if before.inside is not None and after.inside is None:
            yield "changes", f"{place}the graph of node {name} starts over"
        yield from self._compare_inside(before, after)

    def _compare_inside(
        self, before: TaskOutlook | None, after: TaskOutlook
    ) -> Iterator[Reason]:
        if after.inside is not None:
            inside = None if before is None else before.inside
            yield from self._compare_level(inside, after.inside)

    def _rename_in(self, graph: tuple[str, ...]) -> Callable[[str], str]:
        """What becomes of names in the graph to which these nodes lead."""
        app: Any = self._app
        for name in graph:
            app = app and app.program.nested.get(name)
        return migration_of(app).rename_edge_end

    def _gone_keys(self, graph: tuple[str, ...]) -> set[str]:
        """The keys that the old graph has and the new one lacks."""
        assert self._old is not None
        old, new = self._old.inside(graph), self._new.inside(graph)
        if old is None or new is None:
            return set()
        return old.keys.keys() - new.keys.keys()

    def _find_ahead(self, before: LevelOutlook, after: LevelOutlook) -> tuple[str, ...]:
        """What differs ahead of the pending tasks: the same for all threads that wait at the same
        places."""
        due = tuple(sorted({task.name for task in before.tasks if task.standing != "finished"}))
        done = tuple(sorted({task.name for task in before.tasks if task.standing == "finished"}))
        where = (after.graph, due, done, before.waiting)
        if where not in self._ahead:
            assert self._old is not None
            old, new = self._old.inside(after.graph), self._new.inside(after.graph)
            # The edges of what has finished have been followed.
            edges = {} if old is None else old.edges
            rename = self._rename_in(after.graph)
            led = [end for name in done for end, *_ in edges.get(rename(name), ())]
            starts = {*map(rename, (*due, *before.waiting)), *led}
            found = () if old is None or new is None else differences(old, new, starts)
            self._ahead[where] = tuple(found)
        return self._ahead[where]


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def apply_migration(app: Pregel[Any, Any, Any, Any], verdict: Verdict) -> bool:
    """Store what `migrate` makes of a thread; returns whether there was anything to convert. A
    thread that breaks is left as it is.

    Raises:
        CheckpointConflictError: a run has gone on with the thread, and has converted it.
        ThreadUndoingError: it is being undone; it is converted when that goes on.
    """
    seen = None if verdict.kind == "breaks" else look(app, verdict.thread_id)
    found = [] if seen is None else [ns for level in seen.levels for ns in _find_changed(level)]
    for ns in found:
        run = app._editing(address(verdict.thread_id, ns))
        threads_driver.drive(run, store_migrated(run))
    return bool(found)


def _find_changed(level: LevelOutlook) -> Iterator[str]:
    """The namespaces of a graph, and of those inside it, that are to be converted."""
    if level.changed:
        yield level.ns
    for task in level.tasks:
        if task.inside is not None:
            yield from _find_changed(task.inside)
