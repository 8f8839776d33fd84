"""Posts to a running thread: each is applied at a barrier, once, even if processes are killed or runs race."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from kit import cluster
from kit.drive import each_case, each_durability, each_schedule
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of, thread_config

from stategraph import (
    START,
    Command,
    GraphWarning,
    InMemorySaver,
    InvalidUpdateError,
    Overwrite,
    Send,
    StateGraph,
    entrypoint,
    get_stream_writer,
    interrupt,
)
from stategraph.checkpoint import CheckpointConflictError
from stategraph.checkpoint.base import POST, POST_TASK_ID
from stategraph.checkpoint.encryption import Encryption
from stategraph.checkpoint.errors import StorageError, UnserializableError
from stategraph.checkpoint.sqlite import SqliteSaver

postgres = cluster.emptied


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    plain: str


class Word:
    """Posts while a node runs, as somebody outside would."""

    def __init__(self, saver):
        self.app = chain(saver)
        self.saver = saver

    def __call__(self, *words):
        for word in words:
            self.app.post(CONFIG, {"log": [word]})


def posting(saver, *words, log="a"):
    """A node to whose thread these words are posted while it runs."""
    word = Word(saver)

    def node(state):
        word(*words)
        return {"log": [log]}

    return node


Body = Callable[[Any], Any]


def chain(saver, *bodies: Body, **options):
    """Nodes one after another, named "n0", "n1" and so on."""
    builder = StateGraph(State)
    names = [START]
    for number, body in enumerate(bodies or (lambda state: {},)):
        builder.add_node(f"n{number}", body)
        builder.add_edge(names[-1], f"n{number}")
        names.append(f"n{number}")
    return builder.compile(saver, inbox=True, **options)


def says(word):
    return lambda state: {"log": [f"{word} after {len(state['log'])}"]}


def posted(saver):
    """What the steps of the thread have taken, oldest first."""
    found = []
    for stored in saver.list(CONFIG):
        words = [w for id, key, value in stored.pending_writes or () if id == POST_TASK_ID for w in value]
        if words:
            found.append(words)
    return found[::-1]


# -- where it comes in --------------------------------------------------------------------------------------------


@each_durability
def test_posts_before_the_start_are_applied_after_the_input(drive, saver, durability):
    thread = drive.on(chain(saver, says("a")))
    thread.call("post", {"log": ["word"]})
    assert thread.state.posts == ({"log": ["word"]},)
    assert thread.invoke({"log": ["in"]}, durability=durability) == {"log": ["in", "word", "a after 2"]}
    assert thread.state.posts == ()
    assert thread.invoke(EMPTY)["log"] == ["in", "word", "a after 2", "a after 3"]


@each_durability
def test_posts_are_applied_after_the_writes_of_a_step_and_the_next_nodes_see_them(drive, saver, durability):
    first = posting(saver, "one", "two")
    thread = drive.on(chain(saver, first, says("b")))
    end = thread.invoke(EMPTY, durability=durability)
    assert end == {"log": ["a", "one", "two", "b after 3"]}
    assert posted(saver) == ([] if durability == "exit" else [["one", "two"]]), "a step that is not stored has no writes"
    assert thread.state.posts == ()


@each_durability
def test_after_the_last_barrier_it_waits_for_the_next_call(drive, saver, durability):
    last = posting(saver, "late")
    thread = drive.on(chain(saver, last))
    assert thread.invoke(EMPTY, durability=durability) == {"log": ["a"]}
    state = thread.state
    assert (state.posts, state.next) == (({"log": ["late"]},), ())
    assert drive.invoke(chain(saver, says("b")), {"log": ["in"]}, CONFIG, durability=durability) == {
        "log": ["a", "in", "late", "b after 3"]
    }


def test_the_routers_of_the_step_have_not_seen_it(drive, saver):
    word, seen = Word(saver), []

    def first(state: State):
        word("word")
        return {"log": ["a"]}

    def route(state: State):
        seen.append(list(state["log"]))
        return "b"

    builder = graph_of(State, "S>a", a=first, b=says("b"))
    builder.add_conditional_edges("a", route, ["b"])
    app = builder.compile(saver, inbox=True)
    assert drive.invoke(app, EMPTY, CONFIG) == {"log": ["a", "word", "b after 2"]}
    assert seen == [["a"]]


def test_pending_sends_and_parallel_nodes_keep_their_step(drive, saver):
    word = Word(saver)

    def split(state: State):
        word("word")
        return Command(update={"log": ["s"]}, goto=[Send("w", {"log": ["x"]}), Send("w", {"log": ["y"]})])

    builder = StateGraph(State).add_node("s", split, destinations=("w",))
    builder.add_node("w", lambda state: {"log": [f"w{state['log'][0]}"]}).add_node("e", says("e"))
    app = builder.add_edge(START, "s").add_edge("w", "e").compile(saver, inbox=True)
    assert drive.invoke(app, EMPTY, CONFIG) == {"log": ["s", "word", "wx", "wy", "e after 4"]}


@each_schedule
def test_streams_show_it_as_an_update_once_its_step_is_stored(drive, saver, schedule):
    first = posting(saver, "word")
    app = chain(saver, first, says("b"), schedule=schedule)
    chunks = drive.stream(app, EMPTY, CONFIG, stream_mode=["updates", "values"])
    assert chunks == [
        ("values", EMPTY),
        ("updates", {"n0": {"log": ["a"]}}),
        ("updates", {POST: {"log": ["word"]}}),
        ("values", {"log": ["a", "word"]}),
        ("updates", {"n1": {"log": ["b after 2"]}}),
        ("values", {"log": ["a", "word", "b after 2"]}),
    ]


def test_a_graph_inside_leaves_it_to_the_graph_around(drive, saver):
    first = posting(saver, "word", log="i")
    inner = chain_of(State, i=first, j=says("j"))
    builder = StateGraph(State).add_node("in", inner.compile(inbox=True)).add_node("b", says("b"))
    app = builder.add_edge(START, "in").add_edge("in", "b").compile(saver, inbox=True)
    assert drive.invoke(app, EMPTY, CONFIG) == {"log": ["i", "j after 1", "word", "b after 3"]}


# -- stopped and resumed ------------------------------------------------------------------------------------------


@each_durability
def test_a_paused_run_applies_posts_when_it_resumes(drive, saver, durability):
    def ask(state: State):
        return {"log": [f"{interrupt('go?')} after {len(state['log'])}"]}

    drive.invoke(chain(saver, ask), {"log": ["in"]}, CONFIG, durability=durability)
    drive.call(chain(saver), "post", CONFIG, {"log": ["word"]})
    state = drive.get_state(chain(saver, ask), CONFIG)
    assert (state.values["log"], state.posts) == (["in"], ({"log": ["word"]},))
    end = drive.invoke(chain(saver, ask, says("b")), Command(resume="yes"), CONFIG, durability=durability)
    assert end == {"log": ["in", "word", "yes after 2", "b after 3"]}
    assert posted(saver) == [["word"]] and drive.get_state(chain(saver), CONFIG).posts == ()


@each_durability
def test_a_run_that_pauses_again_applies_no_posts(drive, saver, durability):
    def ask(state: State):
        return {"log": [interrupt("one?"), interrupt("two?")]}

    thread = drive.on(chain(saver, ask))
    thread.invoke({"log": ["in"]}, durability=durability)
    thread.call("post", {"log": ["word"]})
    thread.resume(1, durability=durability)
    state = thread.state
    assert (state.values["log"], state.posts) == (["in"], ({"log": ["word"]},))
    assert thread.resume(2, durability=durability) == {"log": ["in", "word", 1, 2]}
    assert thread.state.posts == ()


def test_stopped_before_every_step_it_is_in_one_step(drive, saver):
    thread = drive.on(chain(saver, says("a"), says("b"), says("c"), interrupt_before="*"))
    thread.call("post", {"log": ["w0"]})
    thread.invoke(EMPTY)
    for number in range(1, 4):
        drive.call(chain(saver), "post", CONFIG, {"log": [f"w{number}"]})
        fresh = chain(saver, says("a"), says("b"), says("c"), interrupt_before="*")
        end = drive.invoke(fresh, None, CONFIG)
    assert end == {"log": ["w0", "w1", "a after 2", "w2", "b after 4", "w3", "c after 6"]}
    assert posted(saver) == [["w0"], ["w1"], ["w2"], ["w3"]]


class Counting(InMemorySaver):
    reads = 0

    def read_posts(self, *args):
        self.reads += 1
        return super().read_posts(*args)


@each_schedule
def test_posts_are_polled_once_per_step_and_not_per_chunk(drive, schedule):
    def talk(state: State):
        write = get_stream_writer()
        for number in range(50):
            write(number)
            time.sleep(0.001)
        return {"log": ["talk"]}

    saver = Counting()
    app = graph_of(State, "S>talk>b", talk=talk).compile(saver, schedule=schedule, inbox=True)
    assert drive.stream(app, EMPTY, CONFIG, stream_mode="custom") == [*range(50)]
    assert saver.reads <= 3  # with the input, and after the steps of talk and b


class Died(BaseException):
    pass


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("number", range(4))
def test_a_run_that_dies_around_a_commit_loses_and_doubles_nothing(saver, monkeypatch, number, stored):
    word, fresh = Word(saver), [True]
    commit, count = saver.commit, []

    def first(state: State):
        if fresh:  # what is posted when the node runs again would be another word
            fresh.clear()
            word("one")
        return {"log": ["a"]}

    def dies(given):
        count.append(given)
        if len(count) == number + 1 and not stored:
            raise Died
        commit(given)
        if len(count) == number + 1:
            raise Died

    app = chain(saver, first, says("b"), says("c"))
    word("zero")
    monkeypatch.setattr(saver, "commit", dies)
    with pytest.raises(Died):
        app.invoke({"log": ["in"]}, CONFIG)
    monkeypatch.undo()
    again = chain(saver, first, says("b"), says("c"))
    if saver.head(CONFIG) is None:
        end = again.invoke({"log": ["in"]}, CONFIG)
    elif again.get_state(CONFIG).next:
        end = again.invoke(None, CONFIG)
    else:
        end = again.get_state(CONFIG).values
    assert [word for words in posted(saver) for word in words] == ["zero", "one"]
    assert sorted(end["log"]) == sorted(["in", "zero", "one", *end["log"][-3:]]) or "a" in end["log"]
    assert end["log"].count("zero") == end["log"].count("one") == 1
    assert again.get_state(CONFIG).posts == ()


@each_durability
@pytest.mark.parametrize("error", [StorageError, Died])
def test_a_step_after_which_no_posts_can_be_read_is_stored_without_them(drive, saver, monkeypatch, durability, error):
    word, ran = Word(saver), []

    def first(state: State):
        ran.append("first")
        word("one")
        monkeypatch.setattr(saver, "read_posts", broken)
        return {"log": ["a"]}

    def broken(thread_id):
        raise error("no posts today")

    thread = drive.on(chain(saver, first, says("b")))
    with pytest.raises(error):
        thread.invoke({"log": ["in"]}, durability=durability)
    monkeypatch.undo()
    state = thread.state
    assert (state.values, state.next, state.posts) == ({"log": ["in", "a"]}, ("n1",), ({"log": ["one"]},))
    assert thread.invoke(None) == {"log": ["in", "a", "one", "b after 3"]}
    assert ran == ["first"], "a step that had ended is done again"


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_of_two_runs_at_once_the_one_that_wins_takes_it(drive, saver, durability):
    word = Word(saver)

    def first(state: State):
        word("one")
        # Another process is faster: it takes the word, and moves the head.
        chain(saver, says("x"), says("y")).invoke({"log": ["other"]}, CONFIG)
        return {"log": ["a"]}

    with pytest.raises(CheckpointConflictError):
        drive.invoke(chain(saver, first, says("b")), EMPTY, CONFIG, durability=durability)
    assert posted(saver) == [["one"]]
    end = drive.get_state(chain(saver), CONFIG)
    assert end.values["log"][-4:] == ["other", "one", *end.values["log"][-2:]] and end.posts == ()


def test_a_run_that_loses_leaves_what_it_has_read(drive, saver):
    word = Word(saver)

    def first(state: State):
        chain(saver, says("x")).update_state(CONFIG, {"log": ["edit"]}, as_node="n0")
        word("one")
        return {"log": ["a"]}

    with pytest.raises(CheckpointConflictError):
        drive.invoke(chain(saver, first, says("b")), EMPTY, CONFIG)
    assert drive.get_state(chain(saver), CONFIG).posts == ({"log": ["one"]},)


def test_forks_and_replays_do_not_get_it_again(drive, saver):
    thread = drive.on(chain(saver, says("a"), says("b")))
    thread.call("post", {"log": ["word"]})
    thread.invoke({"log": ["in"]})
    for stored in thread.history():
        if stored.next == ("__start__",):  # before the step that took it
            end = thread.invoke(None, stored.config)
            assert end == {"log": ["in", "a after 1", "b after 2"]}
    edited = thread.update({"log": ["edit"]}, "n0")
    assert thread.invoke(None, edited)["log"].count("word") == 0


def test_an_edit_leaves_it_for_the_run(drive, saver):
    thread = drive.on(chain(saver, says("a"), interrupt_before=["n0"]))
    thread.invoke(EMPTY)
    thread.call("post", {"log": ["word"]})
    thread.update({"log": ["edit"]})
    assert thread.state.posts == ({"log": ["word"]},)
    thread.invoke(None)
    assert thread.log.count("word") + len(thread.state.posts) == 1


# -- refused ------------------------------------------------------------------------------------------------------


@each_case(
    "values, says",
    [
        ({"plain": "x"}, "it has no reducer"),
        ({"lgo": ["x"]}, "did you mean 'log'"),
        ({"log": Overwrite(["x"])}, "cannot overwrite"),
        ({"log": 3}, "does not fit its reducer"),
        (Command(goto="n0"), "cannot say where to go"),
        ({}, "must have a value"),
        (None, "must have a value"),
    ],
)
def test_what_is_no_addition_is_refused_when_it_is_posted(drive, values, says):
    thread = drive.on(chain(InMemorySaver()))
    with pytest.raises(InvalidUpdateError, match=says) as refused:
        thread.call("post", values)
    assert "a post" in str(refused.value) or refused.value.__notes__ == ["in a post to thread 't'"]
    assert thread.state.posts == ()


def test_what_cannot_be_stored_is_refused_when_it_is_posted(drive):
    with pytest.raises(UnserializableError) as refused:
        drive.call(chain(InMemorySaver()), "post", CONFIG, {"log": [object()]})
    assert "while storing key 'log' of a post to thread 't'" in refused.value.__notes__


class NoTable(InMemorySaver):
    keeps_posts = False


class ByParts(SqliteSaver):
    def put(self, *args):
        return super().put(*args)


def test_a_saver_without_the_table_is_refused(drive, tmp_path):
    with pytest.raises(ValueError, match="NoTable keeps no posts"):
        chain(NoTable())
    with (
        ByParts.from_conn_string(str(tmp_path / "t.db")) as saver,
        pytest.raises(ValueError, match=r"ByParts overrides put\(\)"),
    ):
        chain(saver)


def test_a_graph_that_takes_none_refuses_them(drive):
    builder = chain_of(State, a=says("a"))
    for app in (builder.compile(InMemorySaver()), entrypoint(checkpointer=InMemorySaver())(says("b"))):
        with pytest.raises(ValueError, match=f"{app.name} takes no posts: only a StateGraph compiled with inbox=True"):
            drive.call(app, "post", CONFIG, {"log": ["x"]})
    with pytest.raises(ValueError, match="no checkpointer"):
        drive.call(builder.compile(inbox=True), "post", CONFIG, {"log": ["x"]})


@pytest.mark.parametrize("extra", [{"checkpoint_id": "x"}, {"checkpoint_ns": "a:1"}])
def test_a_post_goes_to_the_whole_thread(drive, extra):
    app = chain_of(State, a=chain(None)).compile(InMemorySaver(), inbox=True)
    with pytest.raises(ValueError, match="goes to the whole thread"):
        drive.call(app, "post", {"configurable": {"thread_id": "t", **extra}}, {"log": ["x"]})


def test_a_post_that_its_reducer_refuses_stays_queued_and_is_reported(drive, saver):
    def add(old, new):
        if old and new == ["bad"]:
            raise ValueError("not now")
        return old + new

    class Strict(TypedDict):
        log: Annotated[list[str], add]

    thread = drive.on(chain_of(Strict, a=says("a"), b=says("b")).compile(saver, inbox=True))
    for word in ("good", "bad", "fine"):
        thread.call("post", {"log": [word]})
    with pytest.warns(GraphWarning, match="post .* cannot be taken and waits on: ValueError") as told:
        end = thread.invoke({"log": ["in"]})
    assert end == {"log": ["in", "good", "fine", "a after 3", "b after 4"]} and len(told) == 1
    assert thread.state.posts == ({"log": ["bad"]},)


# -- kept, copied, deleted ----------------------------------------------------------------------------------------


def test_copies_take_along_what_waits_and_deleted_threads_lose_it(drive, saver):
    thread = drive.on(chain(saver, says("a")))
    thread.invoke(EMPTY)
    thread.call("post", {"log": ["word"]})
    drive.call(saver, "copy_thread", "t", "copy")
    drive.call(saver, "prune", keep_last=1)
    drive.call(saver, "delete_thread", "t")
    assert thread.state.posts == ()
    copy = thread_config("copy")
    assert thread.get_state(copy).posts == ({"log": ["word"]},)
    assert thread.invoke(EMPTY, copy)["log"] == ["a after 0", "word", "a after 2"]


def test_posts_are_encrypted_and_bound_to_their_thread(tmp_path):
    pytest.importorskip("cryptography")
    path = str(tmp_path / "t.db")
    with SqliteSaver.from_conn_string(path, integrity=Encryption(b"k" * 32)) as saver:
        chain(saver).post(CONFIG, {"log": ["very secret"]})
        assert chain(saver).get_state(CONFIG).posts == ({"log": ["very secret"]},)
    assert all(b"very secret" not in each.read_bytes() for each in tmp_path.iterdir())


def test_a_graph_without_an_inbox_reads_no_posts(drive, monkeypatch):
    saver = InMemorySaver()
    reads = []
    monkeypatch.setattr(saver, "read_posts", lambda thread_id: reads.append(thread_id) or ())
    builder = chain_of(State, a=says("a"), b=says("b"))
    drive.invoke(builder.compile(saver), EMPTY, CONFIG)
    assert reads == []
    drive.invoke(builder.compile(saver, inbox=True), EMPTY, CONFIG)
    assert len(reads) == 2, "at the barriers of START and of a; nothing runs after b"


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_command_that_only_meets_the_next_question_is_no_step(drive, saver, durability):
    def ask(state: State):
        return {"log": [interrupt("one?"), interrupt("two?")]}

    thread = drive.on(chain_of(State, a=ask).compile(saver))
    thread.invoke({"log": ["in"]}, durability=durability)
    thread.invoke(Command(resume=1, update={"log": ["up"]}), durability=durability)
    assert thread.state.values == {"log": ["in", "up"]}
    assert thread.resume(2, durability=durability) == {"log": ["in", "up", 1, 2]}

