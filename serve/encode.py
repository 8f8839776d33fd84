"""Encodes values as JSON in the form that clients of LangGraph's server expect. Requests are plain
JSON: no request can name a class to be instantiated."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from typing import Any, Final

import orjson

from ..checkpoint.base import INTERRUPT
from ..pregel.types import Interrupt, PregelTask, Send, StateSnapshot
from .json_messages import for_clients

MAX_DEPTH: Final = 200
"""Values nested deeper than this are encoded as text."""
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS


def encode(value: Any) -> bytes:
    """Encode any value as JSON; values without a JSON form become text."""
    try:
        return orjson.dumps(value, _plain, _OPTIONS)
    except (TypeError, ValueError, RecursionError):
        # The value contains itself, a large integer, a lone surrogate, an unusual key, or an object
        # that raises when it is inspected.
        return json.dumps(_walk(value, ()), separators=(",", ":")).encode()


def decode(text: bytes) -> Any:
    """Parse what `encode` has returned. Each lone surrogate, which cannot be stored or sent on,
    becomes a question mark."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # an integer beyond all floats, or a lone surrogate
        given = json.dumps(json.loads(text), ensure_ascii=False)
        return json.loads(given.encode(errors="replace"))


def _walk(value: Any, above: tuple[int, ...]) -> Any:
    """Return a copy of a value that `json` can encode completely, including integers of any size
    and lone surrogates.

    Args:
        above: the ids of the enclosing values.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return _integer(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if id(value) in above or len(above) >= MAX_DEPTH:
        return _text(value)
    inside = (*above, id(value))
    try:
        if isinstance(value, dict):
            return {_key(key): _walk(each, inside) for key, each in value.items()}
        if isinstance(value, list) or type(value) is tuple:
            return [_walk(each, inside) for each in value]
        try:
            return json.loads(orjson.dumps(value, None, _OPTIONS))  # dates, enums, arrays
        except TypeError:
            return _walk(_plain(value), inside)
    except Exception:  # raised by code of the value's class
        return _text(value)


def _integer(value: int) -> int | str:
    """Return an integer, or its hexadecimal digits if it is so long that Python refuses to convert
    it to decimal ones."""
    try:
        str(value)
    except ValueError:
        return hex(value)
    return value


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(_integer(int(key)))
    try:
        [(name, _)] = json.loads(orjson.dumps({key: None}, None, _OPTIONS)).items()
    except (TypeError, ValueError):
        return _text(key)
    return str(name)


def _text(value: Any) -> str:
    """Return an object as a string, or its type if `str` fails."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _plain(value: Any) -> Any:
    """Return a substitute for a value that JSON has no form for."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, Interrupt):
        return _interrupt(value)
    if isinstance(value, Send):
        return {"node": value.node, "arg": value.arg}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, BaseException):
        return describe_error(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, Collection):
        return [*value]
    return value.isoformat() if isinstance(value, date) else str(value)


def describe_error(error: BaseException) -> dict[str, str]:
    """Describe an exception that a node has raised, for clients and for the record of its
    thread, which holds no lone surrogate."""
    message = _text(error).encode(errors="replace").decode()
    return {"error": type(error).__name__, "message": message}


def describe_snapshot(state: StateSnapshot) -> dict[str, Any]:
    """Describe a thread at one of its checkpoints, for clients."""
    own = _checkpoint(state.config) if state.metadata is not None else None
    parent = _checkpoint(state.parent_config)
    return {
        "values": for_clients(state.values),
        "next": [*state.next],
        "tasks": [_task(task) for task in state.tasks],
        "metadata": state.metadata,
        "created_at": state.created_at,
        "checkpoint": own,
        "parent_checkpoint": parent,
        "interrupts": [_interrupt(each) for each in state.interrupts],
        "checkpoint_id": own and own["checkpoint_id"],
        "parent_checkpoint_id": parent and parent["checkpoint_id"],
    }


def with_questions(values: Any, questions: Sequence[Interrupt]) -> Any:
    """Return a state with the open questions of its thread, as a run that pauses returns it."""
    if not questions:
        return values
    return {**(values if isinstance(values, dict) else {}), INTERRUPT: [*questions]}


def describe_interrupts(state: StateSnapshot) -> dict[str, Any]:
    """Describe the open questions of a thread, by the ids of the tasks that ask them."""
    return {
        task.id: [_interrupt(each) for each in task.interrupts]
        for task in state.tasks
        if task.interrupts
    }


def _interrupt(question: Interrupt) -> dict[str, Any]:
    return {
        "value": question.value,
        "id": question.id,
        "response_schema": question.response_schema,
    }


def _task(task: PregelTask) -> dict[str, Any]:
    nested = task.state
    at = _checkpoint(nested) if isinstance(nested, dict) else None
    return {
        "id": task.id,
        "name": task.name,
        "path": [*task.path],
        "error": None if task.error is None else describe_error(task.error),
        "interrupts": [_interrupt(each) for each in task.interrupts],
        "checkpoint": at,
        "state": describe_snapshot(nested) if isinstance(nested, StateSnapshot) else None,
        "result": for_clients(task.result),
    }


def _checkpoint(config: Any) -> dict[str, Any] | None:
    if not config:
        return None
    place = config.get("configurable", {})
    return {
        "thread_id": place.get("thread_id"),
        "checkpoint_ns": place.get("checkpoint_ns", ""),
        "checkpoint_id": place.get("checkpoint_id"),
    }
