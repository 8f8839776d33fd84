"""Look-ups: a database finds by its indexes exactly what reading all items finds, and reads nothing else."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit import cluster

from stategraph.checkpoint.sql.postgres_server import NoPermissionError, Server
from stategraph.store import InMemoryStore, PutOp
from stategraph.store import sqlite as sqlite_module
from stategraph.store.batch import LocalStore
from stategraph.store.lookups import AT_ONCE, Lookup, understand
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

SPACE = ("served", "threads")
KINDS = ("memory", "sqlite", "postgres")

texts = st.sampled_from(
    [
        "",
        "a",
        "A",
        "ab",
        "Kelvin \u212a",
        "\u0130",
        "ß",
        "a\0b",
        "a\ufffdb",
        "a\\u0000b",
        '"',
        "\\",
        "0",
        "idle",
        "error",
        "1",
        "true",
        "\U0001f600",
    ]
)
scalars = st.one_of(
    texts,
    st.none(),
    st.booleans(),
    st.sampled_from([0, -0.0, 1, 1.0, 1.5, 2**53, 2.0**53, 2**53 + 1, 1e23, 10**23, -1]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(texts.filter(bool), inner, max_size=2)
    ),
    max_leaves=4,
)
owners = st.sampled_from(["ann", "bob", "", None])
moments = st.sampled_from(["2024-01-01", "2024-01-02", "2024-01-03"])
documents = st.builds(
    lambda owner, status, metadata, error, times: {
        "owner": owner, "status": status, "metadata": metadata, "error": error, "created_at": times[0], "updated_at": times[1]
    },
    owners, st.sampled_from(["idle", "error", "interrupted"]), st.dictionaries(texts.filter(bool), values, max_size=3), st.sampled_from([None, {"message": "Boom A"}]), st.tuples(moments, moments),
)  # fmt: skip


@st.composite
def filters(draw):
    made = {}
    if draw(st.booleans()):
        made["owner"] = {"$in": [draw(owners), None]}
    if draw(st.booleans()):
        made["status"] = draw(st.sampled_from(["idle", "error"]))
    if draw(st.booleans()):
        made["thread_id"] = {
            draw(st.sampled_from(["$in", "$nin"])): draw(
                st.lists(st.sampled_from("012345"), max_size=3)
            )
        }
    if draw(st.booleans()):
        made["updated_at"] = {"$lte": draw(moments)}
    if draw(st.booleans()):
        made["metadata"] = draw(
            st.dictionaries(
                st.sampled_from(["a", "A", "ab", "0", "ß"]),
                st.one_of(
                    scalars, st.dictionaries(st.sampled_from(["a", "0"]), scalars, max_size=1)
                ),
                max_size=2,
            )
        )
    return made


lookups = st.builds(
    lambda filter, order, ascending, limit, offset: Lookup(SPACE, filter, order, ascending, limit, offset),
    filters(), st.sampled_from([(), ("created_at",), ("updated_at", "thread_id"), ("status",), ("error",)]), st.booleans(), st.integers(0, 4), st.integers(0, 2),
)  # fmt: skip


@pytest.fixture(scope="module")
def stores():
    url = cluster.shared().schema()
    with InMemoryStore() as memory, SqliteStore(":memory:") as lite, PostgresStore(url) as large:
        found = dict(zip(KINDS, (memory, lite, large), strict=True))
        for store in found.values():
            store.index_fields(SPACE)
        yield found


@pytest.fixture
def store(request, stores):
    chosen = stores[request.param]
    fill(chosen, [])
    return chosen


everywhere = pytest.mark.parametrize("store", KINDS, indirect=True)


def fill(store: LocalStore, each):
    store.batch([PutOp(item.namespace, item.key, None) for item in store.search((), limit=1000)])
    for number, value in enumerate(each):
        store.put(SPACE, str(number), {**value, "thread_id": str(number)})


def found(store: LocalStore, lookup: Lookup):
    async def look():
        items, untested = await store.alook_up(lookup), lookup._replace(test=None, text="")
        keys = await store.alook_up_keys(untested)
        assert len(keys) == await store.acount(untested)
        if lookup.test is None:
            page = keys[lookup.offset : lookup.offset + lookup.limit]
            assert page == [each.key for each in items]
        return [(each.key, each.value) for each in items], len(keys)

    return asyncio.run(look())  # type: ignore[no-any-return]


IDLE = {"owner": "ann", "status": "idle", "error": None, "created_at": "2024-01-01", "updated_at": "2024-01-01"}


@pytest.mark.trial
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(documents, max_size=6), st.lists(lookups, min_size=1, max_size=6), texts)
@example([{**IDLE, "metadata": {"a\0b": None}}, {**IDLE, "metadata": {}}], [Lookup(SPACE, {})], "0")
def test_databases_find_what_memory_finds(stores, each, asked, text):
    for store in stores.values():
        fill(store, each)
    for lookup in asked:
        answers = [found(store, lookup) for store in stores.values()]
        assert answers[0] == answers[1] == answers[2], (lookup, understand(lookup))

    def has(key, value):
        known = json.dumps([key, value["metadata"], value["error"]], ensure_ascii=False)
        return text.lower() in known.replace("\\u0000", "\ufffd").lower()  # "0" is no part of a NUL

    plain = '"\\\0'
    if not any(letter in text for letter in plain):
        lookup = Lookup(SPACE, {}, limit=4, test=has, text=text.lower())
        answers = [found(store, lookup) for store in stores.values()]
        assert answers[0] == answers[1] == answers[2]


def threads(number):
    return [
        {"owner": f"u{n % 2}", "status": "idle", "metadata": {"topic": f"n{n}"}, "error": None, "created_at": f"{n:05}", "updated_at": f"{n:05}"}
        for n in range(number)
    ]  # fmt: skip


COMMON = {
    "count": Lookup(SPACE, {"owner": {"$in": ["u1", None]}}),
    "status": Lookup(SPACE, {"status": "idle", "thread_id": {"$nin": ["3"]}}, limit=5),
    "metadata": Lookup(SPACE, {"metadata": {"topic": "n7"}}, limit=5),
    "sorted": Lookup(SPACE, {"owner": {"$in": ["u1", None]}}, ("updated_at",), True, 5, 20),
    "text": Lookup(
        SPACE,
        {},
        ("updated_at", "thread_id"),
        limit=5,
        test=lambda key, value: "n77" in value["metadata"]["topic"],
        text="n77",
    ),
}


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("store", KINDS[1:], indirect=True)
def test_a_database_reads_only_the_rows_that_it_returns(store, name, monkeypatch):
    fill(store, threads(100))
    rows = []
    read = store._row  # type: ignore[attr-defined]
    monkeypatch.setattr(store, "_row", lambda row: rows.append(row) or read(row))
    monkeypatch.setattr(store, "_scan", None)
    answer, _ = found(store, COMMON[name])
    assert (
        len(rows)
        == len(answer)
        == min(COMMON[name].limit, 1 if name in ("metadata", "text") else 5)
    )


def test_no_text_of_a_user_becomes_sql():
    texts = {}
    for word in ("idle", "'; DROP TABLE store_items; --", "?", "%s"):
        with SqliteStore(":memory:") as store:
            store.index_fields(SPACE)
            store._database.connection.set_trace_callback(None)
            execute, seen = store._database.execute, texts.setdefault(word, set())
            store._database.execute = lambda text, values=(), seen=seen, execute=execute: (
                seen.add(text),
                execute(text, values),
            )[1]  # type: ignore[misc, assignment]
            found(
                store,
                Lookup(
                    SPACE,
                    {
                        "owner": {"$in": [word, None]},
                        "status": word,
                        "metadata": {"a": word, word.replace("'", ""): 1},
                    },
                    limit=1,
                    test=lambda *_: True,
                    text=word,
                ),
            )
    assert len({frozenset(seen) for seen in texts.values()}) == 1
    assert understand(Lookup(SPACE, {}, ("seq; DROP TABLE store_items",))) is None


@everywhere
def test_a_user_finds_only_the_items_that_he_may_see(store):
    fill(store, [*threads(4), {**threads(1)[0], "owner": None}, {**threads(1)[0], "owner": ""}])
    assert found(store, Lookup(SPACE, {"owner": {"$in": ["u1", None]}}, limit=9))[0] == [
        (each.key, each.value) for each in store.search(SPACE, limit=9) if each.key in "134"
    ]


@everywhere
def test_other_namespaces_are_searched_with_those_below_them(store):
    for number in range(4):
        store.put(("runs", f"t{number % 2}"), str(number), {"created_at": str(9 - number)})
    lookup = Lookup(("runs",), {}, ("created_at",), limit=3)
    assert [key for key, _ in found(store, lookup)[0]] == ["0", "1", "2"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_items_that_other_programs_wrote_are_found(kind, tmp_path, request):
    def opened():
        return (
            SqliteStore(tmp_path / "a.db")
            if kind == "sqlite"
            else PostgresStore(request.getfixturevalue("postgres"))
        )

    # The second store knows nothing of look-ups, like one of an earlier release.
    with opened() as store, closing(store if kind == "postgres" else opened()) as other:
        fill(other, threads(4))
        store.index_fields(SPACE)
        store.index_fields(SPACE)
        other.put(SPACE, "1", {**threads(2)[1], "thread_id": "1", "metadata": {"topic": "new"}})
        other.delete(SPACE, "2")
        other.put(SPACE, "3", {**threads(4)[3], "thread_id": "3"}, ttl=1e-9)
        other.put(("elsewhere",), "x", {"thread_id": "x"})
        assert [key for key, _ in found(store, Lookup(SPACE, {}, limit=9))[0]] == ["1", "0"]
        assert found(store, Lookup(SPACE, {"metadata": {"topic": "new"}}))[1] == 1
        assert found(store, Lookup(SPACE, {"metadata": {"topic": "n1"}}))[1] == 0
        store.sweep_ttl()
        assert found(store, Lookup(SPACE, {}))[1] == 2


def test_an_old_sqlite_reads_all_items(monkeypatch):
    monkeypatch.setattr(sqlite_module, "_LOOKUP_VERSION", (99,))
    with SqliteStore(":memory:") as store:
        store.index_fields(SPACE)
        fill(store, threads(4))
        assert found(store, COMMON["count"])[1] == 2


def test_a_role_that_may_not_alter_tables_reads_all_items(postgres, monkeypatch):
    def refuse(*_):
        raise NoPermissionError("no")

    with PostgresStore(postgres) as store:
        store.setup()
        monkeypatch.setattr(Server, "add_part", refuse)
        store.index_fields(SPACE)
        fill(store, threads(4))
        assert found(store, COMMON["count"])[1] == 2


def test_memory_tests_only_items_with_the_text():
    tested = []
    lookup = Lookup(SPACE, {}, ("created_at",), limit=5, test=lambda key, _: tested.append(key) or True, text="n77")  # type: ignore[func-returns-value]
    with InMemoryStore() as store:
        fill(store, [*threads(100), threads(1)[0] | {"status": "error"}])
        assert [key for key, _ in found(store, lookup)[0]] == ["77", "100"]
    assert sorted(tested) == ["100", "77"]


@pytest.mark.trial
@pytest.mark.parametrize("order", [(), ("status", "created_at")])
def test_a_look_up_in_memory_gives_way_to_others(order):
    async def look():
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        with InMemoryStore() as store:
            fill(store, threads(10 * AT_ONCE))
            task = asyncio.create_task(others())
            lookup = COMMON["count"]._replace(order=order, limit=10 * AT_ONCE)
            assert len(await store.alook_up(lookup)) == 5 * AT_ONCE
            task.cancel()
        return turns

    assert asyncio.run(look()) >= 10
