"""A supervisor and its workers: the supervisor decides who is next, and each worker is a nested
graph that hands the work back.

    python -m stategraph.examples.supervisor [TOPIC]

There are two ways to hand back: the researcher's last node sends a `Command` to the parent graph
and says where to continue; the writer just ends, and an edge leads on. The "model" that decides is
a script, so that the run is always the same.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from stategraph import END, START, Command, CompiledStateGraph, MessagesState, StateGraph

FACTS = {
    "tea": ["Tea came to Europe around 1610.", "It needs water of 80 to 100 °C."],
    "bees": ["A hive holds up to 60,000 bees.", "They tell each other the way by dancing."],
}


class State(MessagesState):
    """The shared state: a nested graph reads and writes the keys that it has in common with its
    parent."""

    topic: str
    facts: list[str]
    text: str


def say(name: str, content: str) -> list[dict[str, str]]:
    """Return one message, as a list to add to `messages`."""
    return [{"role": "assistant", "name": name, "content": content}]


# -- the workers -----------------------------------------------------------------------------------


class ResearcherState(State):
    """The parent's keys and a private one, which the parent never sees."""

    found: list[str]


def look_up(state: ResearcherState) -> dict[str, Any]:
    """Look up the facts. This writes only the researcher's private key."""
    return {"found": FACTS.get(state["topic"], [])}


def report(state: ResearcherState) -> Command[Any]:
    """Hand back by command: leave this graph, write to the parent, continue at its supervisor.

    The annotation names no node: it can only declare nodes of this graph, which has no supervisor.
    """
    found = state["found"]
    update = {"facts": found, "messages": say("researcher", f"I found {len(found)} facts.")}
    return Command(graph=Command.PARENT, goto="supervisor", update=update)


def build_researcher() -> CompiledStateGraph:
    """Build the graph: look_up -> report -> out."""
    graph = StateGraph(ResearcherState)
    graph.add_sequence([look_up, report])
    graph.add_edge(START, "look_up")
    return graph.compile(name="researcher")


def draft(state: State) -> dict[str, Any]:
    """Put the facts together."""
    return {"text": " ".join(state["facts"])}


def polish(state: State) -> dict[str, Any]:
    """Hand back by ending: the graph's writes go to the parent, whose edge leads on."""
    text = f"{state['topic'].capitalize()}. {state['text']}"
    return {"text": text, "messages": say("writer", f"Done: {len(text.split())} words.")}


def build_writer() -> CompiledStateGraph:
    """Build the graph: draft -> polish."""
    graph = StateGraph(State)
    graph.add_sequence([draft, polish])
    graph.add_edge(START, "draft")
    return graph.compile(name="writer")


# -- the supervisor --------------------------------------------------------------------------------

Choice = Literal["researcher", "writer", "__end__"]


def model(messages: list[dict[str, str]]) -> tuple[Choice, str]:
    """Stand in for a language model: return who is next, and why, from the conversation alone."""
    last = messages[-1]
    if last["role"] == "user":
        return "researcher", "First we need facts."
    if last["name"] == "researcher" and "found 0 facts" not in last["content"]:
        return "writer", "Write it up."
    return END, "Thank you, that is all." if last[
        "name"
    ] == "writer" else "Nothing is known, so we stop."


def supervisor(state: State) -> Command[Choice]:
    """Choose who is next. The checks at compile and the drawings read the possible targets from
    the annotation."""
    goto, why = model(state["messages"])
    return Command(goto=goto, update={"messages": say("supervisor", why)})


def build() -> CompiledStateGraph:
    """Build the team. A compiled graph is a node like any other."""
    graph = StateGraph(State)
    graph.add_node("supervisor", supervisor)
    graph.add_node(
        "researcher", build_researcher(), destinations=["supervisor"]
    )  # where its Command leads
    graph.add_node("writer", build_writer())
    graph.add_edge(START, "supervisor")
    graph.add_edge("writer", "supervisor")
    return graph.compile(name="team")


def main(topic: str) -> None:
    """Print who does what. With `subgraphs=True` each chunk has the path of its graph."""
    request = {"role": "user", "content": f"Tell me about {topic}."}
    print(f"user: {request['content']}")
    text = ""
    stream = build().stream(
        {"topic": topic, "messages": [request]}, stream_mode="updates", subgraphs=True
    )
    for namespace, chunk in stream:
        for node, update in chunk.items():
            if namespace:  # one "worker:task id" per level
                print(f"    {namespace[0].partition(':')[0]} / {node}")
            else:
                message = update["messages"][
                    -1
                ]  # a worker that just ends writes all its messages; the last is new
                print(f"{message['name']}: {message['content']}")
                text = update.get("text", text)
    print(f"\n{text or 'no text'}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tea")
