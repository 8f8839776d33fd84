"""Graphs over HTTP: what the official clients of LangGraph's server speak.

Needs the extra `serve`: Starlette and orjson; uvicorn runs it.
"""

from .app import create_app
from .service import Auth

__all__ = ["Auth", "create_app"]
