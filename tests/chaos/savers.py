"""R36 and more: what a saver promises beside storing: overrides are called, files are watched, damage is told."""

from __future__ import annotations

from test_overrides import SYNC, counting, play

from stategraph.checkpoint import InMemorySaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import same

from .campaign import Round, trial


@trial("R36", quick=6, full=400)
def overridden_methods(round: Round) -> None:
    """A subclass of a saver overrides some of its methods, sync or async: a run with questions, answers, a delivery that
    comes twice and a fork calls each of them, and leaves the same history as the class itself."""
    random = round.random
    asynchronous = random.random() < 0.5
    names = tuple(random.sample([("a" if asynchronous else "") + name for name in SYNC], random.randint(1, len(SYNC))))
    world = "async" if asynchronous else random.choice(("sync", "async"))
    base = random.choice((InMemorySaver, SqliteSaver))
    cls = counting(base, names)
    if base is SqliteSaver:
        with SqliteSaver.from_conn_string(":memory:") as plain, cls.from_conn_string(":memory:") as saver:  # type: ignore[attr-defined]
            expected, found = play(plain, world), play(saver, world)
    else:
        saver = cls()
        expected, found = play(InMemorySaver(), world), play(saver, world)
    same(found, expected, f"the history of a {base.__name__} that overrides {', '.join(names)}")
    same([name for name in names if not saver.calls[name]], [], f"methods that were not called, {world}")
    round.count("overridden methods", len(names))
