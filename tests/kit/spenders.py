"""A graph that spends of budgets, and how many of its calls have arrived. `stategraph serve tests/kit/spenders.py:served`
finds it too."""

from __future__ import annotations

from typing import NamedTuple

from kit.fleet import note
from kit.graphs import Log, graph_of
from stategraph import Budget, Runtime, Send
from stategraph.graph import acall_model, call_model

BRANCHES = 8
CALLS = 2 + BRANCHES + 1
"""What a thread calls that nothing disturbs."""
TOKENS = 5
"""Of each call."""


class Model(NamedTuple):
    """Notes each call where it arrives."""

    thread: str
    received: object
    model: str = "small"

    def invoke(self, messages):
        self.received("call", self.thread)
        return {"role": "assistant", "content": "x", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    async def ainvoke(self, messages):
        return self.invoke(messages)


def spender(received=note, is_async=False, **options):
    """Two calls in a row, eight side by side, one more."""

    def calling(times):
        def call(state, runtime: Runtime):
            model = Model(runtime.execution_info.thread_id, received)
            return {"log": [call_model(model, [])["content"] for _ in range(times)]}

        async def acall(state, runtime: Runtime):
            model = Model(runtime.execution_info.thread_id, received)
            return {"log": [(await acall_model(model, []))["content"] for _ in range(times)]}

        return acall if is_async else call

    graph = graph_of(Log, "S>row side>last", row=calling(2), side=calling(1), last=calling(1))
    graph.add_conditional_edges("row", lambda _: [Send("side", {})] * BRANCHES, ["side"])
    return graph.compile(name="spending", **options)


LIMIT = 100
BUDGETS = [Budget(tokens=1_000), Budget(calls=LIMIT, per="user")]
served = spender(budget=BUDGETS)
