"""Processes that are killed around an effect and resumed in another process; a program that prints what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kit.graphs import Log, chain_of, graph_of, thread_config
from stategraph import START, Command, MessagesState, Send, effect, task
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.prebuilt import ToolNode

CONFIG = thread_config("1")
PLACES = ("before the effect", "in the effect", "before the record", "after the record")
KINDS = ("undeclared", "pure", "keyed", "irreversible", "irreversible, probe")
WAYS = ("task", "tool", "call")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Receiver:
    """A service that notes each request in a file, with its key; `place` is where its caller's process dies."""

    def __init__(self, file: Path, place):
        self.file, self.place, self.has_acted = file, place, False

    def receive(self, key=""):
        if self.place == PLACES[0]:
            die()
        with self.file.open("a") as file:
            file.write(f"{key}\n")
            os.fsync(file.fileno())
        self.has_acted = True
        if self.place == PLACES[1]:
            die()
        return "receipt"

    def find(self):
        return "receipt" if self.received() else None

    def received(self):
        return self.file.read_text().splitlines() if self.file.exists() else []

    def watch(self, saver):
        """Die around the first record after the effect; where nothing is recorded, around the commit."""
        for name in ("record", "commit"):
            setattr(saver, name, partial(self._store, getattr(saver, name)))

    def _store(self, store, *given):
        if self.has_acted and self.place == PLACES[2]:
            die()
        found = store(*given)
        if self.has_acted and self.place == PLACES[3]:
            die()
        return found


def make_function(kind, receiver: Receiver):
    def charge():
        """Charge."""
        return receiver.receive()

    def keyed(idempotency_key):
        """Charge."""
        return receiver.receive(idempotency_key)

    if kind == "undeclared":
        return charge
    if kind == "keyed":
        return effect("keyed")(keyed)
    probe = receiver.find if kind.endswith("probe") else None
    return effect(kind.partition(",")[0], probe=probe)(charge)


def make_node(way, kind, receiver: Receiver):
    """A node that calls the function in one of these ways."""
    function = make_function(kind, receiver)
    if way == "tool":
        return ToolNode([function])
    call = task(name="charge")(function) if way == "task" else function

    def pay(state: MessagesState):
        call() if way == "call" else call().result()
        return {}

    return pay


def run(way, kind, folder: Path, place):
    """Start the thread, or resume it to its end; the answers to its questions are true. What the receiver got."""
    receiver = Receiver(folder / "received", place)
    with SqliteSaver(str(folder / "threads.db")) as saver:
        receiver.watch(saver)
        graph = chain_of(MessagesState, pay=make_node(way, kind, receiver))
        app = graph.compile(saver)
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


def in_a_process(work: Callable[[], Any]):
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


class Shop:
    """Three tasks side by side with two effects each, then one with an effect; its process dies at storing call `at`."""

    def __init__(self, folder: Path, kind, target, *, is_async):
        self.file = folder / "received"
        self.open = partial(PostgresSaver, target) if target else partial(SqliteSaver, str(folder / "threads.db"))
        self.kind, self.is_async = kind, is_async
        self.config = thread_config(folder.name)

    def act(self, item, key):
        with self.file.open("a") as file:
            file.write(f"{item} {key}\n")
            os.fsync(file.fileno())
        return f"receipt for {item}"

    def received(self):
        return self.file.read_text().splitlines() if self.file.exists() else []

    def find(self, item):
        found = any(line.startswith(f"{item} ") for line in self.received())
        return f"receipt for {item}" if found else None

    def make_function(self):
        declare = effect("keyed") if self.kind == "keyed" else effect("irreversible")

        def buy(item, idempotency_key):
            return self.act(item, idempotency_key)

        async def abuy(item, idempotency_key):
            return self.act(item, idempotency_key)

        return declare(abuy if self.is_async else buy)

    def make_app(self, saver):
        buy = self.make_function()

        def pay(task):
            return {"log": [buy(f"{task['lane']}a"), buy(f"{task['lane']}b")]}

        async def apay(task):
            return {"log": [await buy(f"{task['lane']}a"), await buy(f"{task['lane']}b")]}

        def close(state):
            return {"log": [buy("close")]}

        async def aclose(state):
            return {"log": [await buy("close")]}

        graph = graph_of(Log, "pay>close", pay=apay if self.is_async else pay, close=aclose if self.is_async else close)
        graph.add_conditional_edges(START, lambda state: [Send("pay", {"lane": n}) for n in range(3)], ["pay"])
        return graph.compile(saver)

    def sell(self, at, *, stores_first):
        """Begin or resume, and answer questions with the truth; what was stored and received."""
        stored = 0

        def storing(store, *given):
            nonlocal stored
            stored += 1
            if stored == at and not stores_first:
                die()
            found = store(*given)
            if stored == at:
                die()
            return found

        with self.open() as saver:
            for name in ("record", "commit"):
                setattr(saver, name, partial(storing, getattr(saver, name)))
            app = self.make_app(saver)
            given = None if saver.get_tuple(self.config) else {"log": []}
            found = self.call(app, given)
            questions = 0
            while "__interrupt__" in found:
                answers = {}
                for question in found["__interrupt__"]:
                    questions += 1
                    item = question.value["call"].partition("'")[2].partition("'")[0]
                    receipt = self.find(item)
                    answers[question.id] = {"decision": "done", "result": receipt} if receipt else {"decision": "again"}
                found = self.call(app, Command(resume=answers))
            log = app.get_state(self.config).values["log"]
        return {"stored": stored, "received": self.received(), "log": log, "questions": questions}

    def call(self, app, given):
        return asyncio.run(app.ainvoke(given, self.config)) if self.is_async else app.invoke(given, self.config)


def kill_at_each_store(folder: Path, target=""):
    """Print what was received for a death before and after each storing call, in both worlds.

    Args:
        target: a Postgres database; else each thread has a SQLite file.
    """
    found = []
    for kind in ("keyed", "irreversible"):
        for is_async in (False, True):
            warm = folder / f"{kind} {is_async}"  # what it imports is there in each process that comes of this one
            warm.mkdir()
            Shop(warm, kind, target, is_async=is_async).sell(0, stores_first=False)
            for stores_first in (False, True):
                for at in range(1, 100):
                    own = folder / f"{kind} {is_async} {stores_first} {at}"
                    own.mkdir()
                    shop = Shop(own, kind, target, is_async=is_async)
                    ended, came = in_a_process(partial(shop.sell, at, stores_first=stores_first))
                    if not ended:
                        break
                    came = in_a_process(partial(shop.sell, 0, stores_first=False))[1]
                    found.append({"kind": kind, "is_async": is_async, "stores_first": stores_first, "at": at, **came})
    print(json.dumps(found))


def main(folder: Path):
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
    program = {"matrix": main, "stores": kill_at_each_store}[sys.argv[1]]
    program(Path(sys.argv[2]), *sys.argv[3:])
