"""An approval: a node writes a draft, two people review it at once, their edits lead to a new
draft, and two approvals publish it.

    python -m stategraph.examples.approval
    python -m stategraph.examples.approval --answers edit:"shorter" approve

`interrupt` pauses the run and stores it; the answers may come a second or a year later, here from
the terminal or from the command line. An answer that does not fit its schema is refused, and the
question stays open.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import chain, repeat
from operator import add
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, ValidationError

from stategraph import (
    END,
    START,
    Command,
    CompiledStateGraph,
    InMemorySaver,
    Interrupt,
    StateGraph,
    interrupt,
)
from stategraph import RunnableConfig as Config

PEOPLE = ("editor", "lawyer")


class Verdict(BaseModel):
    """A person's answer; `interrupt` builds it from the dict that was given as the answer."""

    decision: Literal["approve", "reject", "edit"]
    wish: str = ""


class State(TypedDict):
    """The state. Both people write `verdicts` in one superstep, so it has a reducer, which keeps
    the verdicts of all rounds."""

    topic: str
    draft: str
    verdicts: Annotated[list[Verdict], add]
    outcome: str


def write(state: State) -> dict[str, Any]:
    """Write a new draft that includes every wish so far."""
    wishes = [verdict.wish for verdict in state["verdicts"] if verdict.decision == "edit"]
    number = len(state["verdicts"]) // len(PEOPLE) + 1
    return {"draft": ", ".join([f"About {state['topic']}, draft {number}", *wishes])}


def ask(person: str) -> Callable[[State], dict[str, Any]]:
    """Return a node that asks one person. On a resume it starts again from its first line, and
    then `interrupt` returns."""

    def node(state: State) -> dict[str, Any]:
        verdict = interrupt({"to": person, "draft": state["draft"]}, response_schema=Verdict)
        return {"verdicts": [verdict]}

    return node


def decide(state: State) -> Command[Literal["write", "publish", "__end__"]]:
    """Decide what is next. The join waits until both have answered."""
    decisions = {verdict.decision for verdict in state["verdicts"][-len(PEOPLE) :]}
    if "reject" in decisions:
        return Command(goto=END, update={"outcome": "rejected"})
    return Command(goto="write" if "edit" in decisions else "publish")


def publish(state: State) -> dict[str, Any]:
    """Publish the draft, after both have approved it."""
    return {"outcome": f"published: {state['draft']}"}


def build() -> CompiledStateGraph:
    """Build the graph. Only a graph with a checkpointer can pause and resume."""
    graph = StateGraph(State)
    graph.add_node("write", write)
    graph.add_node("decide", decide)
    graph.add_node("publish", publish)
    for person in PEOPLE:
        graph.add_node(person, ask(person))
        graph.add_edge(
            "write", person
        )  # both run in the same superstep, so both questions are asked at once
    graph.add_edge(START, "write")
    graph.add_edge(PEOPLE, "decide")
    graph.add_edge("publish", END)
    return graph.compile(checkpointer=InMemorySaver(), name="approval")


# -- the program -----------------------------------------------------------------------------------


def answer(question: Interrupt, reply: Callable[[str], str]) -> dict[str, str]:
    """Ask a person a question, and split a reply such as `edit: shorter` into decision and wish."""
    prompt = f"{question.value['to']}, do you approve of {question.value['draft']!r}? "
    decision, _, wish = reply(prompt).partition(":")
    return {"decision": decision.strip(), "wish": wish.strip()}


def scripted(words: list[str]) -> Callable[[str], str]:
    """Return a function that replies from a list and repeats the last reply."""
    words_left = chain(words, repeat(words[-1]))

    def reply(prompt: str) -> str:
        word = next(words_left)
        print(prompt + word)
        return word

    return reply


def run(topic: str, reply: Callable[[str], str]) -> None:
    """Run until no question is open, then print the result and the history."""
    app = build()
    thread: Config = {"configurable": {"thread_id": topic}}
    result = app.invoke({"topic": topic}, thread)
    while questions := result.get("__interrupt__"):
        # Answers go by the id of their question: in any order, and not necessarily all at once.
        answers = {question.id: answer(question, reply) for question in questions}
        try:
            result = app.invoke(Command(resume=answers), thread)
        except ValidationError as error:
            print("  not understood:", error.errors()[0]["msg"])
            result = {"__interrupt__": list(app.get_state(thread).interrupts)}  # what is still open
    print(result["outcome"])

    print("\nThe thread, oldest checkpoint first:")
    for snapshot in reversed(list(app.get_state_history(thread))):
        assert snapshot.metadata is not None
        draft = snapshot.values.get("draft", "-")
        step, following = snapshot.metadata["step"], ", ".join(snapshot.next) or "nothing"
        print(f"{step:>3}  next: {following:<15} draft: {draft}")


def main() -> None:
    """Ask at the terminal if there is one and no answers were given; otherwise use the list."""
    parser = argparse.ArgumentParser(
        "approval", description="A draft that two people must approve."
    )
    parser.add_argument("topic", nargs="?", default="tea")
    form = "approve | reject | edit:WISH"
    parser.add_argument(
        "--answers", nargs="+", metavar=form, help="in the order asked; the last one is repeated"
    )
    asked = parser.parse_args()
    if asked.answers is None and sys.stdin.isatty():
        run(asked.topic, input)
    else:
        run(asked.topic, scripted(asked.answers or ["edit: shorter", "approve"]))


if __name__ == "__main__":
    main()
