"""The cases of conversations, written once for both engines: a chat that grows by one message a
superstep, as dicts and as LangChain's objects; what is kept of finished chats; and the tokens of a
chat model.

LangChain is imported by the cases that need it: `processes.py` says which, and runs them where it
is installed.
"""

from __future__ import annotations

import operator
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

import sizes
from cases import Engine, limit
from timing import best, live

Make = Callable[[int], Any]
"""number → a message"""


def plain(number: int, content: str = "some words, as people say them") -> Any:
    return {"role": "user", "content": content, "id": f"m{number}"}


def of_langchain(number: int, content: str = "some words, as people say them") -> Any:
    from langchain_core.messages import AIMessage, HumanMessage

    return (HumanMessage if number % 2 else AIMessage)(content, id=f"m{number}")


def chat(e: Engine, turns: int, make: Make = plain) -> Any:
    """A node that says one more, and a router that goes round so many times."""
    schema: Any = TypedDict(  # type: ignore[misc, operator]
        "Chat", {"messages": Annotated[list, e.add_messages], "turn": int}
    )

    def say(state: Any) -> Any:
        return {"messages": [make(1_000_000 + state["turn"])], "turn": state["turn"] + 1}

    def route(state: Any) -> str:
        return "say" if state["turn"] < turns and state["messages"] else "end"

    graph = e.StateGraph(schema)
    graph.add_node("say", say)
    graph.add_edge(e.START, "say")
    graph.add_conditional_edges("say", route, {"say": "say", "end": e.END})
    return graph


def turn(e: Engine, length: int, make: Make = plain, saver: Any = None) -> float:
    """Seconds per superstep of a chat that begins with so many messages."""
    turns = sizes.PEER_TURNS if e.stores_all and saver is not None else sizes.TURNS
    app = chat(e, turns, make).compile(checkpointer=saver)
    given = [make(number) for number in range(length)]
    threads = count()
    options: Any = {} if saver is None else {"durability": "sync"}

    def work(more: int) -> None:
        config = limit(turns, thread_id=str(next(threads)))
        app.invoke({"messages": given, "turn": turns - more}, config, **options)

    # The first superstep looks at all messages; what it costs is taken off.
    whole, first = best(lambda: work(turns), 1), best(lambda: work(1), 1)
    return (whole - first) / (turns - 1)


def turn_in_file(e: Engine, length: int, make: Make = plain) -> float:
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "normal") as saver:
        return turn(e, length, make, saver)


# -- an agent --------------------------------------------------------------------------------------


def words(of: str, turn: int) -> str:
    """A text of 2 KB, another one each time."""
    return f"{of} {turn}: " + "as people say them, " * (sizes.AGENT_TEXT // 20)


def agent(e: Engine) -> Any:
    """Six nodes of an agent's turn: plan, two lookups side by side, a draft, a check, an answer."""
    schema: Any = TypedDict(  # type: ignore[misc, operator]
        "Agent",
        {
            "messages": Annotated[list, e.add_messages],
            "notes": Annotated[list[str], operator.add],
            "plan": str,
            "draft": str,
            "checked": bool,
            "turn": int,
        },
    )

    def answer(state: Any) -> Any:
        said = plain(2 * state["turn"] + 1, state["draft"])
        return {"messages": [{**said, "role": "assistant"}], "turn": state["turn"] + 1}

    graph = e.StateGraph(schema)
    graph.add_node("plan_it", lambda state: {"plan": words("plan", state["turn"])})
    for name in ("search", "recall"):
        graph.add_node(name, lambda state, name=name: {"notes": [words(name, state["turn"])]})
        graph.add_edge("plan_it", name)
    graph.add_node("write", lambda state: {"draft": words(state["notes"][-1][:9], state["turn"])})
    graph.add_node("check", lambda state: {"checked": len(state["draft"]) > 0})
    graph.add_node("answer", answer)
    graph.add_edge(e.START, "plan_it")
    graph.add_edge(["search", "recall"], "write")
    graph.add_edge("write", "check")
    graph.add_conditional_edges(
        "check", lambda state: "answer" if state["checked"] else "write", ["answer", "write"]
    )
    graph.add_edge("answer", e.END)
    return graph


def p44(e: Engine) -> float:
    """Milliseconds per turn of an agent whose texts have 2 KB, with what a chat page reads."""
    modes = ["messages", "updates", "values"]
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "normal") as saver:
        app, threads = agent(e).compile(checkpointer=saver), count()

        def work() -> None:
            config = limit(10, thread_id=str(next(threads)))
            for turn in range(sizes.AGENT_TURNS):
                given = {"messages": [plain(2 * turn, words("user", turn))], "turn": turn}
                for _ in app.stream(given, config, stream_mode=modes, durability="sync"):
                    pass

        return best(work, sizes.AGENT_TURNS) * 1e3


def p21(e: Engine) -> float:
    return turn(e, sizes.CHAT)


def p21_long(e: Engine) -> float:
    return turn(e, sizes.LONG_CHAT)


def p21_file(e: Engine) -> float:
    return turn_in_file(e, sizes.LONG_CHAT)


def p24_chats(e: Engine) -> float:
    """MB that finished chats of 400 KB have left behind."""
    tracemalloc.start()

    def talk() -> None:
        given = [plain(number, "x" * 1_000) for number in range(400)]
        chat(e, 2).compile().invoke({"messages": given, "turn": 0}, limit(2))

    talk()
    before = live()
    for _ in range(sizes.FINISHED):
        talk()
    return max(live() - before, 0) / 1e6


def p35(e: Engine) -> float:
    return turn(e, sizes.CHAT, of_langchain)


def p35_first(e: Engine) -> float:
    """Seconds for a call that gives all messages, and says one."""
    app = chat(e, 1, of_langchain).compile()
    given = [of_langchain(number) for number in range(sizes.CHAT)]
    return best(lambda: app.invoke({"messages": given, "turn": 0}, limit(1)), 1)


def p35_file(e: Engine) -> float:
    return turn_in_file(e, sizes.CHAT, of_langchain)


def p37(e: Engine) -> float:
    """Seconds for a chunk of a chat model that is read from the `messages` stream, whole."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def _generate(self, *args: Any, **options: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("words"))])

        def _stream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
        ) -> Iterator[ChatGenerationChunk]:
            for _ in range(sizes.CHUNKS):
                chunk = ChatGenerationChunk(message=AIMessageChunk(content="words "))
                if run_manager is not None:
                    run_manager.on_llm_new_token("words ", chunk=chunk)
                yield chunk

    model = Scripted()
    schema: Any = TypedDict("Chat", {"messages": Annotated[list, e.add_messages]})  # type: ignore[misc, operator]
    graph = e.StateGraph(schema)
    graph.add_node("ask", lambda state: {"messages": [e.call_model(model, state["messages"])]})
    graph.add_edge(e.START, "ask")
    app = graph.compile()

    def work() -> None:
        chunks = sum(1 for _ in app.stream({"messages": [("user", "hi")]}, stream_mode="messages"))
        assert chunks >= sizes.CHUNKS

    return best(work, sizes.CHUNKS)
