"""Drawings and views of graphs and runs. Reads the compiled program and stored checkpoints; runs no
user code."""

from typing import TYPE_CHECKING

from ..extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .dot import GraphvizMissingError, GraphvizWarning
    from .drawing import Drawing
    from .live.watch import awatch, watch
    from .render.branches import branches, compare
    from .render.report import report
    from .render.timeline import timeline
    from .trace.changes import changes

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

__getattr__ = _lazy_names(
    __name__,
    {
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
    },
)
