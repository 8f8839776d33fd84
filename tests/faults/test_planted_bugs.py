"""The bugs that are planted on purpose: each is caught by the trial that is meant for it."""

import re
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.drive import draw, each_case
from kit.planted import is_misfit

from faults import bugs_above, bugs_below, bugs_protocol, bugs_savers, rooms  # noqa: F401  # these fill BUGS and TRIALS
from faults.campaign import TRIALS, run_trial
from faults.planted import BUGS
from stategraph.testing import Processes


@pytest.fixture(scope="module")
def processes():
    with Processes() as found:
        yield found


@each_case("name", BUGS)
def test_every_planted_bug_finds_its_place(name):
    """What it replaces is there, under that name; the trials, which take long, would notice no sooner than at night."""
    with ExitStack() as stack:
        BUGS[name].plant(stack)
    assert BUGS[name].caught_by in TRIALS


def test_every_planted_bug_has_a_row_in_the_docs():
    page = (Path(__file__).resolve().parents[2] / "benchmarks/RELIABILITY.md").read_text()
    section = page.partition("## Planted bugs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|:]+): .* \| (.+) \|$", section, re.MULTILINE)
    assert sorted(rows) == sorted((_words(name), _words(bug.caught_by)) for name, bug in BUGS.items())


def _words(name):
    return name.replace("_", " ")


@pytest.mark.trial
def test_every_planted_bug_is_caught_by_the_trial_that_is_meant_for_it(processes, pytestconfig):
    caught = {}
    for name in draw(BUGS, pytestconfig):
        bug = BUGS[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bug may leave something open
            trial = TRIALS[bug.caught_by]
            record = run_trial(trial, range(bug.rounds), bug=name, most=1, processes=processes)
        if record.skipped:
            continue  # no Postgres, or no namespaces: then the trial itself is skipped as well, and CI requires them
        caught[name] = record.failures[0].split("\n")[0] if record.failures else ""
        print(f"{name:<28} {bug.caught_by:<26} {caught[name]:.120}")
    missed = [name for name, failure in caught.items() if not failure]
    assert not missed, f"nobody noticed these planted bugs: {missed}"
    misfits = {name: failure for name, failure in caught.items() if is_misfit(failure)}
    assert not misfits, f"these bugs do not fit the code any more: {misfits}"
    assert len(caught) >= 20
