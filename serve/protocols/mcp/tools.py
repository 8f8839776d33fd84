"""Presents graphs as MCP tools, their outputs as tool results, their questions as forms. Pure."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jsonschema import Draft202012Validator  # type: ignore[import-untyped, unused-ignore]
from mcp.types import CallToolResult, ElicitRequest, ElicitRequestFormParams, TextContent, Tool

from ....checkpoint.base import INTERRUPT
from ....graph.messages.reducer import MessageFolding
from ....pregel.app import Pregel
from ...json_messages import prompt_of

ANSWER: Final = "answer_question"
"""The tool with which clients that cannot show questions answer them."""
_THREAD: Final = {
    "type": "string",
    "description": "Goes on with the thread of an earlier call; a new one by default.",
}
_QUESTION: Final = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "value": {}, "response_schema": {}},
    "required": ["id"],
}
_MESSAGES: Final = {
    "type": "array",
    "description": 'Messages, such as {"role": "user", "content": "hi"}.',
    "items": {
        "type": ["object", "string", "array"],
        "properties": {"role": {"type": "string"}, "content": {}},
        "required": ["content"],
    },
}
"""The schema of a key of messages. That of LangChain's classes has 20 KB, and refuses dicts with a
role, which the key takes."""
_PRIMITIVE: Final = ("string", "number", "integer", "boolean")
_LIMITS: Final = ("minimum", "maximum", "minLength", "maxLength")
_KEPT: Final = frozenset(("type", "title", "description", "default", "enum", "format", *_LIMITS))
_REFERENCE: Final = re.compile(r'"#/\$defs/([^"]+)"')
_FORMATS: Final = ("email", "uri", "date", "date-time")


@dataclass(frozen=True, slots=True)
class GraphTool:
    """A graph as a tool.

    Attributes:
        graph_id: the name under which the graph is served.
        takes_object: whether the graph's input is an object. A tool's must be: other inputs are
            passed as the argument `input`.
        takes_thread: whether the tool adds the argument `thread_id`.
    """

    graph_id: str
    tool: Tool
    takes_object: bool
    takes_thread: bool

    def read(self, arguments: Mapping[str, Any]) -> tuple[str | None, Any]:
        """Return the thread that a call asks for, and the graph's input.

        Raises:
            ValueError: the arguments do not match the tool's schema.
        """
        validator = Draft202012Validator(self.tool.input_schema)
        wrong = [f"{each.json_path}: {each.message}" for each in validator.iter_errors(arguments)]
        if wrong:
            raise ValueError("; ".join(wrong))
        given = dict(arguments)
        thread_id = given.pop("thread_id", None) if self.takes_thread else None
        return thread_id, given if self.takes_object else given["input"]


def make_tools(graphs: Mapping[str, Pregel]) -> dict[str, GraphTool]:
    """Return the tools of some graphs, by name: the graph's name, with `_` for each character that
    a tool's name must not have."""
    tools: dict[str, GraphTool] = {}
    for graph_id, app in graphs.items():
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", graph_id)[:64]
        while name in tools:
            name += "_"
        tools[name] = _make_tool(name, graph_id, app)
    return tools


def _make_tool(name: str, graph_id: str, app: Pregel) -> GraphTool:
    given = _with_messages(app.get_input_jsonschema(), app)
    made = _with_messages(app.get_output_jsonschema(), app)
    inputs, outputs = _object(given, "input"), _object(made, "result")
    takes_thread = "thread_id" not in inputs["properties"]
    if takes_thread:
        inputs["properties"] = {**inputs["properties"], "thread_id": _THREAD}
    # No output is required: a graph that asks has none yet, and keys that no node has written are
    # missing.
    outputs.pop("required", None)
    asked = {INTERRUPT: {"type": "array", "items": _QUESTION}, "thread_id": {"type": "string"}}
    outputs["properties"] = {**asked, **outputs["properties"]}
    tool = Tool(
        name=name,
        description=_describe(graph_id, app, given),
        input_schema=inputs,
        output_schema=outputs,
    )
    return GraphTool(graph_id, tool, _is_object(given), takes_thread)


def _with_messages(schema: dict[str, Any], app: Pregel) -> dict[str, Any]:
    """Return a schema of a state with the short schema of its messages, without the definitions
    that it then needs no more."""
    found = {
        key: _MESSAGES
        for key in schema.get("properties", ())
        if isinstance(getattr(app.channels.get(key), "folding", None), MessageFolding)
    }
    if not found:
        return schema
    short = {**schema, "properties": {**schema["properties"], **found}}
    known: dict[str, Any] = short.pop("$defs", {})
    needed: dict[str, Any] = {}
    left = [short]
    while left:
        names = _REFERENCE.findall(json.dumps(left.pop()))
        fresh = {name: known[name] for name in names if name in known and name not in needed}
        needed |= fresh
        left += fresh.values()
    return {**short, "$defs": needed} if needed else short


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and "properties" in schema


