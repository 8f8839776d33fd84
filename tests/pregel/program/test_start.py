"""What a call means: `decide`, case by case, and the tables of docs/reference/threads.md, which say the same."""

from __future__ import annotations

import os
import re
from itertools import product
from pathlib import Path

import pytest
from kit.drive import each_case

from stategraph.pregel.run.start import Delivery, Given, Meaning, Start, Stored, decide

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "threads.md"

CASES = {each.value: each for each in Delivery}
FIRST, STOPPED, TAKEN, FOLLOWED = CASES
NEW, GO_ON, TAKE, BY_COMMAND, AGAIN, REFUSE = (
    Meaning.NEW_INPUT,
    Meaning.GO_ON,
    Meaning.TAKE_COMMAND,
    Meaning.START_BY_COMMAND,
    Meaning.SHOW_AGAIN,
    Meaning.REFUSE,
)
# (given, stored) -> case -> (what the call means, does it branch?). What is not here cannot happen.
EXPECTED = {
    (Given.NOTHING, Stored.NOTHING): {FIRST: (REFUSE, False)},
    (Given.NOTHING, Stored.NEWEST): {FIRST: (GO_ON, False), STOPPED: (GO_ON, False)},
    (Given.NOTHING, Stored.EARLIER): {FIRST: (GO_ON, True), STOPPED: (GO_ON, True)},
    (Given.INPUT, Stored.NOTHING): {FIRST: (NEW, False)},
    (Given.INPUT, Stored.NEWEST): {
        FIRST: (NEW, False), STOPPED: (GO_ON, False), TAKEN: (GO_ON, False), FOLLOWED: (AGAIN, False),
    },
    (Given.INPUT, Stored.EARLIER): {
        FIRST: (NEW, True), STOPPED: (GO_ON, True), TAKEN: (GO_ON, True), FOLLOWED: (AGAIN, False),
    },
    (Given.ANSWERS, Stored.NOTHING): {FIRST: (REFUSE, False)},
    (Given.ANSWERS, Stored.NEWEST): {FIRST: (TAKE, False), TAKEN: (GO_ON, False), FOLLOWED: (AGAIN, False)},
    (Given.ANSWERS, Stored.EARLIER): {FIRST: (TAKE, True), TAKEN: (GO_ON, True), FOLLOWED: (AGAIN, False)},
    (Given.COMMAND, Stored.NOTHING): {FIRST: (BY_COMMAND, False)},
    (Given.COMMAND, Stored.NEWEST): {FIRST: (TAKE, False), TAKEN: (GO_ON, False), FOLLOWED: (AGAIN, False)},
    (Given.COMMAND, Stored.EARLIER): {FIRST: (TAKE, True), TAKEN: (GO_ON, True), FOLLOWED: (AGAIN, False)},
}  # fmt: skip
POSSIBLE = [(*pair, case) for pair, cases in EXPECTED.items() for case in cases]


def decided(given: Given, stored: Stored, case):
    return decide(given, stored, CASES[case])


@each_case("given, stored, case", POSSIBLE)
def test_what_a_call_means(given, stored, case):
    assert decided(given, stored, case) == Start(*EXPECTED[given, stored][case])


def test_every_pair_of_given_and_stored_has_a_row():
    assert list(EXPECTED) == list(product(Given, Stored))


def test_every_meaning_of_a_call_is_tested():
    assert {decided(*each).meaning for each in POSSIBLE} == set(Meaning)


# -- the page ---------------------------------------------------------------------------------------------------


def meanings():
    """What each meaning is, in the words of the code."""
    rows = [f"| `{meaning.name}` | {meaning.value} |" for meaning in Meaning]
    return "\n".join(["| meaning | what the call does |", "|---|---|", *rows])


def calls():
    """The whole of `decide`."""
    rows = []
    for given, stored in product(Given, Stored):
        cells = [shown(given, stored, case) for case in CASES]
        rows.append(f"| `{given.value}` | {stored.value} | {' | '.join(cells)} |".replace("`an input`", "an input"))
    head = ["given", "where the thread stands", *CASES]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def shown(given: Given, stored: Stored, case):
    if (given, stored, case) not in POSSIBLE:
        return "—"
    start = decided(given, stored, case)
    return f"`{start.meaning.name}`, branch" if start.branches else f"`{start.meaning.name}`"


@pytest.mark.parametrize("table", [meanings, calls], ids=lambda table: table.__name__)
def test_the_page_says_what_the_code_decides(table):
    name, text = table.__name__, PAGE.read_text()
    pattern = rf"(<!-- start: {name} -->\n)(.*?)(<!-- end: {name} -->)"
    [(_, written, _)] = re.findall(pattern, text, re.DOTALL)
    if os.environ.get("STATEGRAPH_RENEW"):
        PAGE.write_text(re.sub(pattern, lambda found: f"{found[1]}\n{table()}\n\n{found[3]}", text, flags=re.DOTALL))
        pytest.skip("the page was written anew")
    assert written.strip() == table(), "write it anew: STATEGRAPH_RENEW=1 make test ARGS=tests/pregel/program/test_start.py"
