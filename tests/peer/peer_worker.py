"""The released peer, as a process: reads a described graph as one line of JSON, answers with its whole story.

Run by `test_differential` with the peer's own Python, which has none of our packages. It uses public names only.
"""

import json
import sys
import warnings
from types import SimpleNamespace

from kit.graph_specs import whole_story
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, RetryPolicy, Send

PEER = SimpleNamespace(
    StateGraph=StateGraph, START=START, END=END, Send=Send, Command=Command, Overwrite=Overwrite,
    RetryPolicy=RetryPolicy, InMemorySaver=InMemorySaver,
)  # fmt: skip


def main():
    """One answer per line, until the input ends."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may speak on the line
    for line in sys.stdin:
        asked = json.loads(line)
        # D2: the peer's limit N ends cleanly only what needs N - 1 supersteps.
        try:
            told = whole_story(asked["graph"], PEER, is_async=asked["is_async"], more_steps=1)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
