"""The events of `astream_events` beside the chunks of the same run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from langchain_core.runnables import Runnable

from ...pregel.app import Pregel

EVENTS: Final = "events"
"""What stands in the place of a stream mode in front of an event."""
_NO_RUN: Final = UUID(int=0)


class _Chunk(NamedTuple):
    chunk: Any


class _Run(Runnable[Any, Any]):
    """A run whose chunks take the way of the events, so that each keeps its place among them."""

    def __init__(self, app: Pregel, config: Any, options: dict[str, Any]) -> None:
        self._app, self._config, self._options = app, config, options

    def invoke(self, input: Any, config: Any = None, **_: Any) -> Any:
        """Runs are streamed only."""
        raise NotImplementedError

    async def astream(self, input: Any, config: Any = None, **_: Any) -> AsyncIterator[Any]:
        """Run the graph; nothing is yielded."""
        (handler,) = config["callbacks"]
        heard = {**self._config, "callbacks": [handler]}
        async for chunk in self._app.astream(input, heard, **self._options):
            await handler.on_custom_event("", _Chunk(chunk), run_id=_NO_RUN)
        nothing: tuple[Any, ...] = ()  # what is yielded would be events of the run itself
        for each in nothing:
            yield each


async def astream_with_events(
    app: Pregel, input: Any, config: Any, **options: Any
) -> AsyncIterator[Any]:
    """What `astream` of a graph yields, and in between `("events", event)` for each event that
    `astream_events` has in its version 2.

    Args:
        config: has no callbacks.
        options: those of `astream`, with a list of stream modes.
    """
    async for event in _Run(app, config, options).astream_events(input, version="v2"):
        if isinstance(event["data"], _Chunk):
            yield event["data"].chunk
        else:
            yield EVENTS, event
