"""Finds a graph by its name on a command line: `module:name` or `path/to/file.py:name`.
What is done with it stands elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError, nearest
from .builder import StateGraph

TARGET_HELP = (
    "module:name or path/to/file.py:name of a compiled graph, a StateGraph, or a function that "
    "returns one; the name may be left out if the module holds only one graph"
)

OBSERVER_HELP = (
    "an Observer (an instance, or a class without arguments) that is told of all runs of this "
    "process, such as stategraph.otel:OpenTelemetry; may be repeated"
)


class NotFoundError(StateGraphError):
    """What the command line names is not there, or is no graph."""


def find_graph(target: str) -> Pregel:
    """A graph by its name on a command line; a builder is compiled.

    Args:
        target: "module:name" or "path/to/file.py:name". Without a name: the only graph that the
            module has.

    Raises:
        InvalidGraphError: it is a builder with mistakes.
        NotFoundError: there is no such graph, or what should bring it forth fails.
    """
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    module = load(place)
    found = pick(module, name or only(module, place), place)
    return found.compile() if isinstance(found, StateGraph) else found


def load(place: str) -> ModuleType:
    """A module, by name or by the path of its file. The current folder is looked into first.

    Raises:
        NotFoundError: it is not there, or fails.
    """
    path = Path(place)
    folders = [str(Path.cwd())]
    if path.suffix == ".py":
        if not path.is_file():
            raise NotFoundError(f"there is no file {place}")
        folders.append(str(path.parent.resolve()))
    for folder in folders:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        return _run_file(path) if path.suffix == ".py" else importlib.import_module(place)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # The module itself, or a package around it; any other is one that it imports.
        if path.suffix != ".py" and missing and f"{place}.".startswith(f"{missing}."):
            message = f"there is no module {missing}, looked for from {Path.cwd()}"
        else:
            message = _describe_failure(f"{place} cannot be imported", error)
        raise NotFoundError(message) from error


def _run_file(path: Path) -> ModuleType:
    name = f"{path.stem}_" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are resolved through it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)  # as `import` does: half a module is none
        raise
    return module


def _describe_failure(what: str, error: Exception) -> str:
    """What happened, and in which line unless it is ours."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    # A SyntaxError says itself where it is.
    theirs = last.filename != __file__ and not last.filename.startswith("<frozen ")
    where = f" (line {last.lineno} of {last.filename})" if theirs else ""
    return f"{what}: {type(error).__name__}: {error}{where}"


def pick(module: ModuleType, name: str, place: str) -> Pregel | StateGraph:
    """What the name stands for in the module; a function is called.

    Raises:
        NotFoundError: there is no such name, it is no graph, or the function fails.
    """
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotFoundError(
                f"{place} has no {name!r}; {nearest(name, list(_graphs(module)) or vars(module))}"
            )
        found = getattr(found, part)
    if not isinstance(found, Pregel | StateGraph) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise NotFoundError(_describe_failure(f"{place}:{name}() fails", error)) from error
    if not isinstance(found, Pregel | StateGraph):
        kind = type(found)
        way_out = ""
        if kind.__module__.partition(".")[0] == "langgraph":
            way_out = " of LangGraph; put `langgraph -m stategraph` before the command to run it"
        raise NotFoundError(
            f"{place}:{name} must be a graph, a builder or a function that returns one, got a "
            f"{kind.__name__}{way_out}"
        )
    return found


def only(module: ModuleType, place: str) -> str:
    """The name of the only graph in a module, which was found at this place. A builder beside the
    graph that it was compiled into does not count.

    Raises:
        NotFoundError: there is none, or several.
    """
    names = _graphs(module)
    compiled = [each.builder for each in vars(module).values() if hasattr(each, "builder")]
    left = [name for name in names if not any(vars(module)[name] is each for each in compiled)]
    if len(left) != 1:
        which = f"one of {', '.join(names)}" if names else "a graph, or a function that returns one"
        raise NotFoundError(f"say which: {place}:NAME, where NAME is {which}")
    return left[0]


def _graphs(module: ModuleType) -> Sequence[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Pregel | StateGraph)]
