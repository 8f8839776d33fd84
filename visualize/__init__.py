"""Drawings and views of graphs and runs. Reads the compiled program and stored checkpoints; runs no
user code."""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dot import GraphvizMissingError, GraphvizWarning
    from .drawing import Drawing
    from .live.watch import awatch, watch
    from .render.branches import branches, compare
    from .render.report import report
    from .render.timeline import timeline
    from .trace.changes import changes

_HOMES = {
    "Drawing": ".drawing",
    "GraphvizMissingError": ".dot",
    "GraphvizWarning": ".dot",
    "awatch": ".live.watch",
    "branches": ".render.branches",
    "changes": ".trace.changes",
    "compare": ".render.branches",
    "report": ".render.report",
    "timeline": ".render.timeline",
    "watch": ".live.watch",
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
