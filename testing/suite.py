"""The entry points of the suite: subclass `SaverChecks` for pytest, or use `check_saver`.

pytest is not imported: it finds `pytest_generate_tests` on the class, and takes `unittest.SkipTest`
as a skip.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import SkipTest

from ..checkpoint.base import BaseCheckpointSaver
from . import (
    commits,
    concurrency,
    contract,
    crash,
    damage,
    engine,
    hostile,
    listing,
    pruning,
    storage,
)
from .asserts import MODES, CheckFailed
from .conformance import CHECKS, GROUPS, NEEDS, Check
from .harness import Harness
from .processes import CannotStart

ROOMS = (
    contract,
    commits,
    listing,
    pruning,
    engine,
    concurrency,
    crash,
    damage,
    hostile,
    storage,
)
"""Where the checks are written; importing these fills `CHECKS`."""


class Case(NamedTuple):
    """A check in one mode."""

    check: Check
    mode: str

    @property
    def name(self) -> str:
        """As pytest shows it."""
        return f"{self.check.group}-{self.check.name}-{self.mode}"


class SaverChecks:
    """Defines how to open a checkpointer, and generates one test per check and mode.

    Name the subclass `Test...` and pytest runs it. The hooks below `open` are optional: checks that
    need a missing one are skipped, with the reason.

    >>> from stategraph.checkpoint import InMemorySaver
    >>> class TestMine(SaverChecks):
    ...     durable = False
    ...     def open(self, folder):
    ...         return InMemorySaver()
    >>> check_saver(TestMine, only=["list"]).ok
    True
    """

    durable = True
    """What was stored is there when the same folder is opened again, also after the process was
    killed."""

    modes: Collection[str] = MODES
    """Which faces to call: "sync", "async", or both."""

    scale = 1
    """How much the checks that repeat do; 1 takes seconds, 100 many minutes."""

    seed = 0
    """The seed of random choices. A failing check names it."""

    skip: Mapping[str, str] = {}
    """Checks that are known to fail, by name, and why. They are shown as skipped."""

    def open(self, folder: Path) -> Any:
        """A checkpointer on the storage that this folder stands for: a checkpointer, or a context
        manager that gives one.

        The folder is there and empty at first; a checkpointer whose bytes are elsewhere takes its
        path as a name. The same folder again is the same storage again, also in another process and
        while the first is open; a checkpointer that is not durable gives a fresh one."""
        raise NotImplementedError(f"{type(self).__name__} must define open(folder)")

    def damage(self, folder: Path, random: Random) -> str:
        """Damage the closed storage in one random place: flip a bit, cut a value, swap two rows,
        delete one.

        Returns:
            What was done, in words. For SQLite files there is `damage_sqlite`.
        """
        raise NotImplementedError

    def full(self, saver: Any, room: int) -> AbstractContextManager[None]:
        """Inside the `with` block the storage of this open checkpointer may grow by about `room`
        bytes and no more."""
        raise NotImplementedError

    def size(self, folder: Path) -> int:
        """How many bytes the closed storage takes."""
        raise NotImplementedError

    name = ""
    """In reports; that of the class by default."""

    # -- running -----------------------------------------------------------------------------------

    def cases(self, only: Collection[str] = ()) -> list[Case]:
        """Every check in each of its modes.

        Args:
            only: groups, or patterns of names such as `"*_before_*"`; all by default.

        Raises:
            ValueError: one of `only` names nothing.
        """
        for each in only:
            if not any(_is_named(check, each) for check in CHECKS.values()):
                known = ", ".join(GROUPS)
                raise ValueError(f"only must name groups or checks, got {each!r}; groups: {known}")
        return [
            Case(check, mode)
            for group in GROUPS
            for check in CHECKS.values()
            if check.group == group
            for mode in check.modes
            if mode in self.modes
            and (not only or any(_is_named(check, each) for each in only))
        ]

    def run(self, case: Case, folder: Path) -> None:
        """Run one check on a separate storage in this folder.

        Raises:
            CheckFailed: the rule is broken.
            unittest.SkipTest: it cannot be run; says why.
        """
        check, mode = case
        if check.name in self.skip:
            raise SkipTest(self.skip[check.name])
        try:
            with Harness(self, folder / "storage", mode, self.seed) as harness:
                for need in check.needs:
                    if not self._has(harness.saver, need):
                        raise SkipTest(NEEDS[need])
                check.run(harness)
        except CannotStart as error:
            raise SkipTest(str(error)) from error
        except Exception as error:
            error.add_note(f"{check.name} ({mode}, seed {self.seed}): {check.about}")
            raise

    def _has(self, saver: BaseCheckpointSaver, need: str) -> bool:
        """Whether the suite or the checkpointer defines itself what a check needs."""
        if need == "durable":
            return self.durable
        base: Any = BaseCheckpointSaver if hasattr(BaseCheckpointSaver, need) else SaverChecks
        owner: Any = self if base is SaverChecks else saver
        names = [name for name in (need, f"a{need}") if hasattr(base, name)]
        return any(getattr(owner, name) != getattr(base, name).__get__(owner) for name in names)

    # -- the faces for pytest ----------------------------------------------------------------------

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test per case."""
        if "case" in metafunc.fixturenames:
            cases = self.cases()
            metafunc.parametrize("case", cases, ids=[case.name for case in cases])

    def test_saver(self, case: Case, tmp_path: Path) -> None:
        """What pytest calls for each."""
        self.run(case, tmp_path)


