"""What came of threads that were run again: records, and the table of all. Nothing is run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..testing.asserts import CheckFailed
from ..testing.comparing import Difference
from ..testing.recording import Recording, format_json
from ..visualize.trace.changes import Block, ChangeList
from ..visualize.trace.diff import Change
from ..visualize.trace.values import count_noun
from .calls import Call, Usage

MOST_SHOWN = 10
"""How many trials are drawn: those that differ most."""
NO_USAGE: Final = Usage(0, 0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One thread, run again.

    Attributes:
        thread: its id, or the name of its file.
        difference: the first difference; None if there is none.
        changes: how the state at the end differs.
        end, end_before: how the last run ended now and before: "done", "paused", "failed",
            "stopped"; "refused" if a node that does not run was given something of which nothing
            is recorded.
        nondeterministic: the node with the first difference, if neither its input nor a call made
            it: a clock, chance, the store, its context or something outside did.
        refused: the node that refused, and what it was given; "" if none did.
        steps, steps_before: how many supersteps there were.
        unreadable: why the stored thread cannot be run again; then the rest is empty.
        scores: what the judges said, by their names; "score" of one without a name.
        usage, usage_before: what models used.
        before, now: the two recordings; None if there is none.
        calls: those that the nodes which ran have made, and where their results came from.
        seconds: how long it took.
        kept_as: the id of its own thread in the `saver` that `whatif` was given.
    """

    thread: str
    difference: Difference | None = None
    changes: tuple[Change, ...] = ()
    end: str = ""
    end_before: str = ""
    nondeterministic: str = ""
    refused: str = ""
    steps: int = 0
    steps_before: int = 0
    unreadable: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    usage: Usage = NO_USAGE
    usage_before: Usage = NO_USAGE
    before: Recording | None = None
    now: Recording | None = None
    calls: tuple[Call, ...] = ()
    seconds: float = 0.0
    kept_as: str = ""

    @property
    def score(self) -> float | None:
        """The lowest score; None without judges."""
        return min(self.scores.values(), default=None)

    @property
    def same(self) -> bool:
        """Whether it did exactly what it had done before."""
        return self.difference is None and not self.refused and not self.unreadable


