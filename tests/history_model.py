"""What a thread of one small graph must look like after any sequence of calls: a model made of plain records.

The graph: START -> p, q, r in one superstep; z joins them. p logs, q asks two questions in a row, r asks one.
Nothing here imports the engine. `test_history_model` makes the same calls to both and compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

ASKED = {"p": 0, "q": 2, "r": 1}
ALL = frozenset(ASKED)
NOTHING = object()


class Refused(Exception):
    """The call must raise, and leave everything as it was."""


@dataclass(frozen=True)
class Point:
    """A checkpoint: the state, and what was kept beside it."""

    source: str
    step: int
    parent: int | None
    log: tuple[Any, ...] = ()
    given: tuple[Any, ...] | None = None  # input that START has not spread yet
    pending: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    z: bool = False
    # Beside it: what finished tasks wrote, answers by task, tasks with an open or answered question, a command's update.
    done: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    update: tuple[Any, ...] = ()
    touched: bool = False

    def bare(self, **changes: Any) -> Point:
        """The state alone, a command's update folded in."""
        beside: dict[str, Any] = {"done": {}, "answers": {}, "asked": {}, "update": (), "touched": False}
        return replace(self, log=self.log + self.update, **beside, **changes)

    @property
    def tasks(self) -> tuple[str, ...]:
        """What runs next, in path order."""
        start = ("__start__",) if self.given is not None else ()
        return (*start, *sorted(self.pending), *(("z",) if self.z else ()))

    def shown(self) -> Any:
        """The row that history shows."""
        return (self.source, self.step, self.parent, [*self.log, *self.update], self.tasks)

    def live(self) -> Any:
        """What the head shows: log, next and open questions."""
        log = [*self.log, *self.update, *(item for t in sorted(self.done) for item in self.done[t])]
        following = tuple(t for t in self.tasks if t not in self.done)
        return log, following, [f"{t}{self.asked[t]}" for t in sorted(self.asked) if t not in self.done]


