"""Declared changes: what a `Migration` makes of threads at rest, that wait, that have finished a part of a step, in both
schedules; by what is stored, or by versions.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import pytest
from kit.drive import each_schedule
from kit.flow_cases import CASES
from kit.graphs import EMPTY, Log, chain_of, graph_of, read_words
from kit.pausing_graphs import asks, fails, says
from kit.upgrades import compiled, config_of, go_on, look_at, stopped_threads

from stategraph import (
    START,
    Command,
    InMemorySaver,
    InvalidGraphError,
    Runtime,
    Send,
    StateGraph,
    effect,
    interrupt,
    task,
)
from stategraph.channels import EphemeralValue, Overwrite, Topic
from stategraph.checkpoint import CheckpointConflictError
from stategraph.pregel.run import update_state
from stategraph.upgrade import Migration, prove
from stategraph.upgrade.proof import apply_migration

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
T = config_of("t")


def renamed_case(case, old, new):
    """A case's graph and script with a node renamed."""

    def rename(text: str) -> str:
        for mark in ">[],=|:~":
            text = text.replace(mark, f" {mark} ")
        return "".join(new if part == old else part for part in text.split(" "))

    def rename_goal(goal):
        if isinstance(goal, list):
            return [rename_goal(each) for each in goal]
        if isinstance(goal, Send):
            return Send(rename_goal(goal.node), goal.arg)
        return new if goal == old else goal

    graph = " ".join(rename(part) for part in case.graph.split())
    script = {rename_goal(name): [rename_goal(each) for each in goals] for name, goals in case.script.items()}
    return graph, script


def without_names(end, new, old):
    """What has become of a thread, with the new name as the old one."""
    kind, log = end
    return (kind, sorted(each.replace(new, old) for each in log)) if isinstance(log, list) else end


def steps_aside(end):
    """What has become of a thread without the numbers of the steps: what is stored before takes one."""
    return (end[0], sorted(each.split("'")[1] for each in end[1])) if isinstance(end[1], list) else end


@pytest.mark.trial
@each_schedule
def test_threads_end_the_same_after_a_node_was_renamed(schedule):
    options = {} if schedule == "supersteps" else {"schedule": schedule}
    wrong, count = [], 0
    for case in CASES.values():
        saver = InMemorySaver()
        try:
            threads = stopped_threads(case, saver, **options)
        except InvalidGraphError:
            continue
        old = compiled(case.graph, case.script, saver, **options)
        # Scripts count the runs of a node by its name.
        for name in read_words(case.graph)[1]["names"].keys() - case.script.keys():
            graph, script = renamed_case(case, name, f"{name}Z")
            migration = Migration().rename_node(name, f"{name}Z")
            new = compiled(graph, script, saver, migrate=migration, **options)
            names = [each.id for each in threads]
            verdicts = prove(new, old, threads=names).verdicts
            for thread, verdict in zip(threads, verdicts, strict=True):
                count += 1
                end = without_names(go_on(new, saver, thread), f"{name}Z", name)
                if verdict.kind != "migrates" or end != without_names(thread.end, f"{name}Z", name):
                    wrong.append((case.graph, name, verdict, end, thread.end))
                # The same if it is stored before, and the version that goes on knows no migration.
                saver.copy_thread(thread.id, "applied")
                assert apply_migration(new, replace(verdict, thread_id="applied"))
                plain = compiled(graph, script, saver, **options)
                assert prove(plain, threads=["applied"]).count()["same"] == 1
                applied = without_names(go_on(plain, saver, thread._replace(id="applied", asked=())), f"{name}Z", name)
                if steps_aside(applied) != steps_aside(end):
                    wrong.append((case.graph, name, "applied", applied, end))
                saver.delete_thread("applied")
    assert not wrong
    assert count > 200


def pays_and_asks(calls):
    """A node that calls a `@task`, which notes each call, and then asks."""

    @task
    def pay(amount: int) -> int:
        calls.append(amount)
        return amount

    def ask(state):
        return {"log": [pay(7).result(), *asks("q")(state)["log"]]}

    return ask


