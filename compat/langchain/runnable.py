"""A compiled graph as a LangChain Runnable."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable


class RunnableGraph(Runnable[Any, Any]):
    """Mixed into a compiled graph, it makes it a Runnable: `|`, `bind`, `with_config`, ..."""