def _is_named(check: Check, only: str) -> bool:
    """Whether a group, or a pattern of names, means this check."""
    return check.group == only or fnmatch(check.name, only)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How one case ended: `outcome` is "ok", "failed" or "skipped"; `text` says why not ok;
    `seconds` it took."""

    case: Case
    outcome: str
    text: str = ""
    seconds: float = 0.0
    error: BaseException | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """What came of a suite; `print` it for a table."""

    name: str
    seed: int
    results: list[CaseResult]

    @property
    def ok(self) -> bool:
        """No check failed."""
        return not self.failed

    @property
    def failed(self) -> dict[str, str]:
        """Check → what was expected and what came."""
        return {
            result.case.check.name: result.text
            for result in self.results
            if result.outcome == "failed"
        }

    def __str__(self) -> str:
        """A line for each case, and one that says how many, how long, from which seed."""
        outcomes = [result.outcome for result in self.results]
        counts = ", ".join(
            f"{outcomes.count(outcome)} {outcome}" for outcome in ("ok", "failed", "skipped")
        )
        seconds = sum(result.seconds for result in self.results)
        ending = f"{self.name}: {counts} in {seconds:.1f} s (seed {self.seed})"
        return "\n".join([*map(_format, self.results), ending])


def _format(result: CaseResult) -> str:
    """A result as a line of the table, with what failed below it."""
    check, mode = result.case
    mark = {"ok": "ok  ", "failed": "FAIL", "skipped": "skip"}[result.outcome]
    rule = check.name.replace("_", " ")
    head = f"{mark}  {check.group:<11} {mode:<5} {result.seconds:6.2f} s  {rule}"
    if result.outcome == "skipped":
        return f"{head}: {result.text}"
    return (
        head if result.outcome == "ok" else f"{head}\n      {check.about}\n      -> {result.text}"
    )


Checked = SaverChecks | type[SaverChecks] | Callable[[Path], Any]
"""What can be checked: a suite, its class, or a function that opens a checkpointer on a folder."""


def make_suite(what: Checked, **settings: Any) -> SaverChecks:
    """A suite, with settings such as `durable`, `scale`, `seed`.

    Raises:
        TypeError: it is neither a suite nor a function, or there is no such setting.
    """
    if isinstance(what, type) and issubclass(what, SaverChecks):
        what = what()
    if not isinstance(what, SaverChecks):
        if not callable(what):
            raise TypeError(
                f"check_saver() must be given a SaverChecks or a function of a folder, got {what!r}"
            )
        opens: Any = what
        what = SaverChecks()
        what.open = opens  # type: ignore[method-assign]  # a suite made of a function
        what.name = getattr(opens, "__name__", repr(opens))
    for name, value in settings.items():
        if name not in ("durable", "modes", "scale", "seed", "skip"):
            raise TypeError(f"unknown setting {name!r}; known: durable, modes, scale, seed, skip")
        setattr(what, name, value)
    return what


def check_saver(
    what: Checked,
    *,
    only: Collection[str] = (),
    tell: Callable[[CaseResult], None] | None = None,
    **settings: Any,
) -> SuiteReport:
    """Run the checks and report how each ended.

    Args:
        what: a `SaverChecks`, its class, or a function that opens a checkpointer on a folder.
        only: groups, or patterns of names; all by default.
        tell: called with each result as it comes.
        settings: the attributes of `SaverChecks`: `durable`, `modes`, `scale`, `seed`, `skip`.

    Raises:
        TypeError: `what` or a setting is of the wrong kind.
        ValueError: one of `only` names nothing.

    >>> from stategraph.checkpoint import InMemorySaver
    >>> report = check_saver(lambda folder: InMemorySaver(), durable=False, only=["clock"])
    >>> report.ok
    True
    """
    if isinstance(only, str):
        raise TypeError(f"only must be a list, got a string: pass [{only!r}]")
    suite = make_suite(what, **settings)
    results = []
    with tempfile.TemporaryDirectory(prefix="saver-checks-") as folder:
        for number, case in enumerate(suite.cases(only)):
            results.append(_run(suite, case, Path(folder, str(number))))
            if tell is not None:
                tell(results[-1])
    return SuiteReport(suite.name or type(suite).__name__, suite.seed, results)


def _run(suite: SaverChecks, case: Case, folder: Path) -> CaseResult:
    folder.mkdir()
    result, began = CaseResult(case, "ok"), time.perf_counter()
    try:
        suite.run(case, folder)
    except SkipTest as error:
        result = CaseResult(case, "skipped", str(error))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        text, place = f"{type(error).__name__}: {error}", frames[-1]
        if isinstance(error, CheckFailed):
            text = str(error)
            place = next((each for each in frames if each.name == case.check.name), place)
        text = f"{text} ({Path(place.filename).name}:{place.lineno}, seed {suite.seed})"
        result = CaseResult(case, "failed", text, error=error)
    return replace(result, seconds=time.perf_counter() - began)
