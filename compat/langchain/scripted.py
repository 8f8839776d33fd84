"""A scripted model as a chat model of LangChain: what the script says is made into its messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_messages
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool


class ScriptedChatModel(BaseChatModel):
    """A `BaseChatModel` that says what a `stategraph.testing.ScriptedModel` says.

    Attributes:
        scripted: the model with the script; its `requests` show what this one was asked.
    """

    scripted: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {}

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, **options: Any
    ) -> Runnable[Any, AIMessage]:
        """The same model; its requests show the tools in OpenAI's form."""
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        bound: Runnable[Any, AIMessage] = self.bind(
            tools=[convert_to_openai_tool(tool) for tool in tools], **choice, **options
        )
        return bound

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        return _result(self.scripted.invoke(messages, **_options(stop, options)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        return _result(await self.scripted.ainvoke(messages, **_options(stop, options)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for part in self.scripted.stream(messages, **_options(stop, options)):
            chunk = _chunk(part)
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for part in self.scripted.stream(messages, **_options(stop, options)):
            chunk = _chunk(part)
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def _options(stop: list[str] | None, options: dict[str, Any]) -> dict[str, Any]:
    return options if stop is None else {**options, "stop": stop}


def _result(answer: Any) -> ChatResult:
    message = answer if isinstance(answer, BaseMessage) else convert_to_messages([answer])[0]
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunk(part: Any) -> ChatGenerationChunk:
    """A part of an answer: a message of LangChain is one part."""
    if isinstance(part, AIMessage):
        own = {"content": part.content, "tool_calls": part.tool_calls, "id": part.id}
        usage, extra = part.usage_metadata, part.additional_kwargs
        message = AIMessageChunk(**own, usage_metadata=usage, additional_kwargs=extra)
        return ChatGenerationChunk(message=message)
    calls = [_call_chunk(call) for call in part.get("tool_calls", ())]
    message = AIMessageChunk(
        content=part["content"], tool_call_chunks=calls, usage_metadata=part.get("usage_metadata")
    )
    return ChatGenerationChunk(message=message)


def _call_chunk(call: dict[str, Any]) -> dict[str, Any]:
    """A piece of a tool call, from OpenAI's form."""
    function = call["function"]
    return {
        "name": function.get("name"),
        "args": function.get("arguments"),
        "id": call.get("id"),
        "index": call["index"],
        "type": "tool_call_chunk",
    }
