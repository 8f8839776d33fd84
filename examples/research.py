"""Research: a plan makes questions, a nested graph studies each of them, and a writer joins the
findings.

    python -m stategraph.examples.research [WORD ...]

All questions are studied concurrently, and findings may lead to further questions; the writer
is deferred, so it waits for all of them. Some steps fail: a search fails once and is retried, and
an error handler deals with a damaged page.
"""

from __future__ import annotations

import sys
from operator import add
from typing import Annotated, Any, Literal, TypedDict

from stategraph import (
    END,
    START,
    Command,
    CompiledStateGraph,
    NodeError,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
)
from stategraph import StreamWriter as Writer

CORPUS: dict[str, str | bytes] = {
    "tides": "The Moon pulls the sea. High water comes twice a day. See also: moon, sun.",
    "moon": "The Moon is 384,400 km away. It turns once a month. See also: tides.",
    "sun": "The Sun makes spring tides with the Moon.",
    "waves": b"\xff\xfe damaged",
}

# -- the graph of one question ---------------------------------------------------------------------


class Finding(TypedDict):
    """The keys that the graph of a question shares with the graph around it."""

    findings: Annotated[list[str], add]
    asked: Annotated[list[str], add]  # further questions


class Study(Finding):
    """The state of one question. Its own keys are private: the graphs of several questions run
    concurrently and do not see each other's."""

    word: str
    page: str | bytes
    text: str


def search(state: Study, runtime: Runtime[Any], writer: Writer) -> dict[str, Any]:
    """Find the page. The first search for tides cannot reach the index."""
    assert runtime.execution_info is not None
    attempt = runtime.execution_info.node_attempt
    writer(f"{state['word']}: searching, attempt {attempt}")
    if state["word"] == "tides" and attempt == 1:
        raise ConnectionError("the index does not answer")
    return {"page": CORPUS.get(state["word"], "Nothing is known.")}


def read(state: Study, writer: Writer) -> dict[str, Any]:
    """Get the text of the page."""
    page = state["page"]
    text = page.decode() if isinstance(page, bytes) else page
    writer(f"{state['word']}: read {len(text)} letters")
    return {"text": text}


def give_up(state: Study, error: NodeError, writer: Writer) -> Command[Literal["summarise"]]:
    """Replace a `read` that failed, and say where to continue, because the edges of the failed node
    are not followed."""
    writer(f"{state['word']}: {error.node} failed, {type(error.error).__name__}")
    return Command(goto="summarise", update={"text": "The page is damaged."})


def summarise(state: Study) -> dict[str, Any]:
    """Return the first sentence, and the words to study next."""
    text, _, see_also = state["text"].partition(" See also: ")
    first = text.split(". ")[0].rstrip(".")
    return {
        "findings": [f"{state['word']}: {first}."],
        "asked": see_also.rstrip(".").split(", ") if see_also else [],
    }


def build_study() -> CompiledStateGraph:
    """Build the graph: search -> read -> summarise."""
    graph = StateGraph(Study, output_schema=Finding)
    again = RetryPolicy(
        initial_interval=0, max_attempts=2, retry_on=ConnectionError
    )  # 0: without waiting
    graph.add_node("search", search, retry_policy=again)
    graph.add_node("read", read, error_handler=give_up)
    graph.add_node("summarise", summarise)
    graph.add_edge(START, "search")
    graph.add_edge("search", "read")
    graph.add_edge("read", "summarise")
    graph.add_edge("summarise", END)
    return graph.compile(name="study")


# -- the graph around it ---------------------------------------------------------------------------


class State(Finding):
    """The state. `asked` holds the words of all rounds, `sent` how many of them were sent."""

    words: list[str]
    sent: int
    report: str


def plan(state: State) -> dict[str, Any]:
    """Ask the first round of questions."""
    return {"asked": state["words"]}


def collect(state: State) -> Command[Literal["study"]]:
    """Send one task for every new word, each with its own input; runs once per round."""
    known = set(state["asked"][: state["sent"]])
    new = [word for word in dict.fromkeys(state["asked"][state["sent"] :]) if word not in known]
    return Command(
        goto=[Send("study", {"word": word}) for word in new], update={"sent": len(state["asked"])}
    )


def write(state: State) -> dict[str, Any]:
    """Compose the report."""
    return {
        "report": "\n".join(f"{number}. {text}" for number, text in enumerate(state["findings"], 1))
    }


def build() -> CompiledStateGraph:
    """Build the graph: plan -> collect -> study, concurrently -> collect ... -> write."""
    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("collect", collect)
    graph.add_node("study", build_study())
    graph.add_node("write", write, defer=True)  # waits until nothing else is left to run
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "collect")
    graph.add_edge("plan", "write")
    graph.add_edge("study", "collect")
    graph.add_edge("write", END)
    return graph.compile(name="research")


def main(words: list[str]) -> None:
    """Print what the nodes send while they run, including those in nested graphs, then the
    report."""
    report = ""
    stream = build().stream(
        {"words": words, "sent": 0}, stream_mode=["custom", "values"], subgraphs=True
    )
    for namespace, mode, chunk in stream:
        if mode == "custom":
            print(f"  {namespace[0].partition(':')[0]} / {chunk}")  # one "node:task id" per level
        elif not namespace:
            report = chunk.get("report", report)
    print(report)


if __name__ == "__main__":
    main(sys.argv[1:] or ["tides", "waves"])
