"""`python -m stategraph langgraph app.py`: a program written for LangGraph, run by this engine."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .finder import ROOT, SEPARATE, SHARED, find_real, install
from .table import MODULES, look_up


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    check = "only list what the program uses that is missing here"
    parser.add_argument("--check", action="store_true", help=check)
    module = "PROGRAM is the name of a module"
    parser.add_argument("-m", dest="module", action="store_true", help=module)
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program")
    parser.set_defaults(run=main)


def main(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Run or check the program; the exit code."""
    if given.check:
        return check_program(given.program, module=given.module)
    run_program(given.program, given.arguments, module=given.module)
    return 0


def run_program(program: str, arguments: list[str], *, module: bool) -> None:
    """Run a program as `__main__`, with `langgraph` served by this engine."""
    install()
    sys.argv = [program, *arguments]
    if module:
        sys.path.insert(0, "")
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


# -- check -----------------------------------------------------------------------------------------
# Names what a program uses of LangGraph that is not there, without running it.

class Missing(NamedTuple):
    """A name of LangGraph that a program uses and that is not there."""

    path: Path
    line: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {self.why}"


def check_program(program: str, *, module: bool = False) -> int:
    """Print what a program and the modules beside it use that is not there.

    Args:
        program: a Python file, or the name of a module.

    Returns:
        The exit code: 0 if everything is there, 1 if something is not, 2 if there is no such
        program.
    """
    path = _locate(program, Path()) if module else Path(program)
    if path is None or not path.is_file():
        print(f"langgraph --check: there is no program {program!r}", file=sys.stderr)
        return 2
    found = sorted(set(find_missing(path)))
    for missing in found:
        print(missing)
    if not found:
        print(f"{path}: every name of LangGraph that it imports is there")
    return 1 if found else 0


def find_missing(path: Path) -> Iterator[Missing]:
    """Yield what a program imports that is not there, in its own file and in modules beside it."""
    files = [path]
    for here in files:
        for node in ast.walk(ast.parse(here.read_text(encoding="utf-8"), str(here))):
            for module, name in _imports(node):
                why = None if getattr(node, "level", 0) else _why_missing(module, name)
                if why is not None:
                    missing = module if name is None else f"{module}.{name}"
                    yield Missing(here, node.lineno, missing, why)  # type: ignore[attr-defined]
                beside = _locate(module, path.parent)
                if beside is not None and beside not in files:
                    files.append(beside)


def _imports(node: ast.AST) -> list[tuple[str, str | None]]:
    """Return the modules that a statement imports, or a module with each name taken from it."""
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [(node.module, alias.name) for alias in node.names]
    return []


def _why_missing(module: str, name: str | None) -> str | None:
    """Return why a module, or a name of it, is not there; None if it is."""
    if not _is_ours(module) or f"{module}.{name}" in MODULES:
        return None
    if module not in MODULES:
        return "there is no such module" if name is None else f"there is no module {module}"
    if name in (None, "*"):
        return None
    found = look_up(module, name)
    if isinstance(found, str):
        return f"it has no counterpart: {found}"
    return f"{module} has no such name here" if found is None else None


def _is_ours(module: str) -> bool:
    """Whether the table serves a module; distributions of their own are used as they are."""
    name, *below = module.split(".")
    if name != ROOT:
        return False
    for part in below:
        parent, name = name, f"{name}.{part}"
        if part in SEPARATE or (parent in SHARED and name not in MODULES):
            return find_real(name) is None
    return True


def _locate(module: str, place: Path) -> Path | None:
    """Return the file of a module in a folder; of a package, its `__main__` or `__init__`."""
    base = place.joinpath(*module.split("."))
    files = (base.with_suffix(".py"), base / "__main__.py", base / "__init__.py")
    return next(filter(Path.is_file, files), None)
