"""R38: what was streamed once is not streamed again."""

import asyncio
from collections import Counter
from contextlib import suppress

from stategraph import START, Command, InMemorySaver, MessagesState, StateGraph, interrupt
from stategraph.testing import assert_same

from .campaign import trial
from .stages import config


class Drawn:
    """Nested graphs drawn by chance, whose nodes each say one message, with or without an id, and may ask or fail."""

    def __init__(self, random):
        self.random = random
        self.is_async = random.random() < 0.5
        self.failed = set()
        self.said = []

    def speaker(self, name):
        asks, named, fails = (self.random.random() < share for share in (0.4, 0.5, 0.2))
        message = {"role": "assistant", "content": name, **({"id": name} if named else {})}

        def node(_):
            if asks:
                interrupt(name)
            if fails and name not in self.failed:
                self.failed.add(name)
                raise ValueError(name)
            return {"messages": [message]}

        self.said.append(name)
        return node

    def graph(self, name, depth, saver=None):
        graph, before = StateGraph(MessagesState), START
        in_a_row = self.random.random() < 0.6
        for number in range(self.random.randrange(1, 4)):
            inside = depth > 0 and self.random.random() < 0.5
            node = f"{name}{number}"
            graph.add_node(node, self.nested(node, depth - 1) if inside else self.speaker(node))
            graph.add_edge(before, node)
            before = node if in_a_row else START
        return graph.compile(saver)

    def nested(self, name, depth):
        child = self.graph(f"{name}.", depth)
        if self.random.random() < 0.6:
            return child

        async def acall(_):
            return {"messages": (await child.ainvoke({"messages": []}))["messages"]}

        return acall if self.is_async else lambda _: {"messages": child.invoke({"messages": []})["messages"]}


@trial("R38", quick=15, full=3_000)
def messages_shown_once(round):
    """Nested graphs, as nodes and called by functions, in rows and side by side, whose nodes ask and fail: over all calls
    that it takes, with `subgraphs` and without, in each durability, each message is streamed once."""
    drawn = Drawn(round.random)
    app = drawn.graph("n", round.random.randrange(1, 4), InMemorySaver())
    options = {
        "stream_mode": "messages",
        "subgraphs": (subgraphs := round.random.random() < 0.6),
        "durability": round.random.choice(["sync", "async", "exit"]),
    }
    shown = []

    def note(chunk):
        message, _ = chunk[1] if subgraphs else chunk
        shown.append(message["content"])

    async def read(given):
        async for chunk in app.astream(given, config(), **options):
            note(chunk)

    given = {"messages": []}
    while True:
        with suppress(ValueError):
            if drawn.is_async:
                asyncio.run(read(given))
            else:
                for chunk in app.stream(given, config(), **options):
                    note(chunk)
        round.count("calls")
        state = app.get_state(config())
        if state.metadata and not state.next:
            break
        asked = state.interrupts
        given = Command(resume={round.random.choice(asked).id: 1}) if asked else None if state.metadata else given
    assert_same(Counter(shown), Counter(drawn.said), f"messages shown ({options})")
    round.count("messages", len(shown))
