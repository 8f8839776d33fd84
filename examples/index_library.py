"""The first example: a graph reads a folder of Python, by default the standard library.

    python -m stategraph.examples.index_library [FOLDER]

`plan` lists the folder and sends one task per module to `read`; all tasks of a round run in one
superstep. A package starts another round: its task sends one further task per submodule, one level
per round. When nothing is left to read, `summarize` counts. The program is written as a user would
write it and uses no internals of the engine.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import sysconfig
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from stategraph import (
    END,
    START,
    CompiledStateGraph,
    InMemorySaver,
    RunnableConfig,
    Send,
    StateGraph,
    StreamWriter,
)
from stategraph.channels import EphemeralValue

SKIPPED = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
Module = tuple[str, Path]  # dotted name, and its .py file or its folder

# -- the state -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """Facts about one module."""

    name: str
    lines: int
    functions: int
    classes: int
    longest: tuple[int, str, int]  # lines, name of the function, where it starts
    imports: list[str]


class Found(TypedDict):
    """The modules that a task has found, for the router of that task; they last one superstep."""

    found: Annotated[list[Module], EphemeralValue(list, guard=False)]


class State(Found):
    """The state: one channel per key. Where tasks of one superstep write the same key, a reducer
    (here: +) joins the lists."""

    folder: Path
    facts: Annotated[list[Facts], add]
    unread: Annotated[list[str], add]
    table: list[tuple[str, str]]


# -- the nodes -------------------------------------------------------------------------------------


def plan(state: State) -> dict[str, Any]:
    """List the folder. What a node returns is written to the state when its superstep ends."""
    folder = state["folder"]
    own = [(folder.name, folder / "__init__.py")] if (folder / "__init__.py").is_file() else []
    return {"found": own + inside(folder, "")}


def read(module: Module, writer: StreamWriter) -> dict[str, Any]:
    """Read one module. The argument comes from its `Send`; `writer` sends to the readers of the
    stream."""
    name, path = module
    update: dict[str, Any] = {"found": []}
    try:
        if path.is_dir():
            update["found"], path = inside(path, name + "."), path / "__init__.py"
        if path.is_file():
            writer(name)
            update["facts"] = [facts_of(name, path.read_bytes())]
    except (SyntaxError, ValueError, RecursionError, OSError) as error:
        reason = getattr(error, "msg", None) or getattr(error, "strerror", None) or error
        update["unread"] = [
            f"{path}: {reason}"
        ]  # one bad file is a finding, not the end of the run
    return update


def send_found(state: Found) -> list[Send]:
    """Route from `plan` and every `read`: return one task per module found. A router sees the
    writes of its own task."""
    return [Send("read", module) for module in state["found"]]


def summarize(state: State) -> dict[str, Any]:
    """Count. This node is deferred, so it runs once, when no module is left to read."""
    facts = sorted(state["facts"], key=lambda f: f.name)
    imports = Counter(name for f in facts for name in f.imports)
    most = sorted(imports.items(), key=lambda item: (-item[1], item[0]))[:5]
    table = [
        ("modules", f"{len(facts):,}"),
        ("functions", f"{sum(f.functions for f in facts):,}"),
        ("classes", f"{sum(f.classes for f in facts):,}"),
        ("lines", f"{sum(f.lines for f in facts):,}"),
    ]
    if any(f.functions for f in facts):
        f = max(facts, key=lambda f: f.longest[0])
        lines, name, start = f.longest
        table.append(
            ("longest function", f"{f.name}.{name}, {lines:,} lines (from line {start:,})")
        )
    if most:
        table.append(("most imported", ", ".join(f"{name} ({count})" for name, count in most)))
    table.append(("could not be read", f"{len(state['unread']):,}"))
    return {"table": table + [("", text) for text in sorted(state["unread"])]}


# -- reading Python --------------------------------------------------------------------------------


def inside(folder: Path, prefix: str) -> list[Module]:
    """Return the modules and packages directly in a folder, sorted by name."""
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.stem.isidentifier() and path.name not in SKIPPED
    ]
    return [
        (prefix + path.stem, path)
        for path in paths
        if (path.is_dir() and not path.is_symlink() and not path.suffix)
        or (path.suffix == ".py" and path.stem != "__init__" and path.is_file())
    ]


def facts_of(name: str, source: bytes) -> Facts:
    """Parse one file. Each top-level package that it imports absolutely is listed once."""
    nodes = list(ast.walk(ast.parse(source)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    sizes = [((f.end_lineno or f.lineno) - f.lineno + 1, f.name, f.lineno) for f in functions]
    imported = [
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    ]
    imported += [
        node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level
    ]
    return Facts(
        name=name,
        lines=len(source.splitlines()),
        functions=len(functions),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        longest=max(sizes, key=lambda size: size[0], default=(0, "", 0)),
        imports=sorted({full.partition(".")[0] for full in imported}),
    )


# -- the graph -------------------------------------------------------------------------------------


def build() -> CompiledStateGraph:
    """Build the graph, with a saver that keeps a checkpoint of every superstep."""
    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("read", read)
    graph.add_node("summarize", summarize, defer=True)  # waits until nothing else is left to run
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", send_found, ["read"])
    graph.add_conditional_edges("read", send_found, ["read"])  # packages go round again
    graph.add_edge("plan", "summarize")
    graph.add_edge("read", "summarize")
    graph.add_edge("summarize", END)
    return graph.compile(checkpointer=InMemorySaver(), name="index_library")


# -- the program -----------------------------------------------------------------------------------


def run(folder: Path, out: Path) -> None:
    """Index a folder, print what was found, and write the graph as Mermaid text."""
    app = build()
    config: RunnableConfig = {
        "configurable": {"thread_id": "index"},
        "max_concurrency": os.cpu_count() or 2,
    }
    began, count, told = time.perf_counter(), 0, 0
    terminal = sys.stdout.isatty()
    print(f"reading {folder}")
    # Two stream modes at once: what the nodes send while they run, and the state after each
    # superstep.
    for mode, chunk in app.stream({"folder": folder}, config, stream_mode=["custom", "values"]):
        count += mode == "custom"
        if mode == "custom" and terminal:
            print("\r" + f"{count:,} files, now {chunk}"[:79].ljust(79), end="", flush=True)
        elif mode == "values" and not terminal and count > told:
            print(f"{count:,} files")
            told = count
    seconds = time.perf_counter() - began
    print("\r" + " " * 79 + "\r" if terminal else "")
    snapshot = app.get_state(config)  # the newest checkpoint of this thread
    for label, text in snapshot.values["table"]:
        print(f"{label:<18} {text}")
    assert snapshot.metadata is not None
    checkpoints = len(list(app.get_state_history(config)))
    print(f"\n{snapshot.metadata['step']} supersteps, {checkpoints} checkpoints, {seconds:.1f} s")
    out.write_text(app.get_graph().draw_mermaid(), encoding="utf-8")
    print(f"the graph as Mermaid text: {out}")


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Declare the arguments of the program."""
    parser.add_argument(
        "folder", nargs="?", type=Path, help="a folder of Python (default: the standard library)"
    )
    out = Path("index_library.mmd")
    parser.add_argument(
        "--out", type=Path, default=out, help="where to draw (default: %(default)s)"
    )
    return parser


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Run with parsed arguments; invalid ones end it with a message and exit code 2."""
    folder = Path(asked.folder or sysconfig.get_path("stdlib"))
    if not folder.is_dir():
        parser.error(
            f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}"
        )
    if not asked.out.absolute().parent.is_dir() or asked.out.is_dir():
        parser.error(f"--out: {asked.out} cannot be written")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of the files we parse
        run(folder.resolve(), asked.out)
    return 0


if __name__ == "__main__":
    command: argparse.ArgumentParser = add_arguments(
        argparse.ArgumentParser("index_library", description="Index a folder of Python.")
    )
    sys.exit(main(command, command.parse_args()))
