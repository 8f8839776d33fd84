"""The house keeps its order: imports point one way, every file has its rule on its door.

Reads the source with `ast`; imports nothing of the package. Modules are named from the root: `.pregel.run.loop`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter

from kit.source import FILES, ROOT, name_of, packages, tree_of

# Which rooms a room may import. The root's own files, cli/ and examples/ may import everything.
MAY_IMPORT = {
    "channels": [],
    "checkpoint": [".channels"],
    "store": [".channels", ".checkpoint.serde", ".checkpoint.digest", ".checkpoint.keys", ".checkpoint.sql.sqlite_database", ".checkpoint.sql.postgres_server", ".checkpoint.errors", ".checkpoint.opening", ".checkpoint.threads"],
    "pregel": [".channels", ".checkpoint", ".store"],
    "executors": [".pregel"],
    "graph": [".channels", ".checkpoint", ".store", ".pregel"],
    "prebuilt": [".pregel", ".graph"],
    "otel": [".pregel"],
    "visualize": [".channels", ".checkpoint", ".pregel", ".graph"],
    "workers": [".channels", ".checkpoint", ".pregel", ".graph"],
    "compat": [".channels", ".checkpoint", ".store", ".pregel", ".graph"],
    "serve": [".channels", ".checkpoint", ".store", ".pregel", ".graph", ".workers", ".visualize"],
    "testing": [".channels", ".checkpoint", ".pregel", ".graph", ".visualize"],
}
EVERYWHERE = ".extras"  # imports nothing; every room's errors may quote it
# Inside pregel/: a file may import those on its own line (but not in a circle) and on the lines above.
PREGEL = """
    names policies
    clock
    types errors control
    running observer log
    stream_parts runtime program.results program.json_schema
    program.callables program.join
    program.flow
    program.writes
    program.channel_writes
    program.node
    program.version program.checks
    program.program
    program.hooked superstep.hooks
    observers
    superstep.observed
    superstep.deadline superstep.retry
    superstep.attempt_state
    superstep.context superstep.ids
    superstep.task_answers
    superstep.task superstep.state superstep.question_ids
    superstep.interrupts superstep.machine
    superstep.outcome
    superstep.race
    superstep.ready_memories
    superstep.ready_choice
    superstep.ready_races
    superstep.under_way
    superstep.flow_machine
    superstep.ready_joins superstep.requeue
    superstep.ready_machine
    run.tokens
    run.stream
    run.config run.checks run.claims
    run.task_records
    run.graph_changes
    run.position run.settings run.effects
    run.inbox
    run.answers run.commits run.output run.replay
    run.run
    run.observing
    run.surround
    run.snapshots run.history
    run.showing
    run.nested
    run.resume
    run.origins
    run.start run.load run.failures
    run.begin
    run.open_tasks run.update_tasks
    run.update_state
    run.loop
    run.ready_store
    run.ready_progress
    run.ready_loop
    drivers.forks drivers.timeslice drivers.steps drivers.backpressure drivers.abackpressure
    drivers.batch
    drivers.pool
    drivers.limit
    drivers.kept_checkpoints
    drivers.journal
    drivers.ajournal
    drivers.attempt drivers.loading
    drivers.waits
    drivers.awaits
    drivers.abatch drivers.racing
    drivers.aracing
    drivers.call_future drivers.once drivers.transaction
    drivers.sleeping
    drivers.futures drivers.afutures
    drivers.driver
    drivers.turns
    drivers.threads
    drivers.aio
    run.explain pickling
    thread_api edit_api run_api
    app
    program superstep run drivers __init__
