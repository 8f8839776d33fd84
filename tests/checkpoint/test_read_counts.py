"""What reading stored threads takes, counted: statements, rows, bytes. However long a thread is, these stay small."""

from __future__ import annotations

import os
import random
import tracemalloc
from typing import TypedDict

import pytest
from kit.graphs import EMPTY, Log, chain_of, thread_config

from stategraph import END
from stategraph.checkpoint import InMemorySaver
from stategraph.checkpoint.sql import reader
from stategraph.checkpoint.sql.read_rows import RECENT
from stategraph.checkpoint.sqlite import SqliteSaver


def growing(saver, length, **options):
    """A loop whose list grows by a text of 200 characters a superstep."""
    return (
        chain_of(Log, add=lambda state: {"log": [f"{len(state['log']):0200}"]})
        .add_conditional_edges("add", lambda state: "add" if len(state["log"]) < length else END)
        .compile(saver, **options)
    )


THREAD = {"configurable": {"thread_id": "t"}, "recursion_limit": 10_000}


@pytest.fixture(scope="module")
def saver(tmp_path_factory):
    """With a thread of 1,000 supersteps."""
    file = tmp_path_factory.mktemp("reads") / "threads.db"
    with SqliteSaver.from_conn_string(str(file), synchronous="off") as found:
        growing(found, 1000).invoke(EMPTY, THREAD)
        yield found


class Counted:
    """What a call reads.

    Attributes:
        selects: statements that read.
        rows, bytes: what they gave.
    """

    def __init__(self, saver, call, monkeypatch):
        self.selects = self.rows = self.bytes = 0
        from stategraph.checkpoint.sqlite import _SqliteSession

        read = _SqliteSession.rows

        def rows(session, statement, *values):
            found = read(session, statement, *values)
            self.selects += 1
            self.rows += len(found)
            self.bytes += sum(len(value) for row in found for value in row if isinstance(value, bytes))
            return found

        with monkeypatch.context() as patch:
            patch.setattr(_SqliteSession, "rows", rows)
            self.result = call()


