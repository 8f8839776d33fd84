"""R20, R35: time travel is exact, inside nested graphs too, and forks, edits, prunes and copies never touch what they are
made from."""

from __future__ import annotations

import asyncio
import copy
from contextlib import ExitStack

from hypothesis import HealthCheck, Phase, given, seed, settings
from kit.drive import Drive
from kit.nested_travel import CALLS, KEEPS, Nest, travel
from properties.history_model import STEPS, World, follow

from stategraph import InMemorySaver
from stategraph.checkpoint.base import address
from stategraph.testing import CheckFailed, Commits, assert_same

from .campaign import trial
from .stages import postgres, sqlite


def drawn(random, examples, strategy, check):
    """Call `check` with so many drawn values; a failing one is made small."""

    @seed(random.getrandbits(64))
    @settings(
        max_examples=examples, database=None, deadline=None, derandomize=False, print_blob=False,
        suppress_health_check=[*HealthCheck], phases=[Phase.generate],
    )  # fmt: skip
    @given(strategy)
    def run(value):
        check(value)

    run()


@trial("R20", quick=2, full=2_500)
def calls_on_threads(round):
    """Any sequence of 40 inputs, answers, updates, edits, forks and replays, in SQLite and in memory: the history that a
    plain model says, and nothing that was there before ever changes."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner()) if round.random.random() < 0.3 else None
        storage = round.random.choice([None, sqlite(round)])

        def check(steps):
            with ExitStack() as inner:
                saver = InMemorySaver() if storage is None else inner.enter_context(storage.open())
                if storage is not None:
                    saver.delete_thread("t")
                follow(World(runner, saver), steps)

        drawn(round.random, 2, STEPS, check)
    round.count("calls", 80)


@trial("R35", quick=3, full=3_000)
def calls_inside(round):
    """Graphs three deep, each with any `checkpointer`, paused and answered in two turns; then replays, answers and edits at
    any of their checkpoints, sync and async: what follows runs once from there, with the state of then, and nothing that
    was there changes."""
    random = round.random
    nest = Nest(Drive(random.random() < 0.3), random.choice(KEEPS), random.choice(KEEPS))
    for stop in random.sample(nest.stops, min(8, len(nest.stops))):
        try:
            travel(nest, stop, random.choice(CALLS))
        except AssertionError as error:
            raise CheckFailed(f"{nest.keeps}: {error}") from error
        round.count("calls")


# -- below the engine: what savers are asked --------------------------------------------------------------------


class Model:
    """One thread as a dict would keep it: the commits it is made by, what tasks wrote beside them, who follows whom."""

    def __init__(self, run: Commits):
        self.run = run
        self.order = []
        self.parents = {}
        self.writes = {}

    def copied(self, name):
        """The same under another name."""
        other = Model(Commits(self.run.call, _Dumps(self.run.dumps), name))
        other.run.head, other.run.expected = self.run.head, copy.deepcopy(self.run.expected)
        other.run.steps = dict(self.run.steps)
        other.order, other.parents = [*self.order], dict(self.parents)
        other.writes = copy.deepcopy(self.writes)
        return other

    def keep(self, ids):
        """Forget the others."""
        for id in ids:
            parent = self.parents[id]
            while parent is not None and parent not in ids:
                parent = self.parents.get(parent)
            self.parents[id] = parent
        self.order = ids
        for known in (self.parents, self.writes, self.run.expected, self.run.steps):
            for id in [*known]:
                if id not in ids:
                    del known[id]  # type: ignore[attr-defined]
        self.run.head = ids[-1] if ids else None


class _Dumps:
    """Stands for a saver where only its serializer is asked for."""

    def __init__(self, dumps):
        self.serde = self
        self.dumps = dumps


class Threads:
    """A saver and its model: every call goes to both."""

    def __init__(self, random, storage):
        self.random, self.storage = random, storage
        self.stack = ExitStack()
        self.saver = self.opened()
        self.models = {}
        self.number = 0
        self.done = []

    def opened(self):
        return InMemorySaver() if self.storage is None else self.stack.enter_context(self.storage.open())

    def call(self, method, *args):
        return getattr(self.saver, method)(*args)

    def step(self):
        """Do anything."""
        random = self.random
        name = random.choice("ab")
        model = self.models.get(name) or self.models.setdefault(name, Model(Commits(self.call, self.saver, name)))
        kinds = ["commit"] * 12 + ["fork", "fork", "write", "write", "prune", "copy", "delete", "reopen"]
        kind = random.choice(kinds) if model.order else "commit"
        self.done.append(f"{kind} {name}")
        getattr(self, kind)(model, name)

    def commit(self, model: Model, name, parent="head"):
        run, random = model.run, self.random
        parent = run.head if parent == "head" else parent
        self.number += 1
        id = f"{self.number}"
        values = run.expected[parent]["channel_values"] if parent else {}
        changed = {key: mutated(values.get(key), random) for key in random.sample("uvwx", random.choice([1, 1, 2, 4]))}
        writes = [(f"t{self.number}.{n}", [("u", self.number), ("v", ["w" * 70])]) for n in range(random.randrange(3))]
        writes = writes if parent else []
        run.step(id, parent, writes=writes, **changed)
        model.order.append(id)
        model.parents[id] = parent
        for task, pairs in writes:
            model.writes.setdefault(parent or "", []).extend((task, *pair) for pair in pairs)

    def fork(self, model: Model, name):
        self.commit(model, name, self.random.choice(model.order))

    def write(self, model: Model, name):
        self.number += 1
        id, task = self.random.choice(model.order), f"t{self.number}"
        self.saver.put_writes(address(name, "", id), [("u", self.number), ("w", {"k": "v" * 99})], task)
        model.writes.setdefault(id, []).extend([(task, "u", self.number), (task, "w", {"k": "v" * 99})])

    def prune(self, model: Model, name):
        last = self.random.choice([1, 3, 10, 40])
        self.saver.prune([name], keep_last=last)
        model.keep(model.order[-last:])

    def copy(self, model: Model, name):
        for other in "cd":
            if other not in self.models:
                self.saver.copy_thread(name, other)
                self.models[other] = model.copied(other)
                return
        swapped = self.models.pop("c")
        self.saver.delete_thread(name)
        self.saver.copy_thread("c", name)
        self.saver.delete_thread("c")
        self.models[name] = swapped.copied(name)

    def delete(self, model: Model, name):
        if self.random.random() < 0.2:
            self.saver.delete_thread(name)
            del self.models[name]

    def reopen(self, model: Model, name):
        if self.storage is not None:
            self.stack.close()
            self.saver = self.opened()

    def compare(self):
        """Everything that can be read is what the model says."""
        after = f"after {len(self.done)} steps ({' '.join(self.done[-6:])}): "
        for name, model in self.models.items():
            found = [*self.saver.list(address(name, ""))][::-1]
            assert_same([each.checkpoint["id"] for each in found], model.order, f"{after}checkpoints of {name!r}")
            assert_same(self.saver.head(address(name, "")), model.order[-1] if model.order else None, f"{after}head of {name!r}")
            one = self.random.choice(found)
            for each in [*found, self.saver.get_tuple(one.config), self.saver.get_tuple(address(name, ""))]:
                id = each.checkpoint["id"]
                assert_same(each.checkpoint, model.run.expected[id], f"{after}checkpoint {id!r} of {name!r}")
                parent = each.parent_config and each.parent_config["configurable"]["checkpoint_id"]
                assert_same(parent, model.parents[id], f"{after}parent of {id!r}")
                wanted = sorted(model.writes.get(id, ()), key=lambda write: write[0])
                assert_same([tuple(w) for w in each.pending_writes or ()], wanted, f"{after}writes beside {id!r}")


def mutated(value, random):
    """Another value of a channel: mostly the old one with a little changed."""
    if value is None or random.random() < 0.15:
        return random.choice([..., random.randrange(9), ["x" * 40] * random.randrange(1, 40), {"k": "v" * 200}])
    if isinstance(value, list) and random.random() < 0.8:
        new = [*value]
        at = random.randrange(len(new) + 1)
        new[at : at + random.choice([0, 0, 1])] = [f"{random.random()}"] if random.random() < 0.8 else []
        return new
    if isinstance(value, dict):
        return {**value, f"k{random.randrange(20)}": random.choice([1, "v" * 80])}
    return random.randrange(9)


STORED = ("memory", "sqlite", "sqlite", "postgres")


@trial("R20", quick=3, full=8_000)
def calls_on_savers(round):
    """120 commits, forks, writes, prunes, copies and deletes on a saver against a dict: no difference, also when it is
    opened anew in between. In memory, SQLite and Postgres."""
    kind = STORED[round.number % 4]
    storage = {"memory": lambda: None, "sqlite": lambda: sqlite(round), "postgres": lambda: postgres(round)}[kind]()
    threads = Threads(round.random, storage)
    try:
        for number in range(120):
            threads.step()
            if number % 20 == 19:
                threads.compare()
    except Exception as error:
        raise CheckFailed(f"{kind}, after {len(threads.done)} steps: {type(error).__name__}: {error}") from error
    finally:
        threads.stack.close()
    round.count("steps", 120)
