"""What LangChain's models spend of budgets when a node, or code of LangChain, calls them itself."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from ...graph.messages.models import CHAT, note_message
from ...pregel.observer import Operation
from ...pregel.running import PendingSpend, begin_spend


class SpendingHandler(BaseCallbackHandler):
    """Counts each call of a model that `call_model` does not count. An async run calls it on a
    thread, which may wait for the record."""

    raise_error = True

    def __init__(self) -> None:
        self._open: dict[UUID, tuple[PendingSpend, Operation, float]] = {}

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """A model is to be called."""
        spend = None if CHAT.get() is not None else begin_spend(awaits=False)
        if spend is None:
            return
        spend.reserve(swaps=False)
        name = (metadata or {}).get("ls_model_name") or ""
        chat = Operation(kind="chat", name=name, provider="")
        self._open[run_id] = spend, chat, time.perf_counter()

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> Any:
        """It has answered."""
        spend, chat, began = self._open.pop(run_id, (None, None, 0.0))
        if spend is None or chat is None:
            return
        note_message(chat, getattr(response.generations[0][0], "message", None))
        found = chat.response
        tokens = (found.get("input_tokens") or 0, found.get("output_tokens") or 0)
        seconds = time.perf_counter() - began
        spend.settle(chat.name or found.get("model") or "", tokens, seconds)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> Any:
        """It has failed: the reservation stays."""
        self._open.pop(run_id, None)


HANDLER = SpendingHandler()
