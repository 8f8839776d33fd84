"""Tokens of LangChain's chat models, sent to the readers of the `messages` stream as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from ...pregel.run.tokens import NOSTREAM, SENDING
from ...pregel.running import RUNNING


class TokenReader(_StreamingCallbackHandler[Any]):
    """Its class makes a model stream that is only invoked."""

    def tap_output_iter(self, run_id: UUID, output: Iterator[Any]) -> Iterator[Any]:
        """What a Runnable yields is not looked at."""
        return output

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """What a Runnable yields is not looked at."""
        return output


class TokenSender(BaseCallbackHandler, TokenReader):
    """Sends what the models say that one attempt of a task calls, each message once."""

    run_inline = True

    def __init__(self, task: Any) -> None:
        self._task = task
        self._attempt = task and task.attempt
        self._metadata: dict[UUID, dict[str, Any]] = {}
        self._streamed: set[UUID] = set()

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Any,
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """A model is called."""
        if NOSTREAM in (tags or ()) or SENDING.get():
            return
        shown = [tag for tag in tags or () if not tag.startswith("seq:step")]
        self._metadata[run_id] = {**(metadata or {}), **({"tags": shown} if shown else {})}

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_: Any) -> Any:
        """A part of its answer has come."""
        metadata = self._metadata.get(run_id)
        message = getattr(chunk, "message", None)
        if metadata is not None and message is not None:
            self._streamed.add(run_id)
            self._emit(message, metadata)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> Any:
        """Its answer is complete: it is sent whole if no parts of it were."""
        metadata = self._metadata.pop(run_id, None)
        if metadata is None or run_id in self._streamed:
            self._streamed.discard(run_id)
            return
        message = getattr(response.generations[0][0], "message", None)
        if isinstance(message, BaseMessage):
            self._emit(message, metadata)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> Any:
        """It has failed."""
        self._metadata.pop(run_id, None)
        self._streamed.discard(run_id)

    def _emit(self, message: Any, metadata: dict[str, Any]) -> None:
        running: Any = RUNNING.get()  # its attempt may be one of a copy, with a deadline
        if running is not None and running.nearest_deadline is not None:
            running.nearest_deadline.touch()
        if self._task.attempt == self._attempt:  # an abandoned attempt speaks no more
            self._task.emit("messages", (message, metadata))
