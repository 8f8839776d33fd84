"""`explain`: why a node did not run. Per node: would it run now, what does it wait for, which sources does a join
lack.
"""

import pytest
from kit.drive import each_case, each_schedule
from kit.graphs import CONFIG, graph_of, thread_config
from kit.pausing_graphs import State, asks, at, fails, graph, says

from stategraph import START, GraphWarning, InMemorySaver, Send, StateGraph
from stategraph.channels import MISSING, ChannelStatus, LastValue
from stategraph.pregel import NodeBuilder, Pregel


class Quorum(LastValue[int]):
    """Can be read once it was written twice."""

    __slots__ = ("votes",)

    def __init__(self, typ, key=""):
        super().__init__(typ, key)
        self.votes = 0

    def update(self, values):
        self.votes += len(values)
        return super().update(values)

    def is_available(self):
        return self.votes >= 2

    def describe(self):
        if self.is_available():
            return super().describe()
        return ChannelStatus("waiting" if self.votes else "empty", f"has {self.votes} of 2 votes")

    def checkpoint(self):
        return self.votes

    def from_checkpoint(self, stored):
        new = super().from_checkpoint(MISSING)
        new.votes = 0 if stored is MISSING else stored
        return new


def explain(thread, config=None):
    return thread.drive.call(thread.app, "explain", config or thread.config)


def chain(**compiled):
    return graph("S>x>y>z", **compiled)


def states(found):
    return {name: status.state for name, status in found.items()}


def test_on_a_thread_that_has_not_started_all_are_idle(drive):
    found = explain(drive.on(chain()))
    assert states(found) == dict.fromkeys("xyz", "idle") and found["x"].why == "the thread has not started"


def test_every_visible_node_gets_a_status_and_a_sentence(drive):
    thread = drive.on(chain(interrupt_before=["y"]))
    thread.invoke({})
    found = explain(thread)
    assert states(found) == {"x": "idle", "y": "next", "z": "idle"}
    assert found["y"].why == "it runs in the next superstep"
    assert found["z"].why == "nothing has triggered it yet"
    assert found["x"].why == "nothing triggers it now"


def test_a_partly_filled_join_names_missing_sources(drive):
    builder = graph_of(State, "S>a1 [b,c]>end").add_conditional_edges("a1", lambda s: "b", ["b", "c"])
    with pytest.warns(GraphWarning, match="never runs"):
        thread = drive.on(builder.compile(InMemorySaver()))
    thread.invoke({})
    status = explain(thread)["end"]
    assert (status.state, status.missing) == ("waiting", ("c",))
    assert "the join 'join:b+c:end' still waits for c (b has finished)" in status.why


def test_a_join_without_finished_sources_is_idle(drive):
    thread = drive.on(graph("S>a1 S>b [a1,b]>end", interrupt_before=["a1"]))
    thread.invoke({})
    status = explain(thread)["end"]
    assert (status.state, status.missing) == ("idle", ("a1", "b")) and "no predecessor has finished yet" in status.why


@each_schedule
@pytest.mark.parametrize("wait", ["all", "any", 2, "reachable"])
def test_a_node_behind_a_join_that_has_run_is_explained(drive, wait, schedule):
    thread = drive.on(graph(f"S>a1 S>b [a1,b]{wait}>end", schedule=schedule))
    thread.invoke({})
    status = explain(thread)["end"]
    [join] = thread.app.program.joins
    assert (status.state, status.why) == ("idle", f"nothing triggers it now; it has run since the join '{join.channel}' last opened")


def test_an_interrupted_and_a_finished_sibling_are_distinguished(drive):
    thread = drive.on(graph("S>ok S>q", q=asks("q")))
    thread.invoke({})
    found = explain(thread)
    assert found["q"] == ("next", "it is paused: it asked 'q?' and waits for the answer", ())
    assert found["ok"] == ("waiting", "it has finished; its superstep waits for the other nodes", ())


def test_a_failed_node_shows_its_error(drive):
    thread = drive.on(graph("S>bad", bad=fails("bad", 1)))
    with pytest.raises(ValueError):
        thread.invoke({})
    status = explain(thread)["bad"]
    assert status.state == "next" and "failed with ValueError('bad failed') and runs again on resume" in status.why


