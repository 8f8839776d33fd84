"""Names what a program uses of the peer that is not there, without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .finder import ROOT, SEPARATE, SHARED, find_real
from .table import MODULES, look_up


class Missing(NamedTuple):
    """A name of the peer that a program uses and that is not there."""

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
    path = _locate(program, [""]) if module else Path(program)
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
    """What a program imports that is not there, in its own file and in modules beside it."""
    waiting, seen = [path], {path}
    while waiting:
        here = waiting.pop()
        tree = ast.parse(here.read_text(encoding="utf-8"), str(here))
        for node in ast.walk(tree):
            yield from _missing_in(here, node)
            for name in _modules_of(node):
                beside = _locate(name, [str(path.parent)])
                if beside is not None and beside not in seen:
                    seen.add(beside)
                    waiting.append(beside)


def _missing_in(path: Path, node: ast.AST) -> Iterator[Missing]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _is_ours(alias.name) and alias.name not in MODULES:
                yield Missing(path, node.lineno, alias.name, "there is no such module")
    elif isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""):
        module = node.module or ""
        for alias in node.names:
            why = _why_missing(module, alias.name)
            if why is not None:
                yield Missing(path, node.lineno, f"{module}.{alias.name}", why)


def _why_missing(module: str, name: str) -> str | None:
    """Why a name is not there, or None if it is."""
    if f"{module}.{name}" in MODULES or (name == "*" and module in MODULES):
        return None
    if module not in MODULES:
        return f"there is no module {module}"
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


def _modules_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def _locate(module: str, places: list[str]) -> Path | None:
    """The file of a module in these folders; of a package, its `__main__` or `__init__`."""
    for place in places:
        base = Path(place, *module.split("."))
        for candidate in (base.with_suffix(".py"), base / "__main__.py", base / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
