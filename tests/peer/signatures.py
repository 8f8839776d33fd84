"""Prints the parameters of every public callable of the modules named on standard input, as JSON; run by each engine."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import warnings
from typing import Any


def parameters(function: Any) -> list[str] | None:
    """The names of a callable's parameters, `**` if it takes any; None if they cannot be known."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [each.name for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return [*named, "**"] if any(each.kind is each.VAR_KEYWORD for each in found) else named


def callables(path: str, value: Any) -> dict[str, list[str] | None]:
    """A function, or a class with its public methods."""
    if not callable(value):
        return {}
    found = {path: parameters(value)}
    if inspect.isclass(value):
        methods = ((name, getattr(value, name, None)) for name in dir(value) if not name.startswith("_"))
        found |= {f"{path}.{name}": parameters(each) for name, each in methods if inspect.isroutine(each)}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    everything: dict[str, list[str] | None] = {}
    for module, names in json.loads(sys.stdin.read()).items():
        loaded = importlib.import_module(module)
        for name in names:
            if hasattr(loaded, name):
                everything |= callables(f"{module}.{name}", getattr(loaded, name))
    print(json.dumps(everything))
