"""Nodes for tests on worker processes, which import this module."""

from __future__ import annotations

import os

from langchain_core.callbacks import dispatch_custom_event
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool


def model():
    return GenericFakeChatModel(messages=iter([AIMessage("a b", id="i0")]))


@tool
def add(x: int, y: int) -> int:
    """Add."""
    return x + y


def ask(state):
    answer = (RunnableLambda(lambda given: given, name="before") | model()).invoke("q")
    add.invoke({"x": 1, "y": 2})
    dispatch_custom_event("here", {"n": 1})
    return {"messages": [answer], "pid": os.getpid()}


async def aask(state, config):
    answer = await model().ainvoke("q", config)
    return {"messages": [answer], "pid": os.getpid()}


def fail(state):
    return RunnableLambda(lambda given: 1 / 0, name="broken").invoke("q")


def plain(state):
    return {"pid": os.getpid()}
