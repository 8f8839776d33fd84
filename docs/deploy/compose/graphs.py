"""The graph that the servers offer and the workers run."""

from operator import add
from typing import Annotated, TypedDict

from stategraph import START, StateGraph, interrupt


class Order(TypedDict):
    """The state."""

    item: str
    log: Annotated[list[str], add]


def approve(state: Order) -> dict[str, list[str]]:
    """Ask a person."""
    return {"log": [f"approved: {interrupt('Order ' + state['item'] + '?')}"]}


orders = (
    StateGraph(Order).add_node("approve", approve).add_edge(START, "approve").compile(name="orders")
)
