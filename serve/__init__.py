"""Graphs over HTTP, with the API that the official clients of LangGraph's server use.

Needs the extra `serve` (Starlette and orjson); uvicorn runs it.
"""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import create_app
    from .limits import Limits
    from .service import Auth

__all__ = ["Auth", "Limits", "create_app"]

_MODULE_OF = {"Auth": "service", "Limits": "limits", "create_app": "app"}


def __getattr__(name: str) -> Any:
    """Import a module when one of its names is first used, so that the command line works without
    Starlette."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_load(f".{_MODULE_OF[name]}", __name__), name)
