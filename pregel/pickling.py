"""How a compiled graph is pickled and copied: what it was lent stays where it is, and what cannot
be pickled is named.

Nothing here runs a graph.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Self

from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.serde import Serializer
from .program.program import Program, without_variants

LENT = ("checkpointer", "store", "cache", "executor", "observers")
"""What a graph only uses: copies share it."""

_FUNCTIONS = "define functions and classes at the top of a module, or use cloudpickle"
_LENT = (
    "compile the graph without it, or pickle app.copy({%r: None}), and set it again after loading"
)


class Portable:
    """The part of a compiled graph that knows how to make another of it.

    Attributes:
        types: the annotations whose types its threads may store.
    """

    checkpointer: BaseCheckpointSaver | bool | None
    program: Program
    serde: Serializer
    types: tuple[Any, ...] = ()

    def set_serializer(self) -> None:
        """Take the checkpointer's serializer, or one of its own, which knows no types yet."""
        saver = self.checkpointer
        if isinstance(saver, BaseCheckpointSaver):
            self.serde = saver.for_call({}).serde
        else:
            self.serde = Serializer()
        self.types = ()

    def register_types(self, *hints: Any) -> None:
        """Let its threads store the types that these annotations name, and those that its nested
        graphs store."""
        self.types = (*self.types, *hints)
        for hint in hints:
            self.serde.register_schema(hint)
        for nested in self.program.nested.values():
            self.serde.learn(nested.serde)

    def __getstate__(self) -> dict[str, Any]:
        return _state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.set_serializer()
        self.register_types(*state["types"])

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _deep_copy(self, memo)

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """The same graph, with other values for some attributes."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        for name, value in (update or {}).items():
            if name not in self.__dict__:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            setattr(twin, name, value)
        if "checkpointer" in (update or {}):
            twin.set_serializer()
            twin.register_types(*self.types)
        return twin


def _state_of(app: Any) -> dict[str, Any]:
    """What is pickled of a graph. Its serializer is made anew where it is loaded.

    Raises:
        pickle.PicklingError: naming what cannot be pickled. Not to cloudpickle, which can do more
        than is tried here.
    """
    import pickle

    # Frame 2 is the caller of `__getstate__`; a pickler in C has no frame.
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if "cloudpickle" not in caller and "dill" not in caller:
        for what, part, advice in _parts(app):
            try:
                pickle.dumps(part)
            except Exception as error:
                raise pickle.PicklingError(
                    f"graph {app.name!r} cannot be pickled: {what}: {error}; {advice}"
                ) from error
    state = dict(app.__dict__)
    del state["serde"]
    return {**state, "program": without_variants(app.program)}


def _parts(app: Any) -> Iterator[tuple[str, Any, str]]:
    """What a graph is made of, with its name and what to do if it cannot be pickled."""
    for name in LENT:
        yield f"{name} {type(getattr(app, name)).__name__}", getattr(app, name), _LENT % name
    for key, channel in app.channels.items():
        yield f"key {key!r}", channel, _FUNCTIONS
    for name, node in app.nodes.items():
        yield f"node {name!r}", (node.bound, node.mapper), _FUNCTIONS
        yield f"what follows node {name!r}", node.writers, _FUNCTIONS


def _deep_copy(app: Any, memo: dict[int, Any]) -> Any:
    """A graph of its own, which shares what the other was lent."""
    twin = memo[id(app)] = object.__new__(type(app))
    for name in (*LENT, "serde"):
        memo[id(getattr(app, name))] = getattr(app, name)
    state: Mapping[str, Any] = {**app.__dict__, "program": without_variants(app.program)}
    twin.__dict__.update({name: deepcopy(value, memo) for name, value in state.items()})
    return twin
