"""Posts with schedule="ready": they are applied with each step after which a task is running or starts."""

import pytest
from kit.drive import each_durability
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import build, by_order, ends_by, ends_in, ready

from stategraph import CheckpointConflictError, Command, Send, interrupt
from stategraph.checkpoint.base import POST_TASK_ID

ORDER = by_order("a", "b", "c", "long", "d")


@pytest.fixture(autouse=True)
def in_order():
    with ends_by(ORDER):
        yield


def saw(name):
    """A node that writes down how much it has seen."""
    return lambda state: {"log": [f"{name}{len(state['log'])}"]}


def posting(name, saver, *words):
    """The same, and words are posted while it runs; once, whoever runs it again."""
    left = list(words)

    def node(state):
        while left:
            app_of(saver).post(CONFIG, {"log": [left.pop(0)]})
        return saw(name)(state)

    return node


def app_of(saver, graph="S>a>b>c>d S>long>d", **nodes):
    """`long` beside a > b > c, which end before it begins, and d behind both."""
    made = {name: saw(name) for name in ("a", "b", "c", "d", "long")} | nodes
    return ready(graph, nodes=made, saver=saver, inbox=True)


def posted(saver):
    """The steps that have taken something, and what, oldest first."""
    found = []
    for stored in saver.list(CONFIG):
        words = [w for id, key, value in stored.pending_writes or () if id == POST_TASK_ID for w in value]
        if words:
            found.append((stored.metadata["step"] + 1, words))
    return found[::-1]


def waiting(drive, saver):
    return [word for post in drive.get_state(app_of(saver), CONFIG).posts for word in post["log"]]


@each_durability
def test_posts_before_the_start_are_applied_with_the_input(drive, saver, durability):
    thread = drive.on(app_of(saver))
    thread.call("post", {"log": ["word"]})
    end = thread.invoke({"log": ["in"]}, durability=durability)
    assert end["log"] == ["in", "word", "a2", "b3", "c4", "long2", "d6"]
    steps = [] if durability == "exit" else [(0, ["word"])]  # a step that is not stored has no writes
    assert (posted(saver), waiting(drive, saver)) == (steps, [])


def test_with_durability_exit_all_posts_are_in_the_one_step(drive, saver):
    nodes = {"a": posting("a", saver, "one", "two"), "long": lambda state: {"log": [interrupt("?")]}}
    app = app_of(saver, **nodes)
    thread = drive.on(app)
    drive.call(app, "post", CONFIG, {"log": ["word"]})
    thread.invoke({"log": ["in"]}, durability="exit")
    state = thread.state
    assert (state.values["log"], waiting(drive, saver)) == (["in", "word", "a2", "one", "two", "b5", "c6"], [])
    drive.call(app, "post", CONFIG, {"log": ["late"]})
    end = thread.resume("!", durability="exit")
    assert end["log"][-3:] == ["!", "late", "d9"] or end["log"][-3:] == ["late", "!", "d9"]
    assert (posted(saver)[-1][1], waiting(drive, saver)) == (["late"], [])


@each_durability
def test_posts_are_applied_after_the_step_and_tasks_that_start_next_see_them(drive, saver, durability):
    """b starts after it; `long` has started before, and reads the state of its origin."""
    app = app_of(saver, a=posting("a", saver, "one", "two"))
    end = drive.invoke(app, EMPTY, CONFIG, durability=durability)
    assert end["log"] == ["a0", "one", "two", "b3", "c4", "long0", "d6"]
    assert posted(saver) == ([] if durability == "exit" else [(1, ["one", "two"])])
    assert waiting(drive, saver) == []


def test_after_the_last_step_it_waits_for_the_next_call(drive, saver):
    app = app_of(saver, d=posting("d", saver, "late"))
    assert "late" not in drive.invoke(app, EMPTY, CONFIG)["log"]
    assert waiting(drive, saver) == ["late"]
    end = drive.invoke(app_of(saver), {"log": ["again"]}, CONFIG)["log"]
    assert end[5:8] == ["again", "late", "a7"] and waiting(drive, saver) == []


def test_what_only_waits_for_an_answer_is_under_way(drive, saver):
    """Nothing runs after c's step in this call; d will, when `long` has its answer."""

    def ask(state):
        return {"log": [interrupt("?")]}

    app = app_of(saver, c=posting("c", saver, "word"), long=ask)
    drive.invoke(app, EMPTY, CONFIG)
    assert (posted(saver), waiting(drive, saver)) == ([(3, ["word"])], [])
    end = drive.invoke(app_of(saver, long=ask), Command(resume="yes"), CONFIG)
    assert end["log"] == ["a0", "b1", "c2", "word", "yes", "d5"]


@each_durability
def test_after_an_edit_a_post_stays_in_the_one_step_that_took_it(drive, saver, durability):
    """The step of `a` takes it: beside its origin, at which `long` has started too and from where it goes on after the edit."""

    def ask(state):
        return {"log": [interrupt("?")]}

    app = app_of(saver, a=posting("a", saver, "word"), long=ask)
    drive.invoke(app, EMPTY, CONFIG)
    thread = drive.on(app_of(saver, long=ask))
    before = posted(saver)
    thread.update({"log": ["edit"]}, "c")
    assert posted(saver) == before == [(1, ["word"])]
    assert thread.resume("yes", durability=durability)["log"].count("word") == 1
    assert posted(saver) == before


