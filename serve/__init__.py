"""Graphs over HTTP, with the API that the official clients of LangGraph's server use.

Needs the extra `serve` (Starlette and orjson); uvicorn runs it.
"""

from typing import TYPE_CHECKING

from ..extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .app import create_app
    from .limits import Limits
    from .service import Auth

__all__ = ["Auth", "Limits", "create_app"]

# So that the command line works without Starlette.
__getattr__ = _lazy_names(
    __name__, {"Auth": ".service", "Limits": ".limits", "create_app": ".app"}
)
