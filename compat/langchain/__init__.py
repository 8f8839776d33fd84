"""LangChain's objects understood: messages, callbacks, Runnables, tools. Needs `langchain-core`."""

from .tools import adopt_command

adopt_command()
