"""Savers and stores are opened and closed by `with` and `async with`, whether they hold anything or not."""

import asyncio

import pytest
from kit import cluster

import stategraph
from stategraph.checkpoint import StorageError
from stategraph.checkpoint.base import address


def opened(name, tmp_path):
    """The ways to open one."""
    cls = getattr(stategraph, name)
    if name.startswith("InMemory"):
        return [cls()]
    place = cluster.shared().schema() if name.startswith("Postgres") else str(tmp_path / "file.db")
    return [cls(place), cls.from_conn_string(place), cls.from_conn_string(conn_string=place)]


def use(one):
    one.get(("a",), "b") if hasattr(one, "search") else one.head(address("t", ""))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kind", ["Saver", "Store"])
@pytest.mark.parametrize("place", ["InMemory", "Sqlite", "Postgres"])
def test_with_and_async_with_open_and_close(place, kind, asynchronous, tmp_path):
    if place == "Postgres":
        cluster.found()  # or skip

    async def block(opening):
        async with opening as one:
            await asyncio.to_thread(use, one)
            return one

    for opening in opened(place + kind, tmp_path):
        if asynchronous:
            one = asyncio.run(block(opening))
        else:
            with opening as one:
                use(one)
        assert type(one) is getattr(stategraph, place + kind)
        if place != "InMemory":
            with pytest.raises(StorageError, match="closed"):
                use(one)


def test_the_saver_in_memory_has_a_short_name_too():
    from stategraph import InMemorySaver, MemorySaver

    assert MemorySaver is InMemorySaver