def test_a_list_of_200_kb_that_was_read_from_memory_is_not_decoded_again():
    """PERFORMANCE P22: its texts are those of the first read."""
    saver = InMemorySaver()
    growing(saver, 1000).invoke(EMPTY, THREAD)
    first, again = (saver.get_tuple(THREAD).checkpoint["channel_values"]["log"] for _ in range(2))
    assert len(first) == 1000 and all(one is other for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("at", [1000, 999, 900, 555, 100, 10])
def test_a_state_takes_few_statements_and_rows_wherever_it_is(saver, at, monkeypatch):
    """PERFORMANCE P22: a namespace, a checkpoint and up to 31 before it, and two runs of deltas at most."""
    config = growing_config(saver, at)
    read = Counted(saver, lambda: saver.get_tuple(config), monkeypatch)
    found = read.result
    assert found.checkpoint["channel_values"]["log"] == [f"{number:0200}" for number in range(at)]
    assert read.selects <= (2 if at == 1000 else 4)  # what came after an older one holds its tasks' writes
    assert read.rows <= 1 + 32 + 2 * 34 + 2
    assert read.bytes <= 2 * 203 * at + 50_000


def test_what_is_read_of_a_grown_list_is_copied_once(saver):
    """Its bytes as rows, as the whole list, and as texts; besides, a text has 49 bytes of its own. Deltas are views of
    their rows."""
    saver.get_tuple(THREAD)
    tracemalloc.start()
    try:
        found = saver.get_tuple(THREAD)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert peak <= 3.6 * 203 * 1000


def growing_config(saver, at):
    """The config of the checkpoint at which the list is so long; the head's names no checkpoint."""
    if at == 1000:
        return THREAD
    (found,) = saver.list(THREAD, filter={"step": at})
    assert len(found.checkpoint["channel_values"]["log"]) == at
    return found.config


def test_one_checkpoint_of_a_list_costs_what_one_costs(saver, monkeypatch):
    """No page is larger than asked for."""
    read = Counted(saver, lambda: [*saver.list(THREAD, limit=1)], monkeypatch)
    assert len(read.result) == 1
    assert read.selects <= 7
    assert read.rows <= 1 + 32 + 2 * 34 + 5


@pytest.mark.parametrize(("wanted", "found"), [({"step": 500}, 1), ({"source": "input"}, 1), ({"step": -5}, 0)])
def test_of_checkpoints_that_do_not_fit_only_the_metadata_is_read(saver, wanted, found, monkeypatch):
    read = Counted(saver, lambda: [*saver.list(THREAD, filter=wanted)], monkeypatch)
    assert len(read.result) == found
    assert read.selects <= 20
    assert read.rows <= 1002 + 150
    assert read.bytes <= 1002 * 350 + 2 * 203 * 1000


def test_a_whole_list_reads_each_row_about_once(saver, monkeypatch):
    """Deltas are not made again from the first one for each page, and pages grow as long as they take few bytes."""
    read = Counted(saver, lambda: sum(1 for _ in saver.list(THREAD)), monkeypatch)
    assert read.result == 1002
    pages = 2 + 1002 / 64  # of 16, of 32, and the rest
    assert read.rows <= 2 * 1002 + pages * (32 + 2 * 34 + 5)
    assert read.selects <= 6 * pages + 7


class Pages(TypedDict):
    n: int
    text: str


def test_pages_of_large_values_do_not_grow(tmp_path, monkeypatch):
    """All values of a page are in memory at once."""
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as saver:
        loop = chain_of(Pages, add=lambda state: {"n": state["n"] + 1, "text": os.urandom(50_000).hex()})
        loop.add_conditional_edges("add", lambda state: "add" if state["n"] < 40 else END)
        loop.compile(saver).invoke({"n": 0}, THREAD)
        pages = []
        read_page = reader.read_page
        monkeypatch.setattr(reader, "read_page", lambda *args: pages.append(read_page(*args)) or pages[-1])
        assert sum(1 for _ in saver.list(THREAD)) == 42
    assert [len(page.wanted) for page in pages] == [16, 16, 10]


def test_a_large_value_is_read_once(tmp_path, monkeypatch):
    """PERFORMANCE P27."""
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as saver:
        chain_of(Log, end=lambda state: {}).compile(saver).invoke({"log": ["x" * 1_000_000]}, THREAD)
        read = Counted(saver, lambda: saver.get_tuple(THREAD), monkeypatch)
    assert read.bytes <= 1_010_000


@pytest.mark.parametrize("change", ["grow", "shrink", "replace"])
def test_a_large_value_that_was_read_continues_to_change(tmp_path, change):
    """It is not copied when it is read, and is a base for what comes all the same."""
    large = "x" * 3_000_000
    new = {"grow": large + "y", "shrink": large[:-1], "replace": "z" * 2_000_000}[change]

    class Text(TypedDict):
        text: str

    graph = chain_of(Text, end=lambda state: {"text": new} if state["text"] == large else {})
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as saver:
        app = graph.compile(saver, interrupt_before=["end"])
        app.invoke({"text": large}, THREAD)
        assert app.get_state(THREAD).values == {"text": large}
        assert app.invoke(None, THREAD) == {"text": new}
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        history = [state.values for state in graph.compile(saver).get_state_history(THREAD)]
        assert history == [{"text": new}, {"text": large}, {}]
    stored = 2 * len(large) + (len(new) if change == "replace" else 0)  # the input, and the key
    assert (tmp_path / "threads.db").stat().st_size < stored + 200_000


@pytest.mark.parametrize("length", [100, 1000])
def test_what_was_just_stored_is_not_read_again(tmp_path, monkeypatch, length):
    """PERFORMANCE P40: a page that shows a thread after each turn reads one row, however its list has grown."""
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as saver:
        app = growing(saver, length)
        app.invoke(EMPTY, THREAD)
        for _ in range(2):
            read = Counted(saver, lambda: saver.get_tuple(THREAD), monkeypatch)
            assert (read.selects, len(read.result.checkpoint["channel_values"]["log"])) == (1, length)
            assert read.bytes <= 5_000
        app.update_state(THREAD, {"log": ["edited"]})
        read = Counted(saver, lambda: app.get_state(THREAD), monkeypatch)
        assert (read.selects, read.result.values["log"][-1]) == (1, "edited")
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as other:
            growing(other, length).update_state(THREAD, {"log": ["by another"]})
        read = Counted(saver, lambda: app.get_state(THREAD), monkeypatch)
        assert (read.selects, read.result.values["log"][-1]) == (2, "by another")
        saver.delete_thread("t")
        assert saver.get_tuple(THREAD) is None


@pytest.mark.trial
def test_the_values_that_a_saver_keeps_are_bounded(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as saver:
        app = growing(saver, 20)
        for number in range(300):
            app.invoke({"log": ["x" * 1000 * (number % 7)]}, thread_config(str(number)))
        kept = saver._recent
        assert kept is not None
        sizes = [len(value.blob[1]) for value in kept._values.values() if value.blob]
        deltas = [len(each.delta) for value in kept._values.values() for each in value.deltas]
        assert RECENT / 4 <= sum(sizes) + sum(deltas) <= RECENT


def test_longer_values_are_not_kept_for_a_short_head(tmp_path):
    """Of threads that went on from their first state, while what they had become by then is in their histories."""
    file, threads = tmp_path / "threads.db", [thread_config(str(number)) for number in range(12)]
    app = chain_of(Log, add=lambda state: {})
    with SqliteSaver.from_conn_string(str(file), synchronous="off") as saver:
        writer = app.compile(saver)
        for config in threads:
            first = writer.update_state(config, {"log": [f"{n:0200}" for n in range(60)]}, as_node="add")
            for _ in range(30):
                writer.update_state(config, {"log": [f"{n:0200}" for n in range(50)]}, as_node="add")
            writer.update_state(first, {}, as_node="add")
    with SqliteSaver.from_conn_string(str(file)) as saver:
        reader = app.compile(saver)
        tracemalloc.start()
        try:
            for config in threads:
                assert len(reader.get_state(config).values["log"]) == 60
                assert max(len(each.values["log"]) for each in reader.get_state_history(config)) == 1560
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert held <= RECENT


def test_the_newest_of_many_threads_cost_the_same_however_many_there_are(tmp_path, monkeypatch):
    """PERFORMANCE P41: a page of a list reads the namespaces of its own rows."""
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as saver:
        app = growing(saver, 1)
        counts = []
        for number in range(200):
            app.invoke(EMPTY, thread_config(str(number)), durability="exit")
            if number in (50, 199):
                read = Counted(saver, lambda: [*saver.list(None, limit=10)], monkeypatch)
                assert [found.config["configurable"]["thread_id"] for found in read.result] == [str(number - n) for n in range(10)]
                counts.append((read.selects, read.rows))
        assert counts[0] == counts[1]
        assert counts[0][1] <= 10 * 4
        assert len({found.config["configurable"]["thread_id"] for found in saver.list(None)}) == 200


def test_a_page_of_history_holds_a_grown_list_once(saver):
    """PERFORMANCE P40: its states share their bytes until each is decoded."""
    tracemalloc.start()
    try:
        for _ in saver.list(THREAD, limit=16):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 8 * 203 * 1000


@pytest.mark.parametrize("change", [
    lambda log: [*log, "new" * 20],
    lambda log: [*log[:-1], "other" * 30],
    lambda log: [*log[:-2], "two" * 50, "became" * 9, "three" * 40],
    lambda log: log[:-3],
    lambda log: [log[0] + "x", *log[1:], "new"],
])  # fmt: skip
@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_history_is_the_same_to_who_has_written_it_and_to_who_has_not(tmp_path, change, every):
    """A page takes values from the newest one, which its writer still knows: from its opening, if only added to."""

    class Text(TypedDict):
        log: list
        n: int

    def step(state):
        log = change(state["log"]) if state["n"] % every == 0 else [*state["log"], f"plain {state['n']:040}"]
        return {"log": log, "n": state["n"] + 1}

    expected, values = [], {"log": [f"{n:050}" for n in range(60)], "n": 0}
    while values["n"] < 12:
        expected.append(values)
        values = step(values)
    expected.append(values)
    file = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(file, synchronous="off") as writer:
        app = chain_of(Text, step=step).add_conditional_edges("step", lambda s: "step" if s["n"] < 12 else END)
        app = app.compile(writer)
        app.invoke(expected[0], THREAD)
        with SqliteSaver.from_conn_string(file, synchronous="off") as reader:
            for saver in (writer, reader):
                histories = [list(saver.list(THREAD, limit=limit)) for limit in (3, None)]
                shown = [each.checkpoint["channel_values"] for each in histories[1]][-2::-1]
                assert [{name: found[name] for name in ("log", "n")} for found in shown] == expected
                assert histories[0] == histories[1][:3]
                for each in histories[1]:
                    assert saver.get_tuple(each.config).pending_writes == each.pending_writes


def test_steps_made_again_and_again_leave_few_deltas_to_read(tmp_path, monkeypatch):
    """Each fork starts from the checkpoint before the head, whose value its writer still knows as a part of the
    head's."""
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as writer:
        app, thread = growing(writer, 1000, interrupt_after=["add"]), thread_config()
        app.invoke({"log": ["long" * 100]}, thread)
        for _ in range(200):
            app.invoke(None, app.get_state(thread).parent_config)
            app.invoke(None, thread)
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as reader:
        read = Counted(reader, lambda: reader.get_tuple(thread), monkeypatch)
    assert read.rows <= 32 + 2 * 34


def test_rows_stay_small_after_a_step_that_has_changed_everything(saver):
    """The first step of a run tells nothing of those to come: tables of 200 channels are repeated seldom."""
    names = [f"k{number}" for number in range(200)]
    graph = chain_of(
        TypedDict("Wide", dict.fromkeys(names, int)),
        all=lambda state: dict.fromkeys(names, 1),
        one=lambda state: {"k0": state["k0"] + 1},
    )
    graph.add_conditional_edges("one", lambda state: "one" if state["k0"] < 60 else END)
    app, thread = graph.compile(saver, interrupt_before=["all"]), thread_config("wide")
    app.invoke(dict.fromkeys(names, 0), thread)
    before = saver.stored_bytes(["wide"])
    app.invoke(None, thread)
    assert saver.stored_bytes(["wide"]) - before < 5 * before + 60 * 250


def test_older_states_are_read_from_what_is_known_of_the_newest(saver, monkeypatch):
    """PERFORMANCE P22: of a value that has only grown since, the rows up to the last run of deltas."""
    saver.get_tuple(THREAD)
    places = [each.config for each in saver.list(THREAD)][1:-1:37]
    random.Random(1).shuffle(places)
    read = [Counted(saver, lambda place=place: saver.get_tuple(place), monkeypatch) for place in places]
    assert max(each.rows for each in read) <= 5 + 34
    assert sum(each.rows for each in read) <= len(read) * (5 + 17)
    assert sum(each.bytes for each in read) <= len(read) * 10_000


class Grown(TypedDict):
    log: list[str]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.trial) for seed in (1, 2, 3))])
