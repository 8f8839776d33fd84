"""R60: what a thread has done by calls with `undo=` is undone: killed while doing and while undoing, the last first."""

from __future__ import annotations

from typing import NamedTuple

from kit.graphs import EMPTY, Log

from stategraph import START, Command, Send, StateGraph, effect
from stategraph.checkpoint.base import UNDOING
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.testing.harness import Mode

from .campaign import trial
from .killer import WRITING, Kill, Killer, Kills
from .stages import Storage, Synced, config, sqlite

SENT = str.maketrans("mn", "ss")
"""The two Sends run side by side."""


class Play(NamedTuple):
    """One saga: what its calls declare, in which world, and whether a killed run goes on before it is undone."""

    kind: str
    world: str
    goes_on: bool


class Shop:
    """Two nodes, a graph inside and two Sends buy; a call notes what is bought, or with a `-` cancelled, and its key."""

    def __init__(self, play: Play, ledger: Ledger, killer: Killer):
        self.play, self.ledger, self.killer = play, ledger, killer

    def act(self, item, key):
        self.ledger.note(item, key)
        self.killer.passing("effect")
        return f"receipt for {item}"

    def make_app(self, saver):
        kind, is_async = self.play.kind, self.play.world == "async"

        def cancel(item, result, idempotency_key):
            assert result == f"receipt for {item}"
            return self.act(f"-{item}", idempotency_key)

        async def acancel(item, result, idempotency_key):
            return cancel(item, result, idempotency_key)

        undo = effect(kind)(acancel if is_async else cancel)

        def buy(item, idempotency_key):
            return self.act(item, idempotency_key)

        async def abuy(item, idempotency_key):
            return buy(item, idempotency_key)

        bought = effect(kind, undo=undo)(abuy if is_async else buy)
        self.functions = bought, undo  # found by their names as long as they are there

        def buying(*items):
            async def anode(_):
                return {"log": [await bought(item) for item in items]}

            return anode if is_async else lambda _: {"log": [bought(item) for item in items]}

        async def asent(task):
            return await buying(task["item"])(task)

        inner = StateGraph(Log).add_sequence([("x", buying("x")), ("y", buying("y1", "y2"))]).add_edge(START, "x")
        graph = StateGraph(Log).add_sequence([("a", buying("a")), ("inner", inner.compile())]).add_edge(START, "a")
        graph.add_node("sent", asent if is_async else lambda task: buying(task["item"])(task))
        graph.add_conditional_edges("inner", lambda _: [Send("sent", {"item": item}) for item in "mn"], ["sent"])
        return graph.compile(saver)

    def answer(self, question):
        """The truth about a call of which nobody knows whether it was made."""
        call = question.get("call") or question["effect"]
        item = call.partition("'")[2].partition("'")[0]
        item = f"-{item}" if "cancel" in call.partition("(")[0] else item
        if any(noted == item for noted, _ in self.ledger.read()):
            return {"decision": "done", "result": f"receipt for {item}"}
        return {"decision": "again" if "call" in question else "not done"}


def run(storage: Storage, play: Play, path, plan: Kill):
    """Buy and then undo all of it, from wherever an earlier process has come; how often each place was passed."""
    killer = Killer(plan)
    shop, at = Shop(play, Synced(path), killer), config()
    with storage.open() as saver, Mode(play.world) as world:
        killer.watch(saver, WRITING)
        killer.start()
        app = shop.make_app(saver)

        def settle():
            while (state := world.call(app, "get_state", at)).interrupts:
                killer.passing("question")
                answers = {each.id: shop.answer(each.value) for each in state.interrupts}
                world.call(app, "invoke", Command(resume=answers), at)
            return state

        head = saver.get_tuple(at)
        if head is None:
            world.call(app, "invoke", EMPTY, at)
        elif play.goes_on and UNDOING not in head.metadata and not any(item[0] == "-" for item, _ in shop.ledger.read()):
            settle()
            if world.call(app, "get_state", at).next:
                world.call(app, "invoke", None, at)
                settle()
        world.call(app, "undo", at, reason="killed")
        state = settle()
        assert_same((state.values.get("log", []), state.next), ([], ()), "what is left after undoing")
    return killer.passed


@trial("R60", quick=3, full=1_000, on_postgres=(1, 300))
def killed_sagas(round, storage: Storage):
    """A run buys six times, in nodes, a graph inside and two Sends, and is undone; it is killed one to four times while it
    buys or undoes: inside the saver, around its writes, within a call, at a random moment. Calls are keyed or irreversible;
    questions about a call that may have been made are answered with the truth. Each call is undone once, the last first."""
    random = round.random
    play = Play(random.choice(["keyed", "irreversible"]), random.choice(["sync", "async"]), random.random() < 0.5)
    path = round.folder / "ledger"
    kills = Kills(round, play, (run, storage, play, path), (run, sqlite(round, "dry"), play, round.folder / "dry"))
    for _ in range(random.choice([1, 2, 3, 4])):
        kills.kill(random.choice(["saver", "before", "after", "effect", "moment"]), 200)
    where = kills.end()
    notes = Ledger(path).read()
    keys = {}
    for item, key in notes:
        if keys.setdefault(item, key) != key:
            raise CheckFailed(f"{where}: {item} was repeated with another key")
    if play.kind == "irreversible":
        assert_same(len(notes), len(keys), f"{where}: calls, each made once")
    done = "".join(item for item in keys if not item.startswith("-"))
    undone = "".join(item[1:] for item in keys if item.startswith("-"))
    assert_same(sorted(undone), sorted(done), f"{where}: what was undone")
    mirrored = [item for item in reversed(keys) if not item.startswith("-")]
    assert_same(undone.translate(SENT), "".join(mirrored).translate(SENT), f"{where}: the order of undoing")
    round.count("kills", kills.number)
    round.count("calls undone", len(keys) // 2)
    round.count("calls repeated with their key", len(notes) - len(keys))
