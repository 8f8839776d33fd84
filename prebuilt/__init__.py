"""Agents with tools for programs without LangChain: dict messages, plain functions as tools, any
model. Only names are gathered here."""

from .agent import create_agent
from .openai_model import OpenAIModel
from .tool import InjectedState, InjectedToolCallId, Tool, ToolCallError
from .tool_node import ToolDecision, ToolNode, tools_condition

__all__ = [
    "InjectedState",
    "InjectedToolCallId",
    "OpenAIModel",
    "Tool",
    "ToolCallError",
    "ToolDecision",
    "ToolNode",
    "create_agent",
    "tools_condition",
]
