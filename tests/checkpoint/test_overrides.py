"""What a subclass of a shipped saver overrides is called, in sync and async runs, and one writer still wins."""

import asyncio
from contextlib import ExitStack

import pytest
from kit import cluster
from kit.counting_saver import SYNC, THREAD, State, build, counting, play
from kit.drive import each_case, each_durability
from kit.graphs import chain_of

from stategraph import START, CheckpointConflictError, Command, StateGraph
from stategraph.checkpoint import BaseCheckpointSaver, InMemorySaver, Retention
from stategraph.checkpoint.sqlite import SqliteSaver


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def kind(request):
    if request.param == "postgres":
        cluster.found()  # or skip
        from stategraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver
    return {"memory": InMemorySaver, "sqlite": SqliteSaver}[request.param]


@pytest.fixture
def opened(tmp_path):
    """Opens savers of a class; those with the same name of a place keep their threads together."""
    places = {}
    with ExitStack() as stack:

        def open_(cls, place="threads", **options):
            if issubclass(cls, InMemorySaver):
                return cls(**options)
            if issubclass(cls, SqliteSaver):
                saver = cls(tmp_path / place, **options)
            else:
                if place not in places:
                    places[place] = cluster.shared().schema()
                saver = cls(places[place], **options)
            stack.callback(saver.close)
            return saver

        yield open_


def cases():
    for name in SYNC:
        yield pytest.param((name,), ("sync", "async"), id=name)
        yield pytest.param(("a" + name,), ("async",), id="a" + name)
    yield pytest.param(SYNC, ("sync", "async"), id="all")
    yield pytest.param(tuple("a" + name for name in SYNC), ("async",), id="all async")


@pytest.mark.trial
@pytest.mark.parametrize(("names", "worlds"), [*cases()])
def test_what_a_subclass_overrides_is_called_and_changes_nothing(kind, names, worlds, opened):
    for world in worlds:
        saver = opened(counting(kind, names), world)
        expected = play(opened(kind, f"plain {world}"), world)
        saver.calls.clear()
        assert play(saver, world) == expected
        assert {name for name in names if not saver.calls[name]} == set(), world


def test_what_an_overridden_put_changes_is_stored(drive, kind, opened):
    class Stamped(kind):  # type: ignore[misc, valid-type]
        def put(self, config, checkpoint, metadata, new_versions):
            return super().put(config, checkpoint, {**metadata, "host": "here"}, new_versions)

    app = build(opened(Stamped))
    drive.invoke(app, {"log": ["in"]}, THREAD)
    assert [found.metadata["host"] for found in app.get_state_history(THREAD)] == ["here"] * 2


@each_durability
@pytest.mark.parametrize("name", ["put", "aput", "put_writes"])
def test_one_writer_wins_where_put_is_overridden(kind, name, durability, opened):
    saver = opened(counting(kind, (name,)))
    app = build(saver)

    def overtaken(state):
        app.update_state(THREAD, {"log": ["other"]}, as_node="last")
        return {"log": ["late"]}

    slow = chain_of(State, last=overtaken).compile(saver)
    with pytest.raises(CheckpointConflictError):
        if name.startswith("a"):
            asyncio.run(slow.ainvoke({"log": ["in"]}, THREAD, durability=durability))
        else:
            slow.invoke({"log": ["in"]}, THREAD, durability=durability)
    assert "late" not in app.get_state(THREAD).values["log"]


@pytest.mark.filterwarnings("ignore:thread .t.. the update as .last. does not lead to:stategraph.GraphWarning")
def test_a_commit_that_was_overtaken_after_its_look_is_refused(kind, opened):
    """Between the look at the head and `put` another run may commit: `put` looks again, in its own transaction."""

    class Overtaken(kind):  # type: ignore[misc, valid-type]
        armed = False

        def put(self, config, checkpoint, metadata, new_versions):
            if self.armed:
                self.armed = False
                other.update_state(THREAD, {"log": ["other"]}, as_node="last")
            return super().put(config, checkpoint, metadata, new_versions)

    class Other(kind):  # type: ignore[misc, valid-type]
        pass

    saver = opened(Overtaken)
    beside = saver if kind is InMemorySaver else opened(Other)
    app, other = build(saver), build(beside)
    app.invoke({"log": ["in"]}, THREAD)
    saver.armed = True
    with pytest.raises(CheckpointConflictError):
        app.update_state(THREAD, {"log": ["mine"]}, as_node="last")
    assert app.get_state(THREAD).values["log"] == ["in", "other", "first"]  # `first` had finished


