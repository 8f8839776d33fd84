"""The pages that users read: their python runs, as one program each, their links lead somewhere, and the code that they
name is there."""

from __future__ import annotations

import ast
import os
import re
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from kit import chat_server, cluster
from kit.drive import each_case
from kit.programs import ROOT

PRODUCT = ["channels", "checkpoint", "store", "pregel", "executors", "graph", "prebuilt", "visualize", "workers", "compat", "testing", "cli", "serve", "otel", "upgrade", "lab"]
PAGES = [ROOT / "README.md", ROOT / "DESCRIPTION.md", ROOT / "cli/skill.md", *sorted((ROOT / "docs").rglob("*.md"))]


FENCE = re.compile(r"^```(?P<kind>python|output)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
SKIPPED = re.compile(r"<!-- not run: (\S.*?\S) -->\n+\Z")
"""Above a block of python that cannot run in a test, with the reason."""


def blocks_of(text):
    """The blocks of a page that run, and what is printed: kind, code and the line above it."""
    for block in FENCE.finditer(text):
        if not SKIPPED.search(text[: block.start()]):
            yield block["kind"], block["code"], text.count("\n", 0, block.start("code"))


PROGRAMS = [page for page in PAGES if any(kind == "python" for kind, _, _ in blocks_of(page.read_text()))]


@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs_top_to_bottom_as_one_program(
    page, tmp_path, monkeypatch, capsys
):
    """A block marked `output` shows what the python since the last one has printed."""
    program = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", program)  # so that annotations in it can be resolved
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    if "<!-- needs Postgres: url -->" in text:
        program.__dict__["url"] = cluster.shared().schema()
    with model_of(text, monkeypatch):
        run_blocks(page, program, capsys)


def run_blocks(page, program: ModuleType, capsys):
    for kind, code, above in blocks_of(page.read_text()):
        if kind == "output":
            assert capsys.readouterr().out.rstrip() == code.rstrip(), f"{page}:{above}"
        else:
            exec(compile("\n" * above + code, str(page), "exec"), program.__dict__)


MODEL = re.compile(r"<!-- needs a model: it calls (\w+), then says (.+) -->")


@contextmanager
def model_of(text, monkeypatch):
    """A stand-in for a model's server where a page needs one: it calls a tool, then answers word by word."""
    found = MODEL.search(text)
    if found is None:
        yield
        return
    call = {"index": 0, "id": "1", "function": {"name": found[1], "arguments": '{"name": "Etna"}'}}
    answers = [[{"tool_calls": [call]}], [{"content": word} for word in re.findall(r"\S+ ?", found[2])]]
    with chat_server.server([chat_server.events(each) for each in answers]) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield
    assert len(requests) == len(answers)


@each_case("page", sorted((ROOT / "docs" / "how-to").glob("*.md")))
def test_a_how_to_guide_has_at_most_1200_words_beside_its_code(page):
    words = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).split()
    assert len(words) <= 1200, f"{page.name}: {len(words)}; move rules to docs/reference"


def test_a_block_that_is_not_run_says_why():
    assert not [str(page) for page in PAGES if re.search(r"<!-- not run:?\s*-->", page.read_text())]


@each_case("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    assert not [target for target in targets if not (page.parent / target).exists()]


def anchors_of(text):
    """What GitHub and the site make of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading.lower())) for heading in headings]
    return {text.strip().replace(" ", "-") for text in words}


@each_case("page", PAGES)
def test_links_to_a_section_lead_to_one_that_is_there(page):
    links = re.findall(r"\]\(([\w/.-]*)#([\w-]+)\)", FENCE.sub("", page.read_text()))
    found = {(target, anchor): (page.parent / target if target else page).read_text() for target, anchor in links}
    assert not [f"{target}#{anchor}" for (target, anchor), text in found.items() if anchor not in anchors_of(text)]


def own_files():
    """The files of the repository; what was built, and other packages, are no part of it."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name == ".ci" or not name.startswith((".", "build", "__"))]
        yield from (Path(folder, name) for name in files)


def test_each_mention_of_a_page_names_one_that_is_there():
    """In code, errors, notebooks and pages: a page that moves is found by this."""
    gone = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in own_files()
        if path.suffix in (".py", ".md", ".ipynb", ".toml", "")
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(errors="replace"))
        if not (ROOT / page).exists()
    ]
    assert not gone


def test_no_page_says_to_install_from_an_index():
    """There is no package on any; errors take their words from `extras.install_command`."""
    wrong = re.compile(r"""pip install ["']?stategraph(?![-\w])""")
    ours = (path for path in own_files() if path.suffix in (".py", ".md", ".ipynb", ".toml"))
    assert not [str(path.relative_to(ROOT)) for path in ours if wrong.search(path.read_text(errors="replace"))]


def words_of(code):
    """Every name that code defines or uses, and every text in it that could be one."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize(("folder", "most"), [("learn", 1200), ("cookbook", 1200), ("how-to", 1200), ("explanation", 4000)])
def test_no_page_is_over_its_limit_of_words(folder, most):
    """Programs do not count: who copies one does not read it first."""
    counts = {
        path.name: len(re.sub(r"^```.*?^```|<!--.*?-->", "", path.read_text(), flags=re.MULTILINE | re.DOTALL).split())
        for path in (ROOT / "docs" / folder).glob("*.md")
    }
    assert counts and not {name: count for name, count in counts.items() if count > most}


@cache
def words_of_the_product():
    return {word for room in PRODUCT for path in (ROOT / room).rglob("*.py") for word in words_of(path.read_text())}


@pytest.mark.trial
@pytest.mark.parametrize("page", ["explanation/architecture.md", "reference/threads.md"])
def test_a_page_on_the_inside_names_code_that_is_there(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([^`\n]+)`", text))
    files = [str(path.relative_to(ROOT)) for room in [*PRODUCT, "tests"] for path in (ROOT / room).rglob("*.py")]
    paths = {name for name in named if name.endswith(".py")}
    assert not {name for name in paths if not any(f"/{file}".endswith(f"/{name}") for file in files)}
    modules = {part for file in files for part in Path(file).with_suffix("").parts}
    unknown = {
        name
        for name in named - paths
        if re.fullmatch(r"[A-Za-z_][\w.]*", name) and not {*name.split(".")} <= words_of_the_product() | modules | {"stategraph", "drive"}
    }
    assert not unknown, f"docs/{page} names what is not there: {sorted(unknown)}"


def test_the_table_of_article_names_leads_to_the_files_it_names():
    page = (ROOT / "docs/reference/glossary.md").read_text()
    [table] = re.findall(r"^## Names in articles.*?(^\| there .*?)\n(?:\n|\Z)", page, re.MULTILINE | re.DOTALL)
    for row in table.splitlines()[2:]:
        there, here, files = row.strip("| ").split(" | ")
        code = "".join(
            path.read_text() for file in re.findall(r"`([\w/]+\.py)`", files) for room in PRODUCT for path in (ROOT / room).rglob(Path(file).name)
        )
        named = {name.split(".")[-1] for name in re.findall(r"`([A-Za-z_][\w.]*)`", here) if not name.endswith(".py")}
        missing = {name for name in named - {"Send"} if not re.search(rf"\b{name}\b", code)}
        assert not missing, f"{there}: {missing} is not in {files}"
