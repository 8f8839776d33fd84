"""Looking at graphs and runs. Reads the compiled program and stored checkpoints; runs no user code."""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

# At once, for each has the name of its module, which would hide it if that were loaded first.
from .changes import changes
from .report import report
from .timeline import timeline

if TYPE_CHECKING:
    from .dot import GraphvizMissingError, GraphvizWarning
    from .drawing import Drawing
    from .live import awatch, watch

_HOMES = {"watch": ".live", "awatch": ".live", "Drawing": ".drawing"}
_HOMES |= {"GraphvizMissingError": ".dot", "GraphvizWarning": ".dot"}

__all__ = [
    "Drawing", "GraphvizMissingError", "GraphvizWarning", "awatch", "changes", "report", "timeline", "watch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load what is asked for, and nothing else."""
    if name in _HOMES:
        return getattr(_load(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