@each_case("name", [*SYNC, "threads", "prune"])
def test_a_sync_method_that_is_a_coroutine_is_refused_when_the_class_is_made(name):
    async def method(self): ...

    with pytest.raises(TypeError, match=rf"Audit\.{name}\(\) must be a plain method, got `async def`"):
        type("Audit", (SqliteSaver,), {name: method})


def test_an_alist_that_is_no_generator_is_refused_when_the_class_is_made():
    async def alist(self, config): ...

    with pytest.raises(TypeError, match="must be an async generator"):
        type("Audit", (InMemorySaver,), {"alist": alist})


def test_a_saver_with_async_methods_alone_serves_async_runs():
    inner = InMemorySaver()

    class Distant(BaseCheckpointSaver):
        async def aget_tuple(self, config):
            return await inner.aget_tuple(config)

        async def alist(self, config, **named):
            async for found in inner.alist(config, **named):
                yield found

        async def aput(self, *args):
            return await inner.aput(*args)

        async def aput_writes(self, *args):
            await inner.aput_writes(*args)

    app = build(Distant())
    asyncio.run(app.ainvoke({"log": ["in"]}, THREAD))
    assert asyncio.run(app.ainvoke(Command(resume="yes"), THREAD))["log"] == ["in", "first", "yes", "last"]


@pytest.mark.trial
@pytest.mark.parametrize("name", ["put", "aput"])
def test_a_retention_applies_where_put_is_overridden(kind, name, opened):
    saver = opened(counting(kind, (name,)), retention=Retention(keep_last=3))
    app = build(saver)
    for turn in range(70):
        if name == "put":
            app.update_state(THREAD, {"log": [f"{turn}"]}, as_node="last")
        else:
            asyncio.run(app.aupdate_state(THREAD, {"log": [f"{turn}"]}, as_node="last"))
    assert len([*saver.list(THREAD)]) < 40
    assert len(app.get_state(THREAD).values["log"]) == 70


@pytest.mark.parametrize("name", ["put_writes", "aput_writes"])
def test_several_records_at_one_checkpoint_are_no_race_where_put_writes_is_overridden(kind, name, opened):
    """Two tasks recorded at once are two calls of `put_writes`; a third that is recorded later is no other run's."""

    def fails(state):
        raise ValueError("no")

    graph = StateGraph(State)
    for node in ("a", "b", "c"):
        graph.add_node(node, fails if node == "c" else lambda state: {"log": ["done"]})
        graph.add_edge(START, node)
    app = graph.compile(opened(counting(kind, (name,))))
    with pytest.raises(ValueError, match="no"):
        if name == "put_writes":
            app.invoke({"log": ["in"]}, THREAD)
        else:
            asyncio.run(app.ainvoke({"log": ["in"]}, THREAD))


@pytest.mark.parametrize("world", ["sync", "async"])
def test_a_commit_made_of_puts_alone_checks_the_head_first(world):
    """In both worlds: a saver without a `commit` of its own refuses a run that was overtaken before its commit."""
    inner = InMemorySaver()

    class Puts(BaseCheckpointSaver):
        get_tuple, list, put, put_writes = inner.get_tuple, inner.list, inner.put, inner.put_writes
        aget_tuple, alist, aput, aput_writes = inner.aget_tuple, inner.alist, inner.aput, inner.aput_writes

    def overtaken(state):
        build(saver).update_state(THREAD, {"log": ["other"]}, as_node="last")
        return {"log": ["late"]}

    saver = Puts(serde=inner.serde)
    build(saver).invoke({"log": ["in"]}, THREAD)
    slow = chain_of(State, last=overtaken).compile(saver)
    with pytest.raises(CheckpointConflictError):
        if world == "sync":
            slow.invoke({"log": ["more"]}, THREAD)
        else:
            asyncio.run(slow.ainvoke({"log": ["more"]}, THREAD))
    assert "late" not in slow.get_state(THREAD).values["log"]


def test_a_subclass_may_keep_the_checkpoints_that_it_has_read(kind, opened, drive):
    """They do not change, but the head does: it is not taken from them."""

    known = {}

    class Keeps(kind):
        def get_tuple(self, config):
            id = config["configurable"].get("checkpoint_id")
            if id is None:
                return super().get_tuple(config)
            return known.get(id) or known.setdefault(id, super().get_tuple(config))

        async def aget_tuple(self, config):
            return self.get_tuple(config)

    thread = drive.on(chain_of(State, last=lambda state: {}).compile(opened(Keeps)))
    thread.invoke({"log": ["in"]})
    (*_, first) = thread.history()
    for word in ("a", "b", "c"):
        drive.update_state(thread.app, first.config, {"log": [word]}, as_node="last")
        assert thread.log[-1] == word
