"""Building graphs: declare a typed state, nodes and edges; `compile` makes a Pregel of them. Nothing here runs."""

from ..pregel.types import END, START
from .builder import StateGraph
from .compile import CompiledStateGraph
from .validate import GraphWarning

__all__ = ["END", "START", "CompiledStateGraph", "GraphWarning", "StateGraph"]
