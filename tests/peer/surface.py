"""Prints the public surface of langgraph's modules as JSON: every name, parameter, member and field; run by each engine.

The modules are those named on standard input, or, if it is empty, those of the installed release.
"""

import dataclasses
import importlib
import inspect
import json
import sys
import types
import typing
import warnings
from importlib.metadata import files

from typing_extensions import is_typeddict

DISTRIBUTIONS = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
ALIASES = (types.GenericAlias, types.UnionType, type(typing.Optional[int]), type(list[typing.Any] | int))


def public_modules():
    """The modules of the installed release without an underscore in their path."""
    found = set()
    for distribution in DISTRIBUTIONS:
        for file in files(distribution) or ():
            parts = [part for part in file.with_suffix("").parts if part != "__init__"]
            if file.suffix == ".py" and parts[0] == "langgraph" and not any(part.startswith("_") for part in parts):
                found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return sorted(found)


def public_names(module):
    """What a module exports: `__all__`, what it defines, and what it takes from another public module."""
    exported = getattr(module, "__all__", ())
    return sorted({*exported, *(name for name in dir(module) if _is_own(module, name))})


def _is_own(module, name):
    value = getattr(module, name)
    if name.startswith("_") or isinstance(value, types.ModuleType):
        return False
    if inspect.isclass(value) or inspect.isroutine(value):
        root, *below = str(value.__module__).split(".")
        return root == "langgraph" and not any(part.startswith("_") for part in below)
    if isinstance(value, (*ALIASES, type(typing.Annotated[int, 1]), type(typing.Literal[1]))):
        return not any(hasattr(each, name) for each in (typing, types))
    return name.isupper() and name != "TYPE_CHECKING"


def parameters(function):
    """The names of a callable's parameters, `**` if it takes any; `?` if they cannot be known."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["?"]
    named = [each.name for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return [*named, "**"] if any(each.kind is each.VAR_KEYWORD for each in found) else named


def fields(value):
    """The fields of a tuple or dataclass, in order."""
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if issubclass(value, tuple) and hasattr(value, "_fields"):
        return list(value._fields)
    return []


def describe(value):
    """The parameters of a callable; of a class its members, their parameters and its fields, too."""
    if type(value).__name__ == "_Absent":
        return {"absent": True}
    if not inspect.isclass(value):
        return {"parameters": parameters(value)} if callable(value) and not isinstance(value, ALIASES) else {}
    members = {}
    for name in dir(value):
        if not name.startswith("_") and not hasattr(object, name):
            member = getattr(value, name, None)
            members[name] = parameters(member) if inspect.isroutine(member) else None
    if is_typeddict(value):
        members = dict.fromkeys(value.__annotations__)
    subscripted = hasattr(value, "__class_getitem__")
    return {"parameters": parameters(value), "members": members, "fields": fields(value), "subscripted": subscripted}


SPECIMENS = """
import operator
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import BinaryOperatorAggregate, EphemeralValue, LastValue, Topic
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, TimeoutPolicy, interrupt

def node(state):
    found["Runtime"] = get_runtime()
    found["ExecutionInfo"] = get_runtime().execution_info
    interrupt("ok?")

found = {}
config = {"configurable": {"thread_id": "1"}}
saver = found["InMemorySaver"] = InMemorySaver()
builder = found["StateGraph"] = StateGraph(MessagesState).add_node("a", node).add_edge(START, "a")
app = found["CompiledStateGraph"] = builder.compile(checkpointer=saver)
app.invoke({"messages": []}, config)
state = found["StateSnapshot"] = app.get_state(config)
found |= {
    "PregelNode": app.nodes["a"], "PregelTask": state.tasks[0], "Interrupt": state.interrupts[0],
    "CheckpointTuple": saver.get_tuple(config), "serializer": saver.serde,
    "InMemoryStore": InMemoryStore(index={"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]}),
    "InMemoryCache": InMemoryCache(), "Send": Send("a", 1), "Command": Command(), "Topic": Topic(int),
    "LastValue": LastValue(int), "EphemeralValue": EphemeralValue(int),
    "BinaryOperatorAggregate": BinaryOperatorAggregate(list, operator.add),
    "entrypoint": entrypoint()(lambda x: x), "task": task(lambda x: x), "RetryPolicy": RetryPolicy(),
    "CachePolicy": CachePolicy(), "TimeoutPolicy": TimeoutPolicy(),
}
"""


def specimens():
    """The attributes of objects as programs meet them; of tuples, their items as well."""
    space = {}
    exec(SPECIMENS, space)
    return {
        name: {
            "members": {key: None for key in dir(value) if not key.startswith("_") and not hasattr(tuple, key)},
            "fields": [str(len(value))] if isinstance(value, tuple) else [],
        }
        for name, value in space["found"].items()
    }


def surface(module, names):
    """Its names with their descriptions; None if there is no such module."""
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        return None
    names = public_names(loaded) if names is None else names
    return {name: describe(getattr(loaded, name)) for name in names if hasattr(loaded, name)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asked = json.loads(sys.stdin.read() or "null") or dict.fromkeys(public_modules())
    asked.pop("an object", None)
    everything = {module: surface(module, names) for module, names in asked.items()}
    print(json.dumps({**everything, "an object": specimens()}))
