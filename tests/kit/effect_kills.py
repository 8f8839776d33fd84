"""Processes that are killed around an effect and resumed in another process; a program that prints what came of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stategraph import START, Command, MessagesState, StateGraph, effect, task
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.prebuilt import ToolNode

CONFIG = {"configurable": {"thread_id": "1"}}
PLACES = ("before the effect", "in the effect", "before the record", "after the record")
KINDS = ("undeclared", "pure", "keyed", "irreversible", "irreversible, probe")
WAYS = ("task", "tool", "call")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Receiver:
    """A service that notes each request in a file, with its key; `place` is where its caller's process dies."""

    def __init__(self, file: Path, place: str | None) -> None:
        self.file, self.place, self.has_acted = file, place, False

    def receive(self, key: str = "") -> str:
        if self.place == PLACES[0]:
            die()
        with self.file.open("a") as file:
            file.write(f"{key}\n")
            os.fsync(file.fileno())
        self.has_acted = True
        if self.place == PLACES[1]:
            die()
        return "receipt"

    def find(self) -> str | None:
        return "receipt" if self.received() else None

    def received(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def watch(self, saver: Any) -> None:
        """Die around the first record after the effect; where nothing is recorded, around the commit."""
        for name in ("record", "commit"):
            setattr(saver, name, partial(self._store, getattr(saver, name)))

    def _store(self, store: Any, *given: Any) -> Any:
        if self.has_acted and self.place == PLACES[2]:
            die()
        found = store(*given)
        if self.has_acted and self.place == PLACES[3]:
            die()
        return found


def make_function(kind: str, receiver: Receiver) -> Callable[..., str]:
    def charge() -> str:
        """Charge."""
        return receiver.receive()

    def keyed(idempotency_key: str) -> str:
        """Charge."""
        return receiver.receive(idempotency_key)

    if kind == "undeclared":
        return charge
    if kind == "keyed":
        return effect("keyed")(keyed)
    probe = receiver.find if kind.endswith("probe") else None
    return effect(kind.partition(",")[0], probe=probe)(charge)


def make_node(way: str, kind: str, receiver: Receiver) -> Any:
    """A node that calls the function in one of these ways."""
    function = make_function(kind, receiver)
    if way == "tool":
        return ToolNode([function])
    call = task(name="charge")(function) if way == "task" else function

    def pay(state: MessagesState) -> dict[str, Any]:
        call() if way == "call" else call().result()
        return {}

    return pay


def run(way: str, kind: str, folder: Path, place: str | None) -> dict[str, Any]:
    """Start the thread, or resume it to its end; the answers to its questions are true. What the receiver got."""
    receiver = Receiver(folder / "received", place)
    with SqliteSaver(str(folder / "threads.db")) as saver:
        receiver.watch(saver)
        graph = StateGraph(MessagesState).add_node("pay", make_node(way, kind, receiver)).add_edge(START, "pay")
        app = graph.compile(checkpointer=saver)
        call = {"id": "call 1", "type": "function", "function": {"name": "keyed" if kind == "keyed" else "charge", "arguments": "{}"}}
        message = {"role": "assistant", "content": "", "tool_calls": [call], "id": "1"}
        found = app.invoke({"messages": [message]} if place else None, CONFIG)
        questions = 0
        while "__interrupt__" in found:
            questions += 1
            receipt = receiver.find()
            answer = {"decision": "done", "result": receipt} if receipt else {"decision": "again"}
            found = app.invoke(Command(resume=answer), CONFIG)
        assert not app.get_state(CONFIG).next
    received = receiver.received()
    return {"calls": len(received), "effects": len({*received}) if kind == "keyed" else len(received), "questions": questions}


def in_a_process(work: Callable[[], Any]) -> tuple[int, Any]:
    """The signal that ended a forked process, or 0, and what it returned."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, json.dumps(work()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, json.loads(text) if text else None


def main(folder: Path) -> None:
    found = []
    for way in WAYS:
        for kind in KINDS:
            for place in PLACES:
                own = folder / f"{way} {kind} {place}"
                own.mkdir()
                ended = in_a_process(partial(run, way, kind, own, place))[0]
                _, came = in_a_process(partial(run, way, kind, own, None))
                found.append({"way": way, "kind": kind, "place": place, "killed": ended == signal.SIGKILL, **came})
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