"""
RANK = {name: rank for rank, line in enumerate(PREGEL.splitlines()) for name in line.split()}
# Imports inside a function: (who, what) → why it cannot stand at the top. `*` fits any name. Where such an import
# points up, one for type checkers may do so, too; a circle is closed by none of them.
DEFERRED = {
    (".__main__", ".checkpoint.printable"): "only errors need it",
    (".workers.cron", "cronsim"): "an optional extra: loaded by those who have schedules",
    (".cli.completion", "shtab"): "an optional extra: loaded by those who ask for a script",
    (".cli.completion", ".__main__"): "loads all commands, of which this is one",
    (".cli.doctor", "psycopg"): "an extra; said so when it is missing",
    (".cli.doctor", ".*"): "needs psycopg, an extra; said so when it is missing",
    (".checkpoint.command", ".checkpoint*"): "the saver that the command line names",
    (".workers.command", ".workers*"): "needs psycopg, an extra; said so when it is missing",
    (".serve.runs.execution", ".compat.langchain.events"): "needs LangChain, which only its users have",
    (".serve.command", ".serve.app"): "needs Starlette, an extra; said so when it is missing",
    (".serve.command", ".serve.listening"): "needs uvicorn, which comes with the same extra",
    (".serve.command", ".serve.webhooks"): "needs h11, which comes with the same extra",
    (".serve.command", ".serve.store_lock"): "loads sqlite3: loaded by those who serve",
    (".serve.command", ".store.*"): "the store that the command line names",
    (".serve.app", ".*"): "the version is the root's",
    (".serve.mcp.server", ".*"): "the version is the root's",
    (".serve.command", "uvicorn"): "an extra; said so when it is missing",
    (".checkpoint.encryption", "cryptography*"): "an extra; said so when it is missing",
    ("*", "difflib"): "only errors need it",
    ("*", "pickle"): "loaded for the first key of an object, or when somebody pickles a graph",
    (".pregel.drivers.attempt", ".pregel.superstep.retry"): "loaded for the first retry",
    (".pregel.drivers.forks", "traceback"): "only a forked child that fails needs it",
    (".pregel.drivers.futures", ".pregel.drivers.call_future"): "loads concurrent.futures and logging: loaded with the first `@task` call",
    (".pregel.drivers.futures", ".pregel.drivers.once"): "loaded with the first effect",
    (".pregel.drivers.futures", ".pregel.drivers.sleeping"): "loaded with the first sleep",
    (".pregel.drivers.journal", "asyncio"): "asyncio is loaded by those who await",
    (".pregel.drivers.sleeping", "asyncio"): "asyncio is loaded by those who await",
    (".pregel.drivers.futures", ".pregel.drivers.transaction"): "loaded with the first transaction of a node",
    (".pregel.drivers.transaction", ".checkpoint.sql.completions"): "loads sqlite3: loaded with the first transaction of a database of one's own",
    (".testing.queue_clock", ".workers*"): "needs psycopg, an extra",
    (".testing.queue_clock", "psycopg*"): "an extra: loaded with the first clock",
    (".checkpoint.sql.completions", "psycopg*"): "an extra: loaded with a connection of psycopg's",
    (".checkpoint.*", ".checkpoint.sql.*transaction"): "loaded with the first transaction of a node",
    (".pregel.drivers.driver", ".pregel.drivers.limit"): "loaded with the first graph that has a limit or streams",
    (".graph.arguments", ".pregel.drivers.limit"): "loaded with the first limit",
    ("*", "networkx"): "heavy: loaded when somebody draws",
    ("*", "graphviz"): "heavy: loaded when somebody draws",
    ("*", "rich*"): "an optional extra: loaded when somebody watches a run in a terminal",
    ("*", "IPython*"): "an optional extra: loaded when somebody watches a run in a notebook",
    ("*", "pydantic*"): "heavy: loaded when a schema is a pydantic model",
    ("*", "cloudpickle"): "optional: sends lambdas and closures to workers",
    (".pregel.run.checks", ".executors*"): "loaded when an executor is given, though executors sit above the engine",
    ("*", ".pregel.log"): "loads logging: loaded when something is logged",
    (".workers.queue", ".pregel.observers"): "loaded with the first observer",
    (".pregel.run.checks", ".pregel.observers"): "loaded with the first observer",
    (".pregel.run.settings", ".pregel.run.observing"): "loaded with the first observer",
    (".pregel.run.run", ".pregel.run.observing"): "loaded with the first observer",
    (".executors.proxies", ".pregel.superstep.observed"): "loaded with the first observer",
    (".compat.langgraph.remote", ".visualize.*"): "loaded when a graph is drawn",
    (".pregel.run.surround", ".compat.langchain.callbacks"): "loaded when LangChain is, though what understands it sits above the engine",
    (".pytest_plugin", ".*"): "pytest loads the plugin in every project; the rest is loaded by those who use it",
    (".testing.models", ".compat.langchain.scripted"): "needs LangChain, which only its users have",
    ("*", "openai"): "an optional extra: loaded when a model is asked",
    (".executors.placement", ".executors.*"): "extras: Dask and Ray, loaded when one of them is given",
    (".checkpoint.serde.msgpack", "concurrent.interpreters"): "Python 3.14 has it; wanted where ormsgpack does not load",
    (".executors.interpreters", "sys"): "travels as code, without this module's names",
    (".executors.interpreters", "importlib"): "travels as code, without this module's names",
    (".executors.worker", "asyncio"): "asyncio is loaded by those who await",
    (".pregel.run_api", ".pregel.drivers.aio"): "asyncio is loaded by those who await",
    (".pregel.run.loop", ".pregel.run.failures"): "loaded when a run fails",
    ("*", ".pregel.superstep.race"): "loaded with the first race",
    ("*", ".pregel.drivers.racing"): "loaded with the first race",
    (".pregel.drivers.aio", ".pregel.drivers.aracing"): "loaded with the first race",
    (".pregel.run.begin", ".pregel.run.graph_changes"): "loaded by those who go on with a thread",
    (".pregel.edit_api", ".pregel.run.update_state"): "loaded by those who edit a thread",
    (".pregel.edit_api", ".pregel.drivers.aio"): "asyncio is loaded by those who await",
    (".pregel.run.run", ".pregel.program.hooked"): "loaded with the first hook",
    (".pregel.drivers.futures", ".pregel.program.hooked"): "loaded with the first hook",
    (".pregel.run_api", ".pregel.drivers.turns"): "loaded with the first call that takes turns",
    (".pregel.app", ".pregel.drivers.aio"): "asyncio is loaded by those who await",
    (".pregel.app", ".pregel.run.inbox"): "loaded for graphs with an inbox",
    (".pregel.run.run", ".pregel.run.inbox"): "loaded for graphs with an inbox",
    (".pregel.run.snapshots", ".pregel.run.inbox"): "loaded for graphs with an inbox",
    (".pregel.thread_api", ".pregel.run.explain"): "loaded when somebody asks why a node did not run",
    (".pregel.thread_api", ".pregel.drivers.timeslice"): "asyncio is loaded by those who await",
    (".checkpoint.threads", "asyncio"): "asyncio is loaded by those who await",
    (".checkpoint.sql.pruner", "asyncio"): "asyncio is loaded by those who await",
    (".checkpoint.sql.group_commit", "asyncio"): "asyncio is loaded by those who await",
    (".checkpoint.serde.serializer", ".checkpoint.serde.builtin_codecs"): "a dozen standard modules, loaded with the first Serializer",
    (".checkpoint.sql.sqlite_database", "sqlite3"): "loaded when somebody opens a database",
    (".graph.validate", ".graph.paths"): "loaded for graphs in which several edges lead to one node",
    (".graph.compile", ".pregel.program.flow"): "loaded for graphs with a join that does not wait for all, or several deferred nodes",
    (".graph.compile", ".pregel.superstep.flow_machine"): "loaded with the Flow of such a graph",
    (".graph.messages.models", ".graph.messages.operations"): "loaded with the first model that is observed",
    (".pregel.run_api", ".visualize*"): "a call can show its progress, though drawing sits above the engine",
    (".graph.builder", ".graph.ready"): "loaded with the first graph that starts its nodes when they are ready",
    (".pregel.thread_api", ".pregel.run.history"): "loaded when somebody lists a history",
    (".pregel.run.nested", ".pregel.superstep.under_way"): "only threads in which tasks are under way need it",
    (".pregel.*", ".pregel.run.origins"): "only threads in which tasks are under way need it",
    (".pregel.app", ".visualize*"): "a graph can draw itself, though drawing sits above the engine",
    (".graph.compile", ".graph.validation"): "loaded when a graph validates",
    (".pregel.app", ".pregel.program.json_schema"): "loaded when somebody asks for a JSON schema",
    (".pregel.superstep.interrupts", ".pregel.program.json_schema"): "loaded for the first question with a response_schema",
    (".graph.compile", ".graph.json_schema"): "loaded when somebody asks for a JSON schema",
    (".graph.edges", ".visualize*"): "a builder can show itself, though drawing sits above it",
}


def room(name: str) -> str:
    return name.split(".")[1]


def is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_nodes(node: ast.AST, deferred: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import that runs, and whether it waits inside a function; not what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # most of a tree, and no place for an import
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, deferred
        elif isinstance(child, ast.If) and is_for_checkers(child):
            yield from import_nodes(ast.Module(child.orelse, []), deferred)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from import_nodes(child, deferred or inside)


def imports(name: str, tree: ast.AST | None = None) -> Iterator[tuple[str, bool, str]]:
    """(what is imported, deferred?, file:line) for each import; our own modules begin with a dot."""
    for node, deferred in import_nodes(tree_of(name) if tree is None else tree):
        where = f"{FILES[name].relative_to(ROOT)}:{node.lineno}"
        if isinstance(node, ast.Import):
            yield from ((alias.name, deferred, where) for alias in node.names)
        elif not node.level:
            yield node.module or "", deferred, where
        else:
            folder = FILES[name].parents[node.level - 1].relative_to(ROOT).parts
            base = ".".join(["", *folder, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in FILES else base or "."), deferred, where


@cache
def all_imports() -> list[tuple[str, str, bool, str]]:
    """(the module, what it imports, deferred?, file:line) for each import of the package."""
    return [(name, *found) for name in FILES for found in imports(name)]


def imports_for_checkers(name: str) -> Iterator[tuple[str, bool, str]]:
    """As `imports`, of those under `if TYPE_CHECKING`."""
    left: list[ast.AST] = [tree_of(name)]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and is_for_checkers(node):
            yield from imports(name, ast.Module(node.body, []))
        left += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


def points_down(name: str, target: str) -> bool:
    if room(name) not in MAY_IMPORT:
        return True
    if room(target) == room(name):
        return room(name) != "pregel" or rank(target) <= rank(name)
    return target == EVERYWHERE or any(target == may or target.startswith(may + ".") for may in MAY_IMPORT[room(name)])


def rank(name: str) -> int:
    return RANK.get(name.removeprefix(".pregel").lstrip(".") or "__init__", 0)


def has_reason(name: str, target: str) -> bool:
    return any(fnmatch(name, who) and fnmatch(target, what) for who, what in DEFERRED)


def test_imports_point_one_way() -> None:
    at_once = [(name, target, where) for name, target, deferred, where in all_imports() if not deferred]
    for_checkers = [
        (name, target, where)
        for name in FILES
        for target, _, where in imports_for_checkers(name)
        if not has_reason(name, target)
    ]
    wrong = [
        f"{where}: {name} must not import {target}"
        for name, target, where in at_once + for_checkers
        if target.startswith(".") and not points_down(name, target)
    ]
    assert not wrong, "\n".join(["an arrow runs back:", *wrong])


def test_imports_make_no_circle() -> None:
    """Those inside functions and those for type checkers included. Where one closes a circle, a protocol is missing."""
    arrows: dict[str, set[str]] = {}
    for name in FILES:
        for target, _, _ in imports_for_checkers(name):
            if target.startswith("."):
                arrows.setdefault(name, set()).add(target)
    for name, target, _, _ in all_imports():
        if target.startswith("."):
            arrows.setdefault(name, set()).add(target)
    TopologicalSorter(arrows).prepare()  # CycleError shows the circle


def test_every_file_of_the_engine_has_its_place() -> None:
    homeless = [name for name in FILES if room(name) == "pregel" and name[8:] and name[8:] not in RANK]
    assert not homeless, f"say where they stand: add {homeless} to the table PREGEL at the top of {__file__}"


def test_imports_inside_functions_have_a_reason() -> None:
    wrong = [
        f"{where}: {name} imports {target}"
        for name, target, deferred, where in all_imports()
        if deferred and not has_reason(name, target)
    ]
    assert not wrong, "\n".join(["move these to the top, or give DEFERRED a reason:", *wrong])


def test_the_package_does_not_import_itself_by_name() -> None:
    wrong = [
        f"{where}: import {target}"
        for name, target, _, where in all_imports()
        if target.split(".")[0] == "stategraph" and room(name) != "examples"
    ]
    assert not wrong, "\n".join(["use relative imports:", *wrong])


def test_every_file_opens_with_its_rule() -> None:
    silent = [name for name in FILES if not ast.get_docstring(tree_of(name))]
    assert not silent, f"no docstring at the top, which says what lives here and what must not: {silent}"


def test_nothing_at_the_root_is_named_like_the_standard_library() -> None:
    names = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    clash = names & sys.stdlib_module_names
    assert not clash, f"tools that run from the root would import these instead: {clash}"


def test_every_package_folder_is_in_the_wheel() -> None:
    rooms = [path.parent for path in ROOT.glob("*/__init__.py")]
    folders = {name_of(path) for folder in rooms for path in folder.rglob("__init__.py")}
    assert folders <= set(packages()), f"add to packages in pyproject.toml: {folders - set(packages())}"
