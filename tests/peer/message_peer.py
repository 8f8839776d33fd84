"""Random chats on ours and on the released peer, in one process that has LangChain: prints what differs.

    python message_peer.py CHATS SEED
"""

from __future__ import annotations

import random
import sys
from importlib import import_module

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage

IDS = [f"m{n}" for n in range(12)]
ALL = "__remove_all__"


class Engine:
    """The names that both have."""

    def __init__(self, root):
        graph = import_module(f"{root}.graph")
        self.add_messages = graph.message.add_messages if root == "langgraph" else graph.add_messages
        self.StateGraph, self.MessagesState, self.START, self.END = graph.StateGraph, graph.MessagesState, graph.START, graph.END
        self.Saver = (
            import_module("langgraph.checkpoint.memory").InMemorySaver if root == "langgraph" else import_module(root).InMemorySaver
        )


def message(id, content):
    return (HumanMessage if id[-1] in "02468" else AIMessage)(content, id=id)


def draw(rng: random.Random, known, removals=True):
    """What one node writes: described, so that each engine gets objects of its own. What follows an order to remove all
    is said once and not removed: the peer takes it unmerged, which our design mends."""
    kinds = ["say"] * 6 + (["remove"] * 2 + ["clear"] if removals else [])
    write = [(rng.choice(kinds), rng.choice(IDS[:known]), rng.choice("abc")) for _ in range(rng.randint(0, 4))]
    orders = [kind for kind, _, _ in write]
    if "clear" in orders:
        end = len(orders) - orders[::-1].index("clear")
        write[end:] = {each[1]: each for each in write[end:] if each[0] == "say"}.values()
    return write


def built(write):
    makers = {"say": message, "remove": lambda id, _: RemoveMessage(id=id), "clear": lambda *_: RemoveMessage(id=ALL)}
    return [makers[kind](id, content) for kind, id, content in write]


def shown(messages):
    return [(type(m).__name__, m.id, m.content) for m in messages]


def reduced(engine: Engine, writes):
    """The list after each write, or the kind of error."""
    story = []
    left = []
    for write in writes:
        try:
            left = engine.add_messages(left, built(write))
        except ValueError as error:
            story.append(type(error).__name__)
        else:
            story.append(shown(left))
    return story


def chatted(engine: Engine, writes, edits, nested, fork):
    """A loop with a router that sees the merged list, perhaps as a nested graph; nodes edit old messages in place; then a
    fork from its past, and that checkpoint run again."""
    seen = []
    turn = {"n": 0}

    def node(state):
        n = turn["n"] = turn["n"] + 1
        messages, edit = state["messages"], edits[n % len(edits)]
        if messages and edit is not None:
            messages[edit % len(messages)].content += "!"
        return {"messages": built(writes[n % len(writes)])}

    def route(state):
        seen.append(shown(state["messages"]))
        return "node" if turn["n"] % len(writes) else engine.END

    def loop():
        graph = engine.StateGraph(engine.MessagesState)
        graph.add_node("node", node)
        graph.add_edge(engine.START, "node")
        graph.add_conditional_edges("node", route, ["node", engine.END])
        return graph

    if nested:
        outer = engine.StateGraph(engine.MessagesState)
        outer.add_node("inner", loop().compile())
        outer.add_edge(engine.START, "inner")
        app = outer.compile(checkpointer=engine.Saver())
    else:
        app = loop().compile(checkpointer=engine.Saver())
    thread = {"configurable": {"thread_id": "1"}}
    try:
        app.invoke({"messages": built([("say", id, "start") for id in IDS])}, thread, durability="sync")
        # An update before the input was taken is another matter: see the tests of `update_state`.
        history = [past for past in app.get_state_history(thread) if past.next and past.metadata["step"] >= 0]
        if history:
            past = history[fork[0] % len(history)]
            before = len(seen)
            turn["n"] = 1  # the router decides as it did there
            edited = app.update_state(past.config, {"messages": built(fork[1])}, as_node=None)
            del seen[before:]  # ours may ask the router twice, to see what the edit changes
            turn["n"] = 0
            app.invoke(None, edited, durability="sync")
            turn["n"] = 0
            app.invoke(None, past.config, durability="sync")
    except ValueError as error:
        return seen, type(error).__name__
    return seen, [shown(snapshot.values.get("messages", [])) for snapshot in app.get_state_history(thread)]


def main(chats, seed):
    ours, peer = Engine("stategraph"), Engine("langgraph")
    for number in range(seed, seed + chats):
        rng = random.Random(number)
        writes = [draw(rng, rng.choice([3, 6, 12])) for _ in range(rng.randint(1, 8))]
        stories = [reduced(engine, writes) for engine in (ours, peer)]
        if stories[0] != stories[1]:
            print(f"seed {number}, reducer\n  {writes}\n  ours {stories[0]}\n  peer {stories[1]}")
        spoken = [draw(rng, 12, removals=rng.random() < 0.3) for _ in range(rng.randint(2, 6))]
        edits = [rng.choice([None, rng.randrange(12)]) for _ in spoken]
        fork = rng.randrange(8), draw(rng, 12, removals=False)
        nested = rng.random() < 0.3
        told = [chatted(engine, spoken, edits, nested, fork) for engine in (ours, peer)]
        if told[0] != told[1]:
            print(f"seed {number}, chat{' nested' if nested else ''}\n  {spoken}\n  {edits} {fork}\n  ours {told[0]}\n  peer {told[1]}")
    print("done")


main(*map(int, sys.argv[1:]))