@dataclass(frozen=True)
class Trials(ChangeList):
    """A cohort of threads, run again. Notebooks show it, `draw_text` and `draw_html` draw it.

    Attributes:
        trials: one for each thread.
        ran: the nodes that ran; all others gave what is recorded.
        unused: keys of `answers` and `calls`, perhaps misspelt, that nothing asked or called.
    """

    trials: tuple[Trial, ...]
    ran: tuple[str, ...] = ()
    unused: tuple[Any, ...] = ()

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def __getitem__(self, place: int) -> Trial:
        return self.trials[place]

    @property
    def different(self) -> list[Trial]:
        """Return those that did something else, or were refused."""
        return [each for each in self.trials if not each.same and not each.unreadable]

    @property
    def worse(self) -> list[Trial]:
        """Return those with a score below 0."""
        return [each for each in self.trials if each.score is not None and each.score < 0]

    @property
    def groups(self) -> dict[str, int]:
        """Return how many trials differ first in the same way, the most frequent way first."""
        return dict(Counter(map(_way_of, self.different)).most_common())

    def check(self, *, different: int | str | None = None, worse: int | str | None = None) -> None:
        """Check that few enough trials differ, or are worse.

        Args:
            different, worse: how many may at most; a number, or a share such as "5%".

        Raises:
            CheckFailed: there are more; an `AssertionError` that names the first of them. Also if
                no thread could be read.
        """
        if self.trials and all(each.unreadable for each in self.trials):
            raise CheckFailed(f"no thread could be read: {self.trials[0].unreadable}")
        for what, found, most in (
            ("different", self.different, different),
            ("worse", self.worse, worse),
        ):
            if most is not None and len(found) > self._number(most):
                first = found[0].difference or found[0].refused
                raise CheckFailed(
                    f"{len(found)} of {len(self)} trials are {what}, at most {most} may be. The "
                    f"first is thread {found[0].thread!r}: {first}"
                )

    def _number(self, most: int | str) -> float:
        if isinstance(most, int):
            return most
        try:
            return float(most.removesuffix("%")) * len(self) / (100 if most.endswith("%") else 1)
        except ValueError:
            raise ValueError(f'must be a number or a share such as "5%", got {most!r}') from None

    def save(self, path: str | Path) -> Path:
        """Write the threads as they were before to one file of recordings; `whatif` takes it, so
        that the cohort runs again without the database.

        Returns:
            The path.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        found = [
            {"thread": each.thread, **each.before.to_json()}
            for each in self.trials
            if each.before is not None
        ]
        path.write_text(format_json(found) + "\n", "utf-8")
        return path

    # -- drawing -----------------------------------------------------------------------------------

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]
        """The cohort in a few sentences."""
        unread = [each for each in self.trials if each.unreadable]
        refused = [each for each in self.trials if each.refused]
        scores: dict[str, list[float]] = {}
        for each in self.trials:
            for name, score in each.scores.items():
                scores.setdefault(name, []).append(score)
        told = [
            f"{count_noun(len(self), 'thread')}: {len(self) - len(self.different) - len(unread)} "
            f"the same, {len(self.different)} different"
            + (f" ({len(refused)} refused)" if refused else "")
            + (f", {len(unread)} that cannot be run again" if unread else "")
        ]
        told += [f"{each.thread}: {each.unreadable}" for each in unread[:MOST_SHOWN]]
        if self.unused:
            told.append(f"nothing asked or called: {', '.join(map(repr, self.unused))}")
        if self.ran:
            told.append(f"ran: {', '.join(self.ran)}")
        if refused:
            told.append(
                "refused: nothing is recorded of what was asked there. A node runs if it is live, "
                "or its effect is called; a call is made by its policy"
            )
        unsteady = Counter(each.nondeterministic for each in self if each.nondeterministic)
        for node, number in unsteady.items():
            told.append(
                f"{count_noun(number, 'thread')}: node {node!r} was given the same, so it reads "
                "what is not recorded: a clock, chance, the store, its context, something outside"
            )
        for name, found in scores.items():
            of = f"of {count_noun(len(found), 'thread')}, " if len(found) < len(self) else ""
            average = sum(found) / len(found)
            told.append(f"{name}: {of}{average:.3g} on average, {_quantiles(found)}")
        for what, form in (("tokens", "{:,}"), ("usd", "${:,.4f}")):
            used = [
                sum(getattr(usage, what) for usage in usages)
                for usages in ([each.usage_before for each in self], [each.usage for each in self])
            ]
            if any(used):
                told.append(f"{what}: {{}} before, {{}} now".replace("{}", form).format(*used))
        came = Counter(call.came for each in self for call in each.calls)
        if came:
            told.append("calls: " + ", ".join(f"{number:,} {how}" for how, number in came.items()))
        told += [f"{count_noun(number, 'thread')}: {way}" for way, number in self.groups.items()]
        return tuple(told)

    def blocks(self) -> Iterator[Block]:
        """Yield a block for each of the trials that differ most."""
        most = sorted(self.different, key=lambda each: len(each.changes), reverse=True)
        for each in most[:MOST_SHOWN]:
            ends = f"{each.end_before} in {count_noun(each.steps_before, 'step')}, now {each.end} "
            lines = [ends + f"in {each.steps}"]
            if each.difference is not None:
                lines.append(f"first: {each.difference.where}: {each.difference.what}")
            if each.refused:
                lines.append(f"refused: {each.refused}")
            yield Block(f"thread {each.thread}", each.changes, lines, bool(each.refused))

    def __repr__(self) -> str:
        return f"<Trials of {self.remarks[0]}>"


def _way_of(trial: Trial) -> str:
    if trial.difference is None:
        return f"refused: {trial.refused}"
    where = trial.difference.where.rpartition(", ")[2]
    return f"{where}: {trial.difference.what}"


def _quantiles(scores: Sequence[float]) -> str:
    ordered: list[Any] = sorted(scores)
    return f"{ordered[0]:.3g} to {ordered[-1]:.3g}, median {ordered[len(ordered) // 2]:.3g}"
