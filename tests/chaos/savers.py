"""R36 and more: what a saver promises beside storing: overrides are called, files are watched, damage is told."""

from __future__ import annotations

from contextlib import closing

from test_overrides import SYNC, counting, play

from stategraph.checkpoint import InMemorySaver, StorageError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.store.sqlite import SqliteStore
from stategraph.testing import CheckFailed, Commits, same

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


@trial("R39", quick=4, full=50)
def vanished_files(round: Round) -> None:
    """An SQLite file or its journal is deleted, moved away or replaced while a saver and a store have it open: the next
    commit and the next put are refused, so nothing is told stored that nobody can find."""
    random = round.random
    name, how = random.choice(("threads.db", "threads.db-wal")), random.choice(("deleted", "moved", "replaced"))
    file = round.folder / name
    with closing(SqliteSaver(round.folder / "threads.db")) as saver, closing(SqliteStore(round.folder / "threads.db")) as store:
        run = Commits(lambda method, *args: getattr(saver, method)(*args), saver)
        for step in range(random.randint(1, 5)):
            run.step(str(step), a=step)
            store.put(("a",), str(step), {"step": step})
        if how == "moved":
            file.rename(round.folder / "elsewhere")
        else:
            file.unlink()
        if how == "replaced":
            file.write_bytes(b"")
        for what, write in (("commit", lambda: run.step("lost", a=0)), ("put", lambda: store.put(("a",), "lost", {}))):
            try:
                write()
            except StorageError:
                round.count("refused")
            else:
                raise CheckFailed(f"{name} was {how}, and a {what} is told stored")
