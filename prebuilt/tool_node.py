"""The node that calls tools: the calls of the last message side by side, each a `@task` of its own,
so that a resume repeats none that has finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError, to_json

from ..graph.arguments import known_keywords
from ..graph.functional import TaskFunction, task
from ..graph.messages.models import describe_tool
from ..pregel.errors import check_kind, nearest, repr_of
from ..pregel.names import END, EndName
from ..pregel.running import find_observed
from ..pregel.task.interrupts import interrupt
from ..pregel.types import Command
from .langchain import as_tool, is_langchain, openai_call, tool_message
from .tool import Tool, ToolCallError

Message: TypeAlias = dict[str, Any]
ErrorPolicy: TypeAlias = (
    bool | str | type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], str]
)
Approval: TypeAlias = bool | Collection[str] | Callable[[str, dict[str, Any]], bool]


class ToolDecision(BaseModel):
    """The answer of a person who is asked whether a tool may be called.

    Attributes:
        decision: whether it is called.
        message: what the model is told if it is not.
    """

    decision: Literal["approve", "reject"]
    message: str = "The call was rejected."

    @model_validator(mode="wrap")
    @classmethod
    def _say_shape(cls, answer: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return read(answer)
        except ValidationError:
            raise PydanticCustomError(
                "tool_decision",
                'the answer must be {"decision": "approve"} or {"decision": "reject", '
                '"message": "why"}, got {answer}',
                {"answer": f"{answer!r:.200}"},
            ) from None


class ToolNode:
    """A node that calls the tools for which the last message asks, side by side.

    What a tool returns becomes a message for the model: text as it is, anything else as JSON. A
    tool may return a `Command`; a message for the model is added if its update has none.

    Args:
        tools: functions with type hints, `Tool`s, or tools of LangChain.
        name: of the node.
        messages_key: where the state has its messages: dicts with `role` and `content`, or
            LangChain's. Calls are answered in the form in which they were made.
        handle_tool_errors: which errors the model is told of instead of being raised. A class of
            errors or several: those; True: all; False: none; a text or a function: all, in these
            words. By default only the model's own mistakes: a tool that does not exist,
            and arguments that do not fit.
        approve: the calls that a person must approve through `interrupt`: the names of tools, True
            for all of them, or a function of the tool's name and its arguments. The answer is a
            `ToolDecision`, such as `{"decision": "approve"}`.

    Raises:
        ValueError: two tools have the same name; `approve` names none of them.
        TypeError: a tool has a parameter that a model cannot fill.
    """

    @known_keywords()
    def __init__(
        self,
        tools: Sequence[Any],
        *,
        name: str = "tools",
        messages_key: str = "messages",
        handle_tool_errors: ErrorPolicy = ToolCallError,
        approve: Approval = (),
    ) -> None:
        self.name = name
        self.messages_key = messages_key
        self.handle_tool_errors = handle_tool_errors
        self.approve = approve
        self.drawn_as: tuple[str, ...] = ("tool", "person") if approve else ("tool",)
        self.tools: dict[str, Tool] = {}
        check_kind("tools", tools, Iterable, "a list of functions and tools")
        for tool in map(as_tool, tools):
            if tool.name in self.tools:
                raise ValueError(f"two tools have the name {tool.name!r}: give one another name")
            self.tools[tool.name] = tool
        if isinstance(approve, Collection):
            for each in approve:
                if each not in self.tools:
                    raise ValueError(
                        f"approve names no tool: {each!r}; {nearest(each, self.tools)}"
                    )
        self._tasks = {name: self._make_task(tool) for name, tool in self.tools.items()}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The schemas of the tools, in the format of OpenAI's API."""
        return [tool.schema for tool in self.tools.values()]

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs that runs a call: not what starts calls."""
        return {**vars(self), "_tasks": {}}

    def invoke(self, state: Any, config: Any = None) -> list[Any]:
        """The updates of all calls, in the order of the calls."""
        return [future.result() for future in self._start(state)]

    async def ainvoke(self, state: Any, config: Any = None) -> list[Any]:
        """`invoke` for async runs."""
        return await asyncio.gather(*self._start(state))

    def _start(self, state: Any) -> list[Any]:
        calls = pending_calls(state, self.messages_key)
        return [self._task(call)(call, self._wanted(call, state)) for call in calls]

    def _task(self, call: Message) -> TaskFunction[..., Any]:
        name = call["function"]["name"]
        return self._tasks[name] if name in self._tasks else task(name=name)(self._refuse)

    def _wanted(self, call: Message, state: Any) -> Any:
        """The state, for a tool that takes it: a call is known by its arguments."""
        tool = self.tools.get(call["function"]["name"])
        return state if tool is not None and tool.wants_state else None

    def _make_task(self, tool: Tool) -> TaskFunction[..., Any]:
        pure = tool.effect is not None and tool.effect.kind == "pure"
        made = task(name=tool.name, effect="pure" if pure else None)
        return made(self._acall if tool.is_async else self._call)

    def _call(self, call: Message, state: Any) -> Any:
        try:
            prepared = self._prepare(call, state)
            if isinstance(prepared, str):
                return self._answer(call, prepared, status="error")
            return self._take(call, self._run(call, prepared))
        except Exception as error:
            return self._handle(call, error)

    async def _acall(self, call: Message, state: Any) -> Any:
        try:
            prepared = self._prepare(call, state)
            if isinstance(prepared, str):
                return self._answer(call, prepared, status="error")
            return self._take(call, await self._run(call, prepared))
        except Exception as error:
            return self._handle(call, error)

    def _run(self, call: Message, prepared: dict[str, Any]) -> Any:
        """The result of the function; an async one is to be awaited."""
        tool = self._tool(call)
        function = tool.bind(call, prepared)
        observed = find_observed()
        if observed is None:
            return function()
        return observed.call(function, describe_tool(call), awaits=tool.is_async)

    def _refuse(self, call: Message, state: Any) -> Any:
        name = call["function"]["name"]
        return self._handle(
            call, ToolCallError(f"there is no tool {name!r}; {nearest(name, self.tools)}")
        )

    def _tool(self, call: Message) -> Tool:
        return self.tools[call["function"]["name"]]

    def _prepare(self, call: Message, state: Any) -> dict[str, Any] | str:
        """The arguments of the function; or why the tool may not be called."""
        tool = self._tool(call)
        arguments = tool.read(call["function"]["arguments"])
        if self._needs_approval(tool.name, arguments):
            # The arguments as the model gave them: a question is stored, they need not be storable.
            question = {"tool": tool.name, "arguments": call["function"]["arguments"]}
            decision = interrupt(
                question, key=call["id"] or tool.name, response_schema=ToolDecision
            )
            if decision.decision == "reject":
                return str(decision.message)
        return {**arguments, **tool.fill(call["id"], state)}

    def _needs_approval(self, name: str, arguments: dict[str, Any]) -> bool:
        if callable(self.approve):
            return self.approve(name, arguments)
        return self.approve if isinstance(self.approve, bool) else name in self.approve

    def _take(self, call: Message, result: Any) -> Any:
        """The update that a result makes."""
        if isinstance(result, Command):
            return self._with_answer(call, result)
        if isinstance(result, dict) and result.get("role") == "tool":
            result = {"tool_call_id": call["id"], **result}
            return {self.messages_key: tool_message(call, result)}
        if is_langchain(result):
            return {self.messages_key: tool_message(call, result)}
        return self._answer(call, _as_content(result))

    def _with_answer(self, call: Message, command: Command) -> Command:
        """The command; its update answers the call, without which no model goes on."""
        update = command.update
        if command.graph is not None or not isinstance(update, Mapping | None):
            return command
        written = (update or {}).get(self.messages_key) or []
        written = written if isinstance(written, list) else [written]
        if any(_answers(message, call) for message in written):
            return command
        [answer] = self._answer(call, "done").values()
        return replace(command, update={**(update or {}), self.messages_key: [*written, answer]})

    def _answer(self, call: Message, content: Any, **more: Any) -> dict[str, Any]:
        message = {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"]}
        return {self.messages_key: tool_message(call, {**message, "content": content, **more})}

    def _handle(self, call: Message, error: Exception) -> Any:
        """What the model is told of an error, if it is not raised."""
        policy = self.handle_tool_errors
        name = call["function"]["name"]
        shown = error if isinstance(error, ToolCallError) else repr_of(error)
        text = f"error in {name}: {shown}"
        if isinstance(policy, str):
            text = policy
        elif isinstance(policy, type | tuple):
            if not isinstance(error, policy):
                raise error
        elif callable(policy):
            text = policy(error)
        elif not policy:
            raise error
        return self._answer(call, text, status="error")


def tools_condition(
    state: Any, messages_key: str = "messages"
) -> Literal["tools"] | EndName:  # drawings read the ends here
    """A router: to the node "tools" if the last message asks for tools, else to the end."""
    return "tools" if pending_calls(state, messages_key) else END


def pending_calls(state: Any, messages_key: str = "messages") -> list[Message]:
    """The tool calls of the last message, if it has any; those that were answered behind it are
    left out.

    Raises:
        ValueError: the state has no such key.
    """
    check_kind("messages_key", messages_key, str, "a key of the state")
    read = state.get if isinstance(state, Mapping) else partial(getattr, state)
    messages = read(messages_key, None)
    if messages is None:
        raise ValueError(
            f"the state has no messages under {messages_key!r} (messages_key), got {state!r:.80}"
        )
    answered: set[Any] = set()
    for message in reversed(messages):
        if not isinstance(message, dict) and not is_langchain(message):
            raise TypeError(
                f"the messages must be dicts here, got {type(message).__name__}; messages of "
                "LangChain are taken, too"
            )
        if "tool" not in (_part(message, "role"), _part(message, "type")):
            calls = [openai_call(call, message) for call in _part(message, "tool_calls") or ()]
            return [call for call in calls if call["id"] not in answered]
        answered.add(_part(message, "tool_call_id"))
    return []


def _part(message: Any, name: str) -> Any:
    """Return a part of a message; None if it has none of this name."""
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _answers(message: Any, call: Message) -> bool:
    return bool(_part(message, "tool_call_id") == call["id"])


def _as_content(result: Any) -> Any:
    """Text and lists of content blocks as they are, anything else as JSON."""
    blocks = isinstance(result, list) and result
    if isinstance(result, str) or (
        blocks and all(isinstance(each, dict) and "type" in each for each in result)
    ):
        return result
    return to_json(result, fallback=str).decode()
