"""The cases of a server: many live threads at once on one SQLite file, or one Postgres."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

import server
import sizes
from cases import Engine, limit, loop
from timing import abest, best, live


class Text(TypedDict):
    n: int
    text: str


async def tick(state: Any) -> Any:
    return {"n": state["n"] + 1}


@contextmanager
def opened(e: Engine, synchronous: str) -> Iterator[Any]:
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", synchronous) as saver:
        yield saver


@contextmanager
def served(e: Engine, durable: bool = True) -> Iterator[Any]:
    """A saver on a Postgres server; a durable one flushes each commit to its disk."""
    assert e.postgres is not None
    with server.made(durable) as made:
        if made is None:
            raise RuntimeError("the programs of the Postgres server are not installed")
        with e.postgres(made.address) as saver:
            yield saver


def at_once(e: Engine, saver: Any, threads: int, steps: int = sizes.LIVE_TURNS) -> float:
    """Seconds per superstep while so many threads are live on one event loop, each for so many
    supersteps: what a call costs besides is spread over as many, however many threads there are."""
    app, names = loop(e, steps, node=tick).compile(checkpointer=saver), count()

    async def all_of_them() -> None:
        configs = [limit(steps, thread_id=str(next(names))) for _ in range(threads)]
        await asyncio.gather(*(app.ainvoke({"n": 0}, config) for config in configs))

    return best(lambda: asyncio.run(all_of_them()), threads * steps)


def p17(e: Engine) -> float:
    """A call of three supersteps beside 20 blocking `asyncio.to_thread` calls ÷ alone."""
    with opened(e, "normal") as saver:
        app, names = loop(e, 3, node=tick).compile(checkpointer=saver), count()

        async def call() -> None:
            await app.ainvoke({"n": 0}, limit(3, thread_id=str(next(names))))

        async def both() -> float:
            alone = await abest(call, 1)
            release = threading.Event()
            others = [asyncio.ensure_future(asyncio.to_thread(release.wait, 60)) for _ in range(20)]
            await asyncio.sleep(0)
            beside = await abest(call, 1)
            release.set()
            await asyncio.gather(*others)
            return beside / alone

        return asyncio.run(both())


def p18(e: Engine) -> float:
    with opened(e, "normal") as saver:
        return at_once(e, saver, sizes.LIVE)


def p18_growth(e: Engine) -> float:
    """Five times as many threads ÷ a quarter as many."""
    with opened(e, "normal") as saver:
        few = at_once(e, saver, sizes.LIVE // 4, sizes.GROWTH_TURNS)
        return at_once(e, saver, 5 * sizes.LIVE, sizes.GROWTH_TURNS) / few


def p19(e: Engine) -> float:
    with served(e) as saver:
        return at_once(e, saver, sizes.LIVE_SERVER)


def p20(e: Engine) -> float:
    with opened(e, "full") as saver:
        return at_once(e, saver, sizes.LIVE)


def p20_groups(e: Engine) -> float:
    """Together ÷ with a transaction for each commit, as steps per second."""
    from stategraph.checkpoint.sql import group_commit

    together = p20(e)
    most, group_commit.MOST = group_commit.MOST, 1
    try:
        return p20(e) / together
    finally:
        group_commit.MOST = most


def p24(e: Engine) -> float:
    """MB that finished threads of 200 KB have left behind in a process that goes on."""
    tracemalloc.start()
    with opened(e, "off") as saver:
        app = loop(e, 1, Text).compile(checkpointer=saver)

        def run(number: int) -> None:
            app.invoke({"n": 0, "text": f"{number:6}" * 33_000}, limit(1, thread_id=str(number)))

        run(0)
        before = live()
        for number in range(1, sizes.ENDED + 1):
            run(number)
        return max(live() - before, 0) / 1e6