class Thread:
    """The model: a list of points, the last committed being the head."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._forked = False

    @property
    def head(self) -> int:
        return len(self.points) - 1

    # -- calls ------------------------------------------------------------------------------------------------

    def input(self, at: int | None, items: tuple[Any, ...]) -> Any:
        """New input, at the head or at an old point: what was pending is dropped."""
        base = self.points[self.head if at is None else at].bare() if self.points else Point("", -2, None)
        joined = frozenset() if base.z else base.joined
        parent = (self.head if at is None else at) if self.points else None
        point = replace(base, source="input", step=base.step + 1, parent=parent, given=items, pending=frozenset())
        self.points.append(replace(point, joined=joined, z=False))
        return self._run({}, NOTHING)

    def go_on(self, at: int | None) -> Any:
        """None: at the head, or (named) done anew."""
        if not self.points:
            raise Refused
        if at is not None:
            self._fork(at)
            if at != self.head and not self._forked:
                return self._result(self.points[at], live=False)
        return self._run({}, NOTHING)

    def update(self, items: tuple[Any, ...]) -> Any:
        """A command with an update, at the head."""
        head = self.points[self.head]
        self.points[self.head] = replace(head, update=head.update + items, touched=True)
        return self._run({}, NOTHING)

    def open(self, at: int | None) -> dict[str, int]:
        """Task → number of its question that an answer may name; at an old point also answered ones."""
        point = self.points[self.head if at is None else at]
        again = at is not None and at != self.head
        return {t: k for t, k in sorted(point.asked.items()) if again or t not in point.done}

    def answer(self, at: int | None, answers: dict[str, Any], single: Any = NOTHING) -> Any:
        """Answers by task (their open question), or a single one."""
        if not self.points:
            raise Refused
        where = self.head if at is None else at
        point, waiting = self.points[where], self.open(at)
        if not point.tasks or set(answers) - set(waiting) or (single is not NOTHING and len(waiting) > 1):
            raise Refused
        if single is not NOTHING and len(waiting) == 1:
            answers, single = {next(iter(waiting)): single}, NOTHING
        if where != self.head:
            kept = {t: a[: point.asked.get(t, len(a))] for t, a in point.answers.items()}
            self._fork(where, kept)
        return self._run(answers, single)

    def edit(self, at: int | None, as_node: str, items: tuple[Any, ...]) -> None:
        """update_state."""
        where = self.head if at is None else at
        point = self.points[where] if self.points else Point("", -1, None)
        done = point.done if where == self.head else {}
        base = point.bare(source="update", step=point.step + 1, parent=where if self.points else None)
        if as_node == "__copy__":
            if not self.points:
                raise Refused
            self.points.append(replace(base, source="fork", parent=point.parent, done=dict(done), touched=bool(done)))
            return
        if as_node == "__end__":
            log = base.log + tuple(item for t in sorted(done) for item in done[t])
            joined = (frozenset() if base.z else base.joined) | (ALL & set(done))
            joined = frozenset() if joined == ALL else joined
            self.points.append(replace(base, log=log, given=None, pending=frozenset(), joined=joined, z=False))
            return
        in_place = as_node in point.pending or (as_node == "z" and point.z)
        # The join stays full if nobody acts for z: what z has done stays beside the new checkpoint, where it is done, too.
        again = {"z": done["z"]} if "z" in done and as_node != "z" else {}
        done = {t: found for t, found in done.items() if t not in again}
        writes = [*sorted((t, 0, done[t]) for t in done), (as_node if in_place else "", 1, list(items))]
        log = base.log + tuple(item for _, _, found in sorted(writes, key=lambda w: w[:2]) for item in found)
        z = base.z and as_node != "z"
        joined = (base.joined if z or not base.z else frozenset()) | (ALL & {*done, as_node})
        left = base.pending - frozenset(done) - {as_node} if in_place else frozenset()
        kept = left if where == self.head else ()  # their questions stay open, and what was answered stays answered
        self.points.append(
            replace(
                base, log=log, joined=joined, z=z or joined == ALL, given=None, pending=left, done=again,
                answers={t: a for t, a in point.answers.items() if t in kept},
                asked={t: k for t, k in point.asked.items() if t in kept},
            )
        )  # fmt: skip

    # -- what follows -----------------------------------------------------------------------------------------

    def _fork(self, at: int, answers: dict[str, Any] | None = None) -> None:
        """A branch of its own, unless there is nothing to do or the head was made for it and is untouched."""
        point = self.points[at]
        fresh = at == self.head and point.source in ("update", "fork") and not point.touched
        self._forked = bool(point.update or (point.tasks and not fresh))
        if self._forked:
            fork = point.bare(source="fork", step=point.step + 1, parent=at)
            self.points.append(replace(fork, answers=dict(answers or {})))

    def _run(self, answers: dict[str, Any], single: Any) -> Any:
        """Superstep after superstep, from the head."""
        while True:
            here = self.points[self.head]
            if not here.tasks:
                return self._result(here, live=True)
            base = here.bare(source="loop", step=here.step + 1, parent=self.head)
            if here.given is not None:
                self.points.append(replace(base, log=base.log + here.given, given=None, pending=ALL))
                continue
            done, known, asked = dict(here.done), dict(here.answers), dict(here.asked)
            if here.z:
                done["z"] = ["z"]
            for name in sorted(here.pending - set(done)):
                got = list(known.get(name, ()))
                while len(got) < ASKED[name]:
                    if name in answers:
                        got.append(answers.pop(name))
                    elif single is not NOTHING:
                        got.append(single)
                        single = NOTHING
                    else:
                        break
                known[name] = tuple(got)
                if len(got) == ASKED[name]:
                    done[name] = [(name, *got)]
                else:
                    asked[name] = len(got)
            self.points[self.head] = replace(here, done=done, answers=known, asked=asked, touched=True)
            if here.pending - set(done):
                return self._result(self.points[self.head], live=True)
            items = tuple(item for name in sorted(done) for item in done[name])
            joined = (frozenset() if here.z else base.joined) | here.pending
            self.points.append(replace(base, log=base.log + items, pending=frozenset(), z=joined == ALL, joined=joined))

    def _result(self, point: Point, live: bool) -> Any:
        """What the call returns: the log, and the questions that are open."""
        log, _, questions = point.live() if live else ([*point.log, *point.update], (), [])
        return log, questions