@each_schedule
def test_questions_of_a_renamed_node_stay_open_and_calls_are_not_repeated(schedule):
    calls = []
    ask = pays_and_asks(calls)

    saver = InMemorySaver()
    old = graph_of(Log, "S>q>z", q=ask).compile(saver, schedule=schedule)
    [asked] = old.invoke({"log": ["in"]}, T, version="v2").interrupts
    migration = Migration().rename_node("q", "approve")
    new = graph_of(Log, "S>approve>z", approve=ask).compile(saver, schedule=schedule, migrate=migration)
    [verdict] = prove(new, old).verdicts
    assert (verdict.kind, verdict.next) == ("migrates", ("approve",))
    [open_] = new.get_state(T).interrupts
    assert (open_.value, open_.id == asked.id) == ("q?", False)  # a node's name is in the ids of its questions
    assert new.invoke(Command(resume={open_.id: "yes"}), T)["log"] == ["in", 7, ("q", "yes"), "z"]
    assert calls == [7]


def test_what_a_sibling_has_finished_reaches_a_renamed_join_and_key():
    class Before(TypedDict, total=False):
        log: Annotated[list[Any], operator.add]

    class After(TypedDict, total=False):
        lines: Annotated[list[Any], operator.add]

    def graph(state, key: str, name: str):
        builder = StateGraph(state).add_node(name, lambda s: {key: ["done"]})
        builder.add_node("f", lambda s: {key: fails_once(s)["log"]}).add_node("end", lambda s: {key: ["end"]})
        return builder.add_edge(START, name).add_edge(START, "f").add_edge([name, "f"], "end")

    fails_once, saver = fails("f", 1), InMemorySaver()
    with pytest.raises(ValueError, match="f failed"):
        graph(Before, "log", "a").compile(saver).invoke({"log": ["in"]}, T)
    migration = Migration().rename_key("log", "lines").rename_node("a", "d")
    new = graph(After, "lines", "d").compile(saver, migrate=migration)
    assert prove(new).count()["migrates"] == 1
    assert new.invoke(None, T)["lines"] == ["in", "done", "f", "end"]