COMPLETE = "nothing has triggered it yet; the join 'join:p+q:late' is complete and waits until nothing else can run"


@each_case(
    "words, stop, state, why",
    [
        ("S>a1>b S>late defer:late", "b", "waiting", "it was triggered and waits until nothing else can run"),
        ("S>p S>q S>r1>r2 [p,q]>late defer:late", "r2", "waiting", COMPLETE),
        ("S>a1 S>late defer:late", None, "idle", "nothing triggers it now"),
    ],
)
def test_a_deferred_node_says_that_it_waits_for_the_end_until_it_has_run(drive, words, stop, state, why):
    thread = drive.on(graph(words, interrupt_before=[stop] if stop else None))
    thread.invoke({})
    assert explain(thread)["late"] == (state, why, ())


def test_a_channel_of_one_s_own_says_what_its_node_waits_for(drive):
    thread = drive.on(Pregel(
        nodes={
            "ask": NodeBuilder().subscribe_only("a").write_to("votes"),
            "count": NodeBuilder().subscribe_only("votes").write_to("o"),
        },
        channels={"a": LastValue(int), "votes": Quorum(int), "o": LastValue(int)},
        input_channels="a", output_channels="o", checkpointer=InMemorySaver(),
    ))  # fmt: skip
    thread.invoke(1)
    why = "its trigger 'votes' has 1 of 2 votes"
    assert explain(thread)["count"] == ("waiting", why, ())


def test_a_node_that_was_sent_to_is_next(drive):
    builder = StateGraph(State).add_node("w", lambda n: {"log": [n]})
    builder.add_conditional_edges(START, lambda s: [Send("w", n) for n in range(2)], ["w"])
    thread = drive.on(builder.compile(InMemorySaver(), interrupt_before=["w"]))
    thread.invoke({})
    assert explain(thread)["w"].state == "next"


def test_a_node_that_has_run_since_its_trigger_changed_says_so(drive):
    thread = drive.on(Pregel(nodes={"n": NodeBuilder().subscribe_only("a").write_to("o")}, channels={k: LastValue(int) for k in "ao"},
                 input_channels="a", output_channels="o", checkpointer=InMemorySaver()))  # fmt: skip
    thread.invoke(1)
    assert explain(thread)["n"] == ("idle", "it has run since its trigger 'a' last changed", ())


def test_an_error_handler_is_explained_as_having_no_trigger(drive):
    builder = StateGraph(State).add_node("n", says("n"), error_handler=lambda state: {"log": ["handled"]}).add_edge(START, "n")
    thread = drive.on(builder.compile(InMemorySaver()))
    thread.invoke({})
    handlers = [status for name, status in explain(thread).items() if name != "n"]
    assert all(status.state == "idle" and "whose errors it handles" in status.why for status in handlers)


def test_an_old_checkpoint_and_a_nested_graph_are_explained_too(drive):
    child = graph("S>s>i", i=asks("i"), checkpointer=None)
    thread = drive.on(graph("S>sub", sub=child))
    thread.invoke({})
    nested = thread.state.tasks[0].state
    assert states(explain(thread, nested)) == {"s": "idle", "i": "next"}
    assert "it asked 'i?'" in explain(thread)["sub"].why
    thread.resume(1)
    assert states(explain(thread, at(thread, 0))) == {"sub": "idle"}  # there it has run


def test_explaining_runs_nothing_and_stores_nothing(drive):
    thread = drive.on(chain(interrupt_before=["y"]))
    thread.invoke({})
    before = thread.history()
    explain(thread)
    assert thread.history() == before


def test_explaining_needs_a_saver_and_a_checkpoint_that_exists(drive):
    with pytest.raises(ValueError, match="no checkpointer set"):
        explain(drive.on(chain(checkpointer=None)))
    app = chain()
    drive.invoke(app, {}, CONFIG)
    with pytest.raises(ValueError, match="has no checkpoint 'nope'"):
        explain(drive.on(app), thread_config(checkpoint_id="nope"))
