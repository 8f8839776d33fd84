"""LangChain's handlers of what a node calls in another process: what they would be told there is
sent to the driver, and they are told here."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.callbacks.manager import handle_event
from langchain_core.runnables.config import _set_config_context

from ...pregel.running import running
from .tokens import TokenReader

_KINDS: Final = {
    "llm": "llm_start llm_new_token llm_end llm_error",
    "chat_model": "chat_model_start",
    "chain": "chain_start chain_end chain_error",
    "agent": "agent_action agent_finish tool_start tool_end tool_error",
    "retriever": "retriever_start retriever_end retriever_error",
    "custom_event": "custom_event",
    "retry": "retry",
}
IGNORED_BY: Final[dict[str, str | None]] = {
    f"on_{event}": f"ignore_{kind}" for kind, events in _KINDS.items() for event in events.split()
} | {"on_text": None}
"""Event → the attribute by which a handler says that it is not to be told."""

Told: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any]]
"""An event with its arguments."""


class RemoteCallbacks:
    """Travels to a worker, and lends handlers there to what the node calls.

    Args:
        manager: that of the node's run, for what it calls.
        streams: somebody reads tokens, so models are to stream.
    """

    def __init__(self, manager: Any, *, streams: bool) -> None:
        self.parent: UUID | None = manager.parent_run_id
        self.tags: tuple[Any, Any] = manager.tags, manager.inheritable_tags
        self.metadata: tuple[Any, Any] = manager.metadata, manager.inheritable_metadata
        self.streams = streams

    def enter(self, send: Callable[[Told], None]) -> None:
        """Let what runs in this context find handlers."""
        handler = StreamForwarder(send) if self.streams else Forwarder(send)
        manager = CallbackManager(
            handlers=[handler],
            inheritable_handlers=[handler],
            parent_run_id=self.parent,
            tags=self.tags[0],
            inheritable_tags=self.tags[1],
            metadata=self.metadata[0],
            inheritable_metadata=self.metadata[1],
        )
        config: Any = running("a remote span").config
        _set_config_context({**config, "callbacks": manager})


def replay(manager: Any, told: Told) -> None:
    """Tell the handlers of a manager."""
    event, args, named = told
    handle_event(manager.handlers, event, IGNORED_BY[event], *args, **named)


class Forwarder(BaseCallbackHandler):
    """Sends what it is told."""

    run_inline = True  # in the order in which things happen

    def __init__(self, send: Callable[[Told], None]) -> None:
        self._send = send


def _forward(event: str) -> Callable[..., None]:
    def on_event(self: Forwarder, *args: Any, **named: Any) -> None:
        self._send((event, args, {k: v for k, v in named.items() if _travels(v)}))

    on_event.__name__ = event
    return on_event


def _travels(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # whatever it says: it stays behind
        return False
    return True


for _event in IGNORED_BY:
    setattr(Forwarder, _event, _forward(_event))


class StreamForwarder(Forwarder, TokenReader):
    """Its class makes a model stream that is only invoked."""