def test_known_values_never_stand_for_others(tmp_path, seed):
    """A list grows in many lines, which fork, begin with the same items, lose some, or change one; each state that a
    checkpointer reads with what it knows is what another reads without."""
    draw = random.Random(seed)
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as saver:
        graph = chain_of(Grown, add=lambda state: {}).compile(saver)
        heads = [graph.update_state(THREAD, {"log": [f"{n:0100}" for n in range(60)]}, as_node="add")]
        for n in range(200):
            at = draw.choice(heads[-1:] * 8 + heads)
            log = list(graph.get_state(at).values["log"])
            how = draw.choice(["add"] * 12 + ["other", "cut", "change"])
            if how == "cut":
                del log[draw.randrange(len(log)) :]
            elif how == "change":
                log[draw.randrange(len(log))] = "changed"
            heads.append(graph.update_state(at, {"log": [*log, f"{n if how == 'other' else len(log):0100}"]}, as_node="add"))
            saver.get_tuple(draw.choice([*heads, THREAD]))
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as other:
            draw.shuffle(heads)
            for at in heads:
                with_all, without = saver.get_tuple(at), other.get_tuple(at)
                other._recent, other._lists = type(other._recent)(), type(other._lists)(0)
                assert with_all.checkpoint == without.checkpoint
                assert with_all.pending_writes == without.pending_writes
            known = [each.checkpoint for each in saver.list(THREAD)]
            assert known == [each.checkpoint for each in other.list(THREAD)]
