"""A plain function as a tool: the JSON schema of its arguments, and how a model's call becomes a
call of the function. What a call leads to in a graph is decided in `tool_node`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from ..graph.arguments import known_keywords
from ..graph.effects import EffectKind, Errors, declare, declared_of, read_effect
from ..pregel.errors import warn
from ..pregel.program.callables import (
    GETTERS,
    Getter,
    Hints,
    infer_name,
    injectable_kind,
    signature_of,
)
from ..pregel.running import running

_NO_STATE: Final = object()


class InjectedState:
    """Marks a parameter of a tool that gets the state of the graph, and that the model does not
    see: `Annotated[State, InjectedState]`, or `Annotated[list, InjectedState("messages")]` for one
    key of it.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key


class InjectedToolCallId:
    """Marks a parameter of a tool that gets the id of the call, and that the model does not see:
    `Annotated[str, InjectedToolCallId]`."""


class ToolCallError(ValueError):
    """A model's call is wrong: there is no such tool, or its arguments do not fit."""


class Tool:
    """A function that a model may call.

    The model sees the function's name, docstring and parameters. It does not see parameters that
    are annotated with `Runtime`, `RunnableConfig`, `StreamWriter`, a store's class, `InjectedState`
    or `InjectedToolCallId`; those are filled in.

    Args:
        function: a function or coroutine function with type hints.
        name: how the model calls it; the function's own name by default.
        description: what the model is told of it; the docstring by default.
        effect, probe, not_done, undo: what a call does to the world, and what takes it back; see
            `stategraph.effect`. With `undo` alone a call that raises has done nothing.

    Attributes:
        effect: what is declared of its effect, or None.
        is_async: it is a coroutine function.
        wants_state: it has a parameter that gets the state.

    Raises:
        TypeError: it has a parameter that a model cannot fill.

    >>> def double(x: int) -> int:
    ...     "Twice x."
    ...     return 2 * x
    >>> Tool(double).schema["function"]["parameters"]["properties"]
    {'x': {'type': 'integer'}}
    """

    @known_keywords()
    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        effect: EffectKind | None = None,
        probe: Callable[..., Any] | None = None,
        not_done: Errors = (),
        undo: Callable[..., Any] | None = None,
    ) -> None:
        self.effect = declared_of(function)
        if effect or undo:
            self.effect = read_effect(effect, probe, not_done, undo)
        self.function = function
        self._body = function
        if self.effect is not None:  # what it returns is recorded as the call of the `ToolNode`
            self._body = function = declare(function, self.effect, recorded=False)
        self.name: str = name or infer_name(function)
        self.description: str = description or inspect.getdoc(_code_of(function)) or ""
        if not self.description:
            warn(
                f"tool {self.name!r} has no description, by which a model chooses its tools: give "
                "the function a docstring, or use Tool(function, description=...)"
            )
        self.is_async: bool = inspect.iscoroutinefunction(_code_of(function))
        self._given: dict[str, Getter] = {}
        self._states: dict[str, str | None] = {}
        self._ids: list[str] = []
        self._arguments = self._read_parameters()

    @property
    def wants_state(self) -> bool:
        """Whether a parameter gets the state."""
        return bool(self._states)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as OpenAI's API takes it."""
        named = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**named, "parameters": self.parameters}}

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of what the model fills."""
        return untitled_schema(self._arguments)

    def read(self, text: str) -> dict[str, Any]:
        """The arguments of a call, of the types that the function declares.

        Args:
            text: JSON, as models give it.

        Raises:
            ToolCallError: they do not fit.
        """
        try:
            model = self._arguments.model_validate(parse(text))
        except ValidationError as error:
            raise describe_misfit(error) from error
        fields = type(model).model_fields
        return {str(fields[key].alias): getattr(model, key) for key in model.model_fields_set}

    def fill(self, call_id: str, state: Any = _NO_STATE) -> dict[str, Any]:
        """What the parameters get that the model does not see.

        Raises:
            RuntimeError: outside of a running node.
        """
        task = running(f"tool {self.name!r}") if self._given else None
        return {
            **{name: get(task) for name, get in self._given.items()},
            **{name: _part(state, key) for name, key in self._states.items()},
            **dict.fromkeys(self._ids, call_id),
        }

    def bind(self, call: dict[str, Any], arguments: dict[str, Any]) -> Callable[[], Any]:
        """Return the call as a function without parameters."""
        return partial(self._body, **arguments)

    def _read_parameters(self) -> type[BaseModel]:
        """A model of what the model fills; the other parameters are noted."""
        signature = signature_of(self._body)
        if signature is None:
            raise TypeError(f"tool {self.name!r} must be a function that tells its parameters")
        hints = Hints(_code_of(self.function))
        fields: dict[str, Any] = {}
        for parameter in signature.parameters.values():
            hint = hints.get(parameter.name)
            if self._note_injected(parameter.name, hint):
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(
                    f"tool {self.name!r}: a model cannot fill the parameter {str(parameter)!r}; "
                    "a tool names each of its parameters"
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            # Any name is fine for a parameter, but not for a field of pydantic's.
            field = Field(default, alias=parameter.name)
            fields[f"field_{len(fields)}"] = Any if hint is None else hint, field
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        try:
            return create_model(self.name, __config__=config, **fields)
        except Exception as error:
            raise TypeError(f"tool {self.name!r}: {error}") from error

    def _note_injected(self, name: str, hint: Any) -> bool:
        """Whether a parameter is filled by the graph; noted how."""
        kind = injectable_kind(hint)
        if kind is not None:
            self._given[name] = GETTERS[kind]
            return True
        for mark in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            cls = mark if isinstance(mark, type) else type(mark)
            if issubclass(cls, InjectedState):
                self._states[name] = None if isinstance(mark, type) else mark.key
                return True
            if issubclass(cls, InjectedToolCallId):
                self._ids.append(name)
                return True
        return False

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew: the class that pydantic makes of the parameters cannot be pickled."""
        effect = {} if self.effect is None else self.effect._asdict()
        effect["effect"] = effect.pop("kind", None)
        make = partial(Tool, name=self.name, description=self.description, **effect)
        return make, (self.function,)


class _Untitled(GenerateJsonSchema):
    """Schemas without titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """They never are."""
        return False

    def generate(self, schema: Any, mode: Any = "validation") -> Any:
        """The schema, without the title of the whole."""
        found = super().generate(schema, mode)
        found.pop("title", None)
        return found


def untitled_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model without titles, which only repeat the names."""
    return model.model_json_schema(schema_generator=_Untitled)


def parse(text: str) -> Any:
    """Return the arguments of a call as they stand in JSON.

    Raises:
        ToolCallError: the text is no JSON.
    """
    try:
        return json.loads(text or "{}")
    except ValueError as error:
        raise ToolCallError(f"{type(error).__name__}: {error}") from error


def describe_misfit(error: ValidationError) -> ToolCallError:
    """Return an error that tells the model which arguments do not fit."""
    return ToolCallError("; ".join(map(_describe, error.errors())))


def _code_of(function: Any) -> Any:
    """The function under partials and behind `__call__`, whose docstring and hints count."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def _part(state: Any, key: str | None) -> Any:
    if key is None:
        return state
    return state[key] if isinstance(state, Mapping) else getattr(state, key)


def _describe(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])
