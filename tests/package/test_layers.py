"""The layers of the package: imports point one way, and every file begins with its rule.

Reads the source with `ast`; imports nothing of the package. Modules are named from the root: `.pregel.run.loop`.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter

from kit.source import FILES, ROOT, name_of, packages, tree_of

# Which rooms a room may import. The root's own files, cli/ and examples/ may import everything.
MAY_IMPORT = {
    "channels": [],
    "checkpoint": [".channels"],
    "store": [".channels", ".checkpoint.serde", ".checkpoint.digest", ".checkpoint.keys", ".checkpoint.sql.sqlite_database", ".checkpoint.sql.postgres_server", ".checkpoint.errors", ".checkpoint.threads"],
    "pregel": [".channels", ".checkpoint", ".store"],
    "executors": [".pregel", ".checkpoint.serde.error_codec"],
    "graph": [".channels", ".checkpoint", ".store", ".pregel"],
    "prebuilt": [".pregel", ".graph"],
    "otel": [".pregel"],
    "visualize": [".channels", ".checkpoint", ".pregel", ".graph"],
    "workers": [".channels", ".checkpoint", ".pregel", ".graph"],
    "compat": [".channels", ".checkpoint", ".store", ".pregel", ".graph"],
    "serve": [".channels", ".checkpoint", ".store", ".pregel", ".graph", ".workers", ".visualize", ".otel"],
    "lab": [".channels", ".checkpoint", ".store", ".pregel", ".graph", ".prebuilt", ".testing", ".visualize"],
    "testing": [".channels", ".checkpoint", ".pregel", ".graph", ".visualize"],
    "upgrade": [".channels", ".checkpoint", ".pregel", ".graph", ".visualize", ".workers", ".testing", ".lab"],
}
EVERYWHERE = ".extras"  # imports nothing; every room's errors may quote it
# The layers of pregel/: each may import itself and those before it. What lies in the folder itself is at the bottom, but
# for those named here.
LAYERS = ["", "program", "task", "schedule", "run", "drivers", "api"]
NOT_AT_THE_BOTTOM = dict.fromkeys(["app", "run_api", "thread_api", "__init__"], "api")
# Arrows that run back, or that one function needs, so inside functions: the rooms are whole without these. The core has
# none: what it asks of other rooms is listed in `extras.PARTS`.
BACK = {
    (".compat.langgraph.remote", ".visualize"): "the peer's remote graph can draw itself",
    (".testing.models", ".compat.langchain.scripted"): "a scripted model is LangChain's where that is loaded",
    (".testing.queue_clock", ".workers"): "needs psycopg, an extra",
    (".serve.page.views", ".testing.saved_test"): "a thread is saved as a test",
    (".serve.service", "."): "the version is the root's",
    (".serve.runs.execution", ".compat.langchain.events"): "the events of LangChain, which only its users have",
    (".serve.authorize", ".compat"): "an `Auth` object of LangGraph's deployments",
    (".serve.command", ".compat.deployment"): "a `langgraph.json` among the graphs",
}
# What type checkers alone see: the type of what `get_graph` returns.
TYPES = {(".pregel.app", ".visualize.drawing"), (".graph.builder", ".visualize.drawing")}


def room(name):
    return name.split(".")[1]


def import_nodes(node: ast.AST, when="at once"):
    """Every import, and when it runs: at once, in a function, or never, since it is for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # most of a tree, and no place for an import
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from import_nodes(ast.Module(child.body, []), "never")
            yield from import_nodes(ast.Module(child.orelse, []), when)
        else:
            inside = when == "at once" and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from import_nodes(child, "in a function" if inside else when)


def imports(name):
    """(what is imported, when, file:line) for each import; our own modules begin with a dot."""
    for node, when in import_nodes(tree_of(name)):
        where = f"{FILES[name].relative_to(ROOT)}:{node.lineno}"
        if isinstance(node, ast.Import):
            yield from ((alias.name, when, where) for alias in node.names)
        elif not node.level:
            yield node.module or "", when, where
        else:
            folder = FILES[name].parents[node.level - 1].relative_to(ROOT).parts
            base = ".".join(["", *folder, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in FILES else base or "."), when, where


@cache
def all_imports():
    """(the module, what it imports, when, file:line) for each import of the package."""
    return [(name, *found) for name in FILES for found in imports(name)]


def points_down(name, target):
    if room(name) not in MAY_IMPORT:
        return True
    if room(target) == room(name):
        return room(name) != "pregel" or layer(target) <= layer(name)
    return target == EVERYWHERE or any(target == may or target.startswith(may + ".") for may in MAY_IMPORT[room(name)])


def layer(name):
    inner = (name.split(".")[2:] or ["__init__"])[0]
    return LAYERS.index(inner if inner in LAYERS else NOT_AT_THE_BOTTOM.get(inner, ""))


def may_run_back(name, target, when):
    if when == "never" and (name, target) in TYPES:
        return True
    return when != "at once" and any(name == who and (target == what or target.startswith(what + ".")) for who, what in BACK)


def test_imports_point_one_way():
    wrong = [
        f"{where}: {name} must not import {target}"
        for name, target, when, where in all_imports()
        if target.startswith(".") and not points_down(name, target) and not may_run_back(name, target, when)
    ]
    assert not wrong, "\n".join(["an arrow runs back:", *wrong])


def test_imports_make_no_circle():
    """Those inside functions and those for type checkers included. Where one closes a circle, a protocol is missing."""
    arrows = {}
    for name, target, _, _ in all_imports():
        if target.startswith("."):
            arrows.setdefault(name, set()).add(target)
    TopologicalSorter(arrows).prepare()  # CycleError shows the circle


def test_the_package_does_not_import_itself_by_name():
    wrong = [
        f"{where}: import {target}"
        for name, target, _, where in all_imports()
        if target.split(".")[0] == "stategraph" and room(name) != "examples"
    ]
    assert not wrong, "\n".join(["use relative imports:", *wrong])


def test_every_file_opens_with_its_rule():
    silent = [name for name in FILES if not ast.get_docstring(tree_of(name))]
    assert not silent, f"no docstring at the top, which says what lives here and what must not: {silent}"


def test_nothing_at_the_root_is_named_like_the_standard_library():
    names = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    clash = names & sys.stdlib_module_names
    assert not clash, f"tools that run from the root would import these instead: {clash}"


def test_every_package_folder_is_in_the_wheel():
    rooms = [path.parent for path in ROOT.glob("*/__init__.py")]
    folders = {name_of(path) for folder in rooms for path in folder.rglob("__init__.py")}
    assert folders <= set(packages()), f"add to packages in pyproject.toml: {folders - set(packages())}"


def test_tests_import_no_tests():
    """What several of them need is in `tests/kit`. Bugs that are planted into schedule="ready" run its own tests."""
    importing = re.compile(r"^\s*(from|import) test_", re.MULTILINE)
    found = {path.name for path in (ROOT / "tests").rglob("*.py") if importing.search(path.read_text())}
    assert found == {"test_ready_bugs.py"}
