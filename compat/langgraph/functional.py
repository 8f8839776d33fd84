"""LangGraph's functional API: ours, with the spellings that LangGraph has replaced."""

from __future__ import annotations

from typing import Any, ClassVar

from ...graph.functional import entrypoint as _entrypoint
from ...graph.functional import task as _task
from ...pregel.app import Pregel as _Pregel
from .deprecated import rename
from .pregel import Pregel


class entrypoint(_entrypoint):  # a decorator
    """Make a graph of a function; see `stategraph.entrypoint`."""

    compiled_class: ClassVar[type[_Pregel[Any, Any, Any, Any]]] = Pregel

    def __init__(self, checkpointer: Any = None, store: Any = None, **options: Any) -> None:
        renamed = ("config_schema", "retry")
        old: dict[str, Any] = {name: options.pop(name) for name in renamed if name in options}
        super().__init__(checkpointer, store, **{**options, **rename(old)})


def task(function: Any = None, /, **options: Any) -> Any:
    """Make a function callable as a task of an entrypoint or node; see `stategraph.task`."""
    old = {"retry": options.pop("retry")} if "retry" in options else {}
    options |= rename(old)
    return _task(**options) if function is None else _task(function, **options)