def test_a_resumed_call_applies_posts_with_its_first_step(drive, saver):
    """The task that asked reads the state of its origin again."""

    def ask(state):
        return {"log": [f"{interrupt('?')}{len(state['log'])}"]}

    drive.invoke(app_of(saver, long=ask), EMPTY, CONFIG)
    drive.call(app_of(saver), "post", CONFIG, {"log": ["word"]})
    end = drive.invoke(app_of(saver, long=ask), Command(resume="yes"), CONFIG)
    assert end["log"] == ["a0", "b1", "c2", "yes0", "word", "d5"]


def test_a_call_whose_first_step_is_the_last_leaves_posts_queued(drive, saver):
    def ask(state):
        return {"log": [interrupt("?")]}

    drive.invoke(app_of(saver, d=ask), EMPTY, CONFIG)
    drive.call(app_of(saver), "post", CONFIG, {"log": ["word"]})
    assert drive.invoke(app_of(saver, d=ask), Command(resume="yes"), CONFIG)["log"][-1] == "yes"
    assert waiting(drive, saver) == ["word"]


def test_after_a_failure_what_ends_takes_it(drive, saver):
    def fail(state):
        raise ValueError("no luck")

    thread = drive.on(app_of(saver, a=posting("a", saver, "word"), long=fail))
    with ends_in("long", "a"), pytest.raises(ValueError, match="no luck"):
        thread.invoke(EMPTY)
    assert thread.log == ["a0", "word"]
    assert drive.invoke(app_of(saver), None, CONFIG)["log"] == ["a0", "word", "b2", "c3", "long0", "d5"]


def test_sends_that_wait_and_joins_keep_their_places(drive, saver):
    def split(state):
        return [Send("w", {"log": ["x"]}), Send("w", {"log": ["y"]})]

    builder = build("S>a r:a=w [w,long]>d S>long", {"a": split}, {"a": posting("a", saver, "word"), "d": saw("d")})
    builder.nodes.pop("w")
    builder.add_node("w", lambda state: {"log": [f"w{state['log'][0]}"]})
    app = ready(builder, saver=saver, inbox=True)
    with ends_in("a", "w", "long"):
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["a0", "word", "wx", "wy", "long", "d5"]


@pytest.mark.parametrize("kind", ["any", "reachable", 2])
def test_joins_in_waves(drive, saver, kind):
    builder = build("S>a>b S>long", nodes={"a": posting("a", saver, "word"), "b": saw("b")})
    builder.add_node("d", saw("d")).add_edge(["b", "long"], "d", wait=kind)
    app = ready(builder, saver=saver, inbox=True)
    end = drive.invoke(app, EMPTY, CONFIG)["log"]
    assert end == ["a0", "word", "b2", *(["d3", "long"] if kind == "any" else ["long", "d4"])] or (
        kind == "any" and end == ["a0", "word", "b2", "long", "d3"]
    )


def test_posts_are_applied_once_when_schedules_alternate(drive, saver):
    def ask(state):
        return {"log": [interrupt("?", key="q")]}

    def of(schedule):
        nodes = {"a": posting("a", saver), "b": ask, "c": saw("c")}
        return build("S>a>b>c", nodes=nodes).compile(saver, schedule=schedule, inbox=True)

    for first, second in (("ready", "supersteps"), ("supersteps", "ready")):
        before = len(drive.get_state(of(first), CONFIG).values.get("log", ()))
        drive.invoke(of(first), EMPTY, CONFIG)
        drive.call(of(first), "post", CONFIG, {"log": ["word"]})
        log = drive.invoke(of(second), Command(resume="yes"), CONFIG)["log"][before:]
        assert log.count("word") == 1 and waiting(drive, saver) == []


class Died(BaseException):
    pass


@pytest.mark.trial
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("number", range(6))
def test_a_run_that_dies_around_a_commit_loses_and_doubles_nothing(saver, monkeypatch, number, stored):
    """Killed anywhere and gone on with, each task sees what it would have seen."""
    nodes = {"a": posting("a", saver, "one"), "c": posting("c", saver, "two")}
    app, commit, count = app_of(saver, **nodes), saver.commit, []
    app.post(CONFIG, {"log": ["zero"]})

    def dies(given):
        count.append(given)
        if len(count) == number + 1 and not stored:
            raise Died
        commit(given)
        if len(count) == number + 1:
            raise Died

    monkeypatch.setattr(saver, "commit", dies)
    with pytest.raises(Died):
        app.invoke({"log": ["in"]}, CONFIG)
    monkeypatch.undo()
    again = app_of(saver, **nodes)
    end = again.invoke({"log": ["in"]} if saver.head(CONFIG) is None else None, CONFIG)
    assert sorted(end["log"]) == sorted([*["in", "zero", "one", "two"], "a2", "b4", "c5", "long2", "d8"])
    assert sorted(word for _, words in posted(saver) for word in words) == ["one", "two", "zero"]
    assert again.get_state(CONFIG).posts == ()


def test_of_two_runs_at_once_the_one_that_wins_takes_it(drive, saver):
    first = [True]

    def overtaken(state):
        if first and first.pop():
            app_of(saver).post(CONFIG, {"log": ["word"]})
            app_of(saver).invoke(None, CONFIG)
        return {"log": ["a"]}

    with pytest.raises(CheckpointConflictError):
        drive.invoke(app_of(saver, a=overtaken), EMPTY, CONFIG)
    end = drive.get_state(app_of(saver), CONFIG)
    assert end.values["log"].count("word") == 1 and end.posts == ()
    assert [words for _, words in posted(saver)] == [["word"]]