def _object(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the schema of an object: the given one, or one that has the value as `key`."""
    if _is_object(schema):
        return dict(schema)
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {key: inner}, "required": [key], **defs}


def _describe(graph_id: str, app: Pregel, schema: Mapping[str, Any]) -> str:
    """Return the description in the input's schema, or the docstring of the only node's
    function."""
    if text := schema.get("description"):
        return str(text)
    node = app.nodes.get(app.name)
    if node is not None and len(app.nodes) == 1 and node.bound:
        function: Any = node.bound[0].source
        if inspect.isfunction(function) and function.__doc__:
            return inspect.cleandoc(function.__doc__)
    return f"Runs the graph {graph_id}."


def make_answer_tool() -> Tool:
    """Return the tool that answers a question."""
    arguments = {
        "thread_id": {"type": "string", "description": "The thread that asks."},
        "answer": {"description": "The answer, as the question's response_schema wants it."},
        "question": {"type": "string", "description": "Its id, if the thread asks several."},
    }
    return Tool(
        name=ANSWER,
        description="Answers a question that another tool of this server has returned.",
        input_schema={
            "type": "object",
            "properties": arguments,
            "required": ["thread_id", "answer"],
        },
    )


# -- results -----------------------------------------------------------------------------------


def show_result(values: Any, thread_id: str) -> CallToolResult:
    """Return a graph's output as a tool result."""
    shown = values if isinstance(values, dict) else {"result": values}
    return _show(json.dumps(shown), shown, thread_id)


def show_questions(questions: Iterable[Mapping[str, Any]], thread_id: str) -> CallToolResult:
    """Return a graph's questions as a tool result that says how to answer them."""
    asked = [*questions]
    shown = {INTERRUPT: asked, "thread_id": thread_id}
    lines = [
        f"Not done yet: the graph asks. Call {ANSWER} with thread_id={thread_id!r} and the answer.",
        *(json.dumps(each) for each in asked),
    ]
    return _show("\n".join(lines), shown, thread_id)


def _show(text: str, shown: dict[str, Any], thread_id: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=shown,
        _meta={"thread_id": thread_id},
    )


def show_error(text: str, thread_id: str | None = None) -> CallToolResult:
    """Return an error as a tool result, with its thread if one has begun."""
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        is_error=True,
        _meta=None if thread_id is None else {"thread_id": thread_id},
    )


# -- forms -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """A question as a form with fields for texts, numbers and choices.

    Attributes:
        is_value: whether the answer is the value of the only field, instead of all fields.
    """

    message: str
    schema: dict[str, Any]
    is_value: bool

    def request(self) -> ElicitRequest:
        """Return the request to show it."""
        params = ElicitRequestFormParams(message=self.message, requested_schema=self.schema)
        return ElicitRequest(params=params)

    def read(self, content: Mapping[str, Any] | None) -> Any:
        """Return the answer in a completed form."""
        filled = dict(content or {})
        return filled.get("answer") if self.is_value else filled


def make_form(question: Mapping[str, Any]) -> Form | None:
    """Return a question as a form; None if its answer does not fit a form."""
    message = _message(question["value"])
    schema = question["response_schema"]
    if schema is None:
        schema = {"type": "string", "title": "Answer"}
    if not isinstance(schema, dict):
        return None
    defs = schema.get("$defs", {})
    whole = _resolve(schema, defs)
    if whole.get("type") == "object" and whole.get("properties"):
        fields = {key: _field(each, defs) for key, each in whole["properties"].items()}
        if not all(fields.values()):
            return None
        required = [key for key in whole.get("required", ()) if key in fields]
        form = {"type": "object", "properties": fields, "required": required}
        return Form(message, form, is_value=False)
    field = _field(whole, defs)
    if field is None:
        return None
    form = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
    return Form(message, form, is_value=True)


def _message(value: Any) -> str:
    """Return what the person reads: the question's text, and the rest of its value as JSON."""
    prompt = prompt_of(value)
    if prompt is None:
        return json.dumps(value)
    rest = {key: each for key, each in value.items() if each != prompt} if value != prompt else {}
    return f"{prompt}\n{json.dumps(rest)}" if rest else prompt


def _field(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a form field for a text, a number, a boolean or a choice of texts; None for others."""
    found = _resolve(schema, defs)
    if "const" in found:
        found = {"type": "string", **found, "enum": [found["const"]]}
    choices = found.get("enum")
    if found.get("type") not in _PRIMITIVE:
        return None
    if choices is not None and not all(isinstance(each, str) for each in choices):
        return None
    kept = {key: value for key, value in found.items() if key in _KEPT and value is not None}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    return kept


def _resolve(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without references at its root and without the alternative null."""
    found = dict(schema)
    for _ in range(10):
        if "$ref" in found:
            place = str(found.pop("$ref")).rpartition("/")[2]
            found = {**defs.get(place, {}), **found}
        elif options := [each for each in found.get("anyOf", ()) if each.get("type") != "null"]:
            if len(options) != 1:
                return {}
            del found["anyOf"]
            found = {**options[0], **found}
        else:
            return found
    return {}
