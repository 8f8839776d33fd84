"""Drawings and views of graphs and runs. Reads the compiled program and stored checkpoints; runs no
user code."""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dot import GraphvizMissingError, GraphvizWarning
    from .drawing import Drawing
    from .runs.branches import branches, compare
    from .runs.changes import changes
    from .runs.live import awatch, watch
    from .runs.report import report
    from .runs.timeline import timeline

_HOMES = {
    "Drawing": ".drawing",
    "GraphvizMissingError": ".dot",
    "GraphvizWarning": ".dot",
    "awatch": ".runs.live",
    "branches": ".runs.branches",
    "changes": ".runs.changes",
    "compare": ".runs.branches",
    "report": ".runs.report",
    "timeline": ".runs.timeline",
    "watch": ".runs.live",
}

__all__ = [
    "Drawing",
    "GraphvizMissingError",
    "GraphvizWarning",
    "awatch",
    "branches",
    "changes",
    "compare",
    "report",
    "timeline",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import a module when one of its names is first used."""
    if name in _HOMES:
        return getattr(_load(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