class Cents(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    price: int
    note: str


class Euros(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    price: float


def test_a_value_is_mapped_where_its_kind_has_changed_and_a_key_dropped():
    saver = InMemorySaver()
    old = chain_of(Cents, q=asks("q")).compile(saver)
    old.invoke({"price": 250, "note": "x"}, T)
    migration = Migration().map_value("price", lambda cents: cents / 100).drop_key("note")
    new = chain_of(Euros, q=asks("q")).compile(saver, migrate=migration)
    assert prove(new, old).count()["migrates"] == 1
    for _ in range(2):  # the second time it is stored
        values = new.get_state(T).values
        assert (values["price"], "note" in values) == (2.5, False)
        new.invoke(Command(resume="yes"), T)
        new.invoke(EMPTY, T)


@each_schedule
@pytest.mark.parametrize("tag", [Overwrite, lambda value: {"__overwrite__": value}])
def test_a_value_is_mapped_that_overwrites_another(schedule, tag, saver):
    class Many(TypedDict, total=False):
        prices: Annotated[list[int], operator.add]

    class Sum(TypedDict, total=False):
        prices: Annotated[int, operator.add]

    def graph(state):
        return graph_of(state, "S>b S>q", b=lambda s: {"prices": tag([2, 3])}, q=lambda s: interrupt("q?"))

    graph(Many).compile(saver, schedule=schedule).invoke({"prices": [1]}, T)
    new = graph(Sum).compile(saver, schedule=schedule, migrate=Migration().map_value("prices", sum))
    assert prove(new).count()["migrates"] == 1
    assert new.invoke(Command(resume=None), T) == {"prices": 5}


def test_with_versions_a_thread_gets_the_changes_after_its_own():
    saver = InMemorySaver()
    migration = Migration("1").map_value("price", lambda price: price * 100).to("2")
    migration = migration.map_value("price", lambda price: price + 1).to("3")
    builder = chain_of(Cents, q=asks("q"))
    for version, price in (("1", 301), ("2", 4), ("3", 3)):
        saver.delete_thread("t")
        builder.compile(saver, version=version).invoke({"price": 3}, T)
        assert builder.compile(saver, version="3", migrate=migration).get_state(T).values["price"] == price


def test_a_version_that_the_migration_lacks_is_refused():
    saver = InMemorySaver()
    builder = chain_of(Cents, q=asks("q"))
    builder.compile(saver, version="9").invoke({"price": 3}, T)
    app = builder.compile(saver, version="3", migrate=Migration("1").map_value("price", str).to("3"))
    assert "stored by version '9'" in prove(app).verdicts[0].reasons[0]
    with pytest.raises(ValueError, match="stored by version '9'"):
        app.invoke(Command(resume="yes"), T)


def test_names_follow_through_several_versions():
    migration = Migration().rename_node("a", "b").rename_node("b", "c")
    assert migration.renamed == {"a": "c", "b": "c"}
    for name in "abc":
        saver = InMemorySaver()
        chain_of(Log, **{name: asks("q")}).compile(saver).invoke(EMPTY, T)
        new = chain_of(Log, c=asks("q")).compile(saver, migrate=migration)
        thread = look_at(new, saver, "t")
        assert thread.asked and thread.end == ("ended", ["('q', 'yes')"])


@pytest.mark.parametrize("wrong", [3, ""])
def test_a_version_must_have_a_name(wrong):
    with pytest.raises(TypeError, match="version=...\\) must be a name, such as '2', got"):
        graph_of(Log, "S>a").compile(version=wrong)


MISTAKES = {
    "rename_node": (Migration().rename_node("ask", "aprove"), "renames node 'ask' to node 'aprove', .* mean 'approve'?"),
    "rename_key": (Migration().rename_key("logs", "lok"), "renames key 'logs' to key 'lok', .* mean 'log'?"),
    "map_value": (Migration().map_value("lug", str), "converts key 'lug', .* mean 'log'?"),
    "in two steps": (Migration().rename_node("a", "b").rename_node("b", "aprove"), "renames node 'b' to node 'aprove'"),
    "in the wrong order": (Migration().rename_key("old", "log").map_value("old", str), "converts key 'old', .* known: 'log'"),
}


@pytest.mark.parametrize("case", MISTAKES)
@each_schedule
def test_a_migration_to_what_the_graph_lacks_is_refused(case, schedule):
    migration, words = MISTAKES[case]
    graph = chain_of(Log, approve=asks("q"))
    with pytest.raises(InvalidGraphError, match=words):
        graph.compile(migrate=migration, schedule=schedule)


def test_a_migration_may_go_by_names_that_are_gone_again():
    steps = Migration().rename_key("a", "b").map_value("b", str).drop_key("b").rename_node("x", "y").to("2").rename_node("y", "ask")
    chain_of(Log, ask=asks("q")).compile(migrate=steps, version="3")
    with pytest.raises(TypeError, match="migrate=...\\) must be a function or a Migration, got 'ask'"):
        chain_of(Log, ask=asks("q")).compile(migrate="ask")


# -- threads that the new version has begun to continue ---------------------------------------------


class Lines(TypedDict, total=False):
    lines: Annotated[list[Any], operator.add]


@each_schedule
def test_what_the_new_version_has_written_is_not_converted_again(schedule, saver):
    """It stands beside the checkpoint of the old version, as another question still waits."""

    def graph(state, price):
        nodes = {"q": asks("q"), "p": lambda s: {"price": price, "log": [interrupt("p?")]}, "z": lambda s: {"log": [s["price"]]}}
        return graph_of(state, "S>q S>p [q,p]>z", **nodes)

    old = graph(Cents, 250).compile(saver, schedule=schedule)
    old.invoke(EMPTY, T)
    migration = Migration().map_value("price", lambda cents: cents / 100)
    new = graph(Euros, 2.5).compile(saver, schedule=schedule, migrate=migration)
    ids = {each.value: each.id for each in new.get_state(T).interrupts}
    new.invoke(Command(resume={ids["p?"]: "yes"}), T)
    assert new.get_state(T).values["price"] == 2.5
    assert prove(new).count()["breaks"] == 0
    assert new.invoke(Command(resume={ids["q?"]: "yes"}), T)["log"] == ["yes", ("q", "yes"), 2.5]


def test_a_third_version_converts_what_the_second_has_written(saver):
    def graph(amount):
        nodes = {"q": asks("q"), "p": lambda s: {"price": amount, "log": [interrupt("p?")]}}
        return graph_of(Cents, "S>q S>p", **nodes)

    steps = Migration("1").map_value("price", lambda price: price * 10).to("2").map_value("price", lambda price: price + 1).to("3")
    graph(0).compile(saver, version="1").invoke({"price": 5}, T)
    second = graph(70).compile(saver, version="2", migrate=steps)
    asked = {each.value: each.id for each in second.get_state(T).interrupts}
    second.invoke(Command(resume={asked["p?"]: "yes"}), T)
    assert graph(0).compile(saver, version="3", migrate=steps).invoke(Command(resume={asked["q?"]: "yes"}), T)["price"] == 71


@pytest.mark.parametrize("apply", [False, True])
def test_tasks_under_way_continue_beside_a_step_of_the_new_version(apply, saver):
    """Where they have started, the old version has recorded what others wrote."""

    def graph(state, key, name):
        def ask(question):
            return lambda s: {key: [interrupt(question)]}

        return graph_of(state, f"S>d S>p S>{name}", d=lambda s: {key: ["d"]}, p=ask("p?"), **{name: ask("q?")})

    old = graph(Log, "log", "q").compile(saver, schedule="ready")
    old.invoke(EMPTY, T)
    migration = Migration().rename_key("log", "lines").rename_node("q", "r")
    new = graph(Lines, "lines", "r").compile(saver, schedule="ready", migrate=migration)
    if apply:
        assert apply_migration(new, prove(new).verdicts[0])
    for question in ("p?", "q?"):
        [id] = [each.id for each in new.get_state(T).interrupts if each.value == question]
        found = new.invoke(Command(resume={id: question}), T)
    assert sorted(found["lines"]) == ["d", "p?", "q?"]
    assert [each.values.get("lines") for each in new.get_state_history(T)][-1] == []


@each_schedule
@pytest.mark.parametrize("apply", [False, True])
def test_a_task_under_way_is_shown_with_the_input_that_its_graph_has_now(schedule, apply, saver):
    class Prices(TypedDict, total=False):
        prices: Annotated[float, Topic(float, accumulate=True)]
        log: Annotated[list[str], operator.add]

    def graph(state):
        return graph_of(state, "S>d S>q", d=says("d"), q=asks("q?"))

    graph(Euros).compile(saver, schedule=schedule).invoke({"price": 2.5}, T)
    migration = Migration().rename_key("price", "prices").map_value("prices", lambda price: [price])
    new = graph(Prices).compile(saver, schedule=schedule, migrate=migration)
    [verdict] = prove(new).verdicts
    assert verdict.kind == "migrates", verdict.reasons
    if apply:
        assert apply_migration(new, verdict)
    assert {each.name: each.input["prices"] for each in new.get_state(T).tasks}["q"] == [2.5]


@each_schedule
def test_an_input_that_no_node_has_taken_is_converted(schedule, saver):
    old = chain_of(Log, q=says("q")).compile(saver, schedule=schedule)
    old.update_state(T, {"log": ["in"]}, as_node="__input__")
    nodes = {"q": lambda s: {"lines": ["q"]}}
    new = chain_of(Lines, **nodes).compile(saver, schedule=schedule, migrate=Migration().rename_key("log", "lines"))
    assert prove(new, old).count()["migrates"] == 1
    assert new.invoke(None, T)["lines"] == ["in", "q"]


@each_schedule
def test_what_commands_of_several_versions_have_brought_is_converted_each_once(schedule, saver):
    """They stand beside the checkpoint of the first version, as another question still waits."""

    class Sum(TypedDict, total=False):
        n: Annotated[int, operator.add]

    graph = graph_of(Sum, "S>q S>p S>r", **{name: asks(name) for name in "qpr"})
    tenfold = Migration("1").map_value("n", lambda n: n * 10).to("2")
    steps = Migration("1").map_value("n", lambda n: n * 10).to("2").map_value("n", lambda n: n * 10).to("3")
    versions = [graph.compile(saver, version=f"{n}", migrate=m, schedule=schedule) for n, m in enumerate((None, tenfold, steps), 1)]
    versions[0].invoke({"n": 1}, T)
    totals = []
    for app in versions:
        for _ in "ab":  # each waits for an answer that does not come
            app.invoke(Command(update={"n": 1}), T)
        totals.append(app.get_state(T).values["n"])
    assert totals == [3, 32, 322]
    assert prove(versions[2]).count()["migrates"] == 1


@each_schedule
def test_what_a_run_records_while_its_thread_is_converted_is_not_left_behind(schedule, saver, monkeypatch):
    done = []

    def pay(state, runtime: Runtime):
        interrupt("p?")
        runtime.once("pay", done.append, 1)
        interrupt("paid?")
        return {"log": ["paid"]}

    def graph(name, **options):
        return graph_of(Log, f"S>p S>{name}", p=pay, **{name: asks("q")}).compile(saver, schedule=schedule, **options)

    old, new = graph("q"), graph("r", migrate=Migration().rename_node("q", "r"))
    asked = {each.value: each.id for each in old.invoke(EMPTY, T, version="v2").interrupts}
    [verdict] = prove(new).verdicts
    upcoming = update_state.upcoming

    def read_late(run):
        monkeypatch.undo()
        old.invoke(Command(resume={asked["p?"]: "yes"}), T)
        return upcoming(run)

    monkeypatch.setattr(update_state, "upcoming", read_late)
    with pytest.raises(CheckpointConflictError):
        apply_migration(new, verdict)
    assert apply_migration(new, verdict)
    questions = new.get_state(T).interrupts
    new.invoke(Command(resume={each.id: "yes" for each in questions}), T)
    assert (len(questions), done) == (2, [1])


@each_schedule
def test_answers_given_under_a_name_in_between_count_and_what_it_has_asked_stays_open(schedule, saver):
    def graph(name, migrate=None):
        node = {name: lambda s: {"log": [interrupt("1?"), interrupt("2?")]}}
        return chain_of(Log, **node).compile(saver, schedule=schedule, migrate=migrate)

    graph("a").invoke(EMPTY, T)
    graph("b", Migration().rename_node("a", "b")).invoke(Command(resume="one"), T)
    new = graph("c", Migration().rename_node("a", "b").rename_node("b", "c"))
    [question] = new.get_state(T).interrupts
    assert new.invoke(Command(resume={question.id: "two"}), T)["log"] == ["one", "two"]


@each_schedule
def test_values_of_one_superstep_stay_until_it_has_ended(schedule, saver):
    """`--apply` ends none."""

    class Before(TypedDict, total=False):
        log: Annotated[list[Any], operator.add]
        note: Annotated[int, EphemeralValue(int)]

    class After(TypedDict, total=False):
        log: Annotated[list[Any], operator.add]
        note: Annotated[float, EphemeralValue(float)]

    def graph(state):
        return chain_of(state, w=lambda s: {"note": 7}, q=lambda s: {"log": [s["note"], interrupt("q?")]})

    graph(Before).compile(saver, schedule=schedule).invoke(EMPTY, T)
    new = graph(After).compile(saver, schedule=schedule, migrate=Migration().map_value("note", float))
    assert apply_migration(new, prove(new).verdicts[0])
    assert new.invoke(Command(resume="yes"), T)["log"] == [7.0, "yes"]


# -- names that stand for something else -----------------------------------------------------------


def test_an_undo_goes_on_under_keys_that_are_called_like_its_parts(saver):
    @effect("keyed")
    def refund(item: str) -> None:
        raise ValueError("closed")

    @effect("keyed", undo=refund)
    def buy(item: str) -> str:
        return item

    class Before(TypedDict, total=False):
        to: str
        effects: list[str]

    class After(TypedDict, total=False):
        who: str

    old = chain_of(Before, a=lambda s: {"effects": [buy("tea")]}).compile(saver)
    old.invoke({"to": "Ada"}, T)
    old.undo(T)
    new = chain_of(After, a=lambda s: {}).compile(saver, migrate=Migration().rename_key("to", "who").drop_key("effects"))
    assert prove(new, old).count()["migrates"] == 1
    assert new.invoke(Command(resume={"decision": "done"}), T) == {}
    assert new.get_state(T).next == ()


@each_schedule
@pytest.mark.parametrize("before", ["edited", "converted"])
def test_a_task_that_goes_on_from_an_earlier_checkpoint_follows_its_renamed_node(schedule, before, saver):
    calls = []
    ask = pays_and_asks(calls)

    def graph(name):
        return graph_of(Log, f"S>p S>{name}", p=asks("p"), **{name: ask})

    old = graph("q").compile(saver, schedule=schedule)
    old.invoke(EMPTY, T)
    if before == "edited":
        old.update_state(T, EMPTY, as_node="p")
    else:
        between = graph("r").compile(saver, schedule=schedule, migrate=Migration().rename_node("q", "r"))
        assert apply_migration(between, prove(between).verdicts[0])
    steps = Migration().rename_node("q", "r").rename_node("r", "z")
    new = graph("z").compile(saver, schedule=schedule, migrate=steps)
    assert prove(new).count()["migrates"] == 1
    questions = new.get_state(T).interrupts
    assert ("q", "yes") in new.invoke(Command(resume={each.id: "yes" for each in questions}), T)["log"]
    assert calls == [7]


@each_schedule
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("apply", [False, True])
def test_the_handler_of_a_renamed_node_continues(schedule, sent, apply, saver):
    calls = []

    @task
    def pay(amount: int) -> int:
        calls.append(amount)
        return amount

    def graph(name):
        builder = StateGraph(Log).add_node(name, fails("f", 9), error_handler=lambda s, error: {"log": [pay(7).result(), interrupt("h?")]})
        ways = [Send(name, EMPTY), Send(name, {"log": ["1"]})] if sent else name
        return builder.add_conditional_edges(START, lambda s: ways, [name])

    old = graph("a").compile(saver, schedule=schedule)
    old.invoke(EMPTY, T)
    done = len(calls)
    new = graph("b").compile(saver, schedule=schedule, migrate=Migration().rename_node("a", "b"))
    proof = prove(new, old)
    assert proof.count()["migrates"] == 1
    if apply:
        assert apply_migration(new, proof.verdicts[0])
    questions = new.get_state(T).interrupts
    assert len(questions) == done == 1 + sent
    assert new.invoke(Command(resume={each.id: "yes" for each in questions}), T)["log"] == [7, "yes"] * done
    assert len(calls) == done


@each_schedule
@pytest.mark.parametrize("apply", [False, True])
def test_an_answer_reaches_the_node_that_is_renamed_in_a_graph_inside(schedule, apply, saver):
    """The graphs around it have shown the question under its former id."""

    def graph(name, migrate=None):
        builder = chain_of(Log, **{name: asks("1"), "again": asks("2")})
        for around in ("in", "out"):
            builder = chain_of(Log, **{around: builder.compile(schedule=schedule, migrate=migrate)})
            migrate = None
        return builder.compile(saver, schedule=schedule)

    [asked] = graph("a").invoke(EMPTY, T, version="v2").interrupts
    new = graph("c", Migration().rename_node("a", "b").rename_node("b", "c"))
    if apply:
        assert apply_migration(new, prove(new).verdicts[0])
    [other] = new.invoke(Command(resume={asked.id: "yes"}), T, version="v2").interrupts
    assert other.value == "2?"
    assert new.invoke(Command(resume={other.id: "no"}), T)["log"] == [("1", "yes"), ("2", "no")]


@each_schedule
def test_two_nodes_change_names(schedule, saver):
    def graph(first, second):
        return graph_of(Log, f"S>{first} S>{second}", **{first: asks("1"), second: asks("2")})

    steps = Migration("1").rename_node("a", "c").rename_node("b", "a").rename_node("c", "b").to("2")
    graph("a", "b").compile(saver, version="1", schedule=schedule).invoke(EMPTY, T)
    new = graph("b", "a").compile(saver, version="2", schedule=schedule, migrate=steps)
    for question in ("1?", "2?"):
        waiting = {each.value: each.id for each in new.get_state(T).interrupts}
        found = new.invoke(Command(resume={waiting[question]: question}), T)
    assert sorted(found["log"]) == [("1", "1?"), ("2", "2?")]
    blind = Migration().rename_node("a", "c").rename_node("b", "a").rename_node("c", "b")
    with pytest.raises(InvalidGraphError, match="gives node 'a' the name of another, and that its own: without versions"):
        graph("b", "a").compile(migrate=blind)


def test_a_value_that_is_the_name_of_a_renamed_node_stays(saver):
    class Word(TypedDict, total=False):
        word: str
        other: str

    @task
    def find() -> str:
        return "ask"

    def ask(state):
        return {"other": find().result() + interrupt("q?")}

    def graph(name):
        return graph_of(Word, f"S>w S>{name}", w=lambda s: {"word": "ask"}, **{name: ask})

    graph("ask").compile(saver).invoke({"word": ""}, T)
    new = graph("approve").compile(saver, migrate=Migration().rename_node("ask", "approve"))
    assert new.invoke(Command(resume="?"), T) == {"word": "ask", "other": "ask?"}
