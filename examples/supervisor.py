"""A supervisor and its workers: it says who is next, each worker is a graph of its own and hands
the work back.

    python -m stategraph.examples.supervisor [TOPIC]

Two ways to hand back: the researcher's last node sends a `Command` to the graph around it and says
where to go on; the writer just ends, and an edge leads on. The "model" that decides is a script, so
that the run is always the same.
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
    """Shared by all: a worker that is a graph reads and writes the keys that it has in common with
    its parent."""

    topic: str
    facts: list[str]
    text: str


def say(name: str, content: str) -> list[dict[str, str]]:
    """One message, as a list to add to `messages`."""
    return [{"role": "assistant", "name": name, "content": content}]


# -- the workers -----------------------------------------------------------------------------------


class ResearcherState(State):
    """The parent's keys and one of its own, which the parent never sees."""

    found: list[str]


def look_up(state: ResearcherState) -> dict[str, Any]:
    """Writes only the researcher's own key."""
    return {"found": FACTS.get(state["topic"], [])}


def report(state: ResearcherState) -> Command[Any]:
    """Hands back by command: leave this graph, write to the parent, go on at its supervisor.

    The annotation names no node: this graph has no supervisor, and only its own nodes can be
    declared in it.
    """
    found = state["found"]
    update = {"facts": found, "messages": say("researcher", f"I found {len(found)} facts.")}
    return Command(graph=Command.PARENT, goto="supervisor", update=update)


def build_researcher() -> CompiledStateGraph:
    """look_up -> report -> out."""
    graph = StateGraph(ResearcherState)
    graph.add_sequence([look_up, report])
    graph.add_edge(START, "look_up")
    return graph.compile(name="researcher")


def draft(state: State) -> dict[str, Any]:
    """Puts the facts together."""
    return {"text": " ".join(state["facts"])}


def polish(state: State) -> dict[str, Any]:
    """Hands back by ending: what the graph wrote is written to the parent, whose edge leads on."""
    text = f"{state['topic'].capitalize()}. {state['text']}"
    return {"text": text, "messages": say("writer", f"Done: {len(text.split())} words.")}


def build_writer() -> CompiledStateGraph:
    """draft -> polish."""
    graph = StateGraph(State)
    graph.add_sequence([draft, polish])
    graph.add_edge(START, "draft")
    return graph.compile(name="writer")


# -- the supervisor --------------------------------------------------------------------------------

Choice = Literal["researcher", "writer", "__end__"]


def model(messages: list[dict[str, str]]) -> tuple[Choice, str]:
    """Stands in for a language model: who is next, and why. It only sees the conversation."""
    last = messages[-1]
    if last["role"] == "user":
        return "researcher", "First we need facts."
    if last["name"] == "researcher" and "found 0 facts" not in last["content"]:
        return "writer", "Write it up."
    return END, "Thank you, that is all." if last[
        "name"
    ] == "writer" else "Nothing is known, so we stop."


def supervisor(state: State) -> Command[Choice]:
    """The annotation says where it may go; the checks at compile and the drawings know it from
    there."""
    goto, why = model(state["messages"])
    return Command(goto=goto, update={"messages": say("supervisor", why)})


def build() -> CompiledStateGraph:
    """A compiled graph is a node like any other."""
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
    """Print who does what. With `subgraphs=True` each chunk comes with the way to the graph it is
    from."""
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
