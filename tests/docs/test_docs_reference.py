"""The reference pages are complete: every exception, every key of a config, every option of a call has a row."""

import inspect
import re
from importlib import import_module

import pytest
from kit.programs import ROOT

from stategraph.checkpoint.records import RunnableConfig
from stategraph.pregel.run import config

DOCS = ROOT / "docs"
ROOMS = ["channels", "checkpoint", "executors", "graph", "prebuilt", "pregel", "store", "testing", "visualize", "workers"]
PUBLIC = [
    "stategraph",
    *(f"stategraph.{room}" for room in ROOMS),
    "stategraph.checkpoint.postgres",
]


def first_cells(text):
    """The name in the first column of each row of the tables in a text."""
    return re.findall(r"^\| `(\w+)`[^|]*\|", text, re.MULTILINE)


def section(page, title):
    text = (DOCS / page).read_text()
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def public_errors():
    """The exceptions and warnings among the public names."""
    named = []
    for home in PUBLIC:
        module = pytest.importorskip(home)
        named += [(name, getattr(module, name)) for name in module.__all__]
    return {name for name, value in named if inspect.isclass(value) and issubclass(value, BaseException)}


def test_each_exception_has_a_row_with_its_cause_and_remedy():
    found = first_cells((DOCS / "reference/errors.md").read_text())
    assert sorted(found) == sorted(public_errors()), "docs/reference/errors.md: one row for each, and none left over"


def test_each_row_says_what_to_do():
    text = (DOCS / "reference/errors.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| `", line)]
    assert not [row for row in rows if not all(cell.strip() for cell in row) or len(row) < 2]


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Config", set(RunnableConfig.__annotations__)),
        ("In `configurable`", {*config.COORDINATES, "run_id"}),
        ("Options", set(config.Call.__dataclass_fields__)),
    ],
    ids=["config", "configurable", "options"],
)
def test_each_setting_has_one_row(title, names):
    assert sorted(first_cells(section("reference/config.md", title))) == sorted(names)


def test_the_api_pages_cover_every_public_module():
    """A module with public names that no page of docs/reference/api shows would be left out of the site."""
    pages = "".join(page.read_text() for page in (DOCS / "reference/api").glob("*.md"))
    shown = set(re.findall(r"^\.\. public-names:: (\S+)$", pages, re.MULTILINE))
    assert set(PUBLIC) <= shown
    rooms = {f"stategraph.{path.parent.name}" for path in ROOT.glob("*/__init__.py")}
    listed = {room for room in rooms if getattr(import_module(room), "__all__", None)}
    assert not listed - shown, "docs/reference/api: a page, and its line in extensions/public_names.py"


def test_thirty_questions_of_newcomers_have_a_page_that_answers():
    rows = [line for line in (DOCS / "newcomers.md").read_text().splitlines() if re.match(r"\| \d", line)]
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[0] == str(number) and cells[1].endswith("?"), row
        assert re.search(r"\]\([\w/.-]+\.md(#[\w-]+)?\)", cells[2]), f"no page answers: {row}"
        assert re.search(r"#\d+", cells[3]), f"no thread asked: {row}"
