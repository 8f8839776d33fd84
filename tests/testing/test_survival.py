"""A user's graph is killed, redelivered and raced at each storing call; a run that ends differently is named."""

from __future__ import annotations

from itertools import count
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from kit.graphs import chain_of, graph_of

from stategraph import END, START, Command, Runtime, Send, StateGraph, interrupt
from stategraph.testing import CheckFailed, Survival, survives


class State(TypedDict, total=False):
    item: str
    log: Annotated[list[str], add]


class Outbox:
    """What was done outside."""

    def __init__(self):
        self.sent = []

    def send(self, text):
        self.sent.append(text)
        return text

    def take(self):
        taken, self.sent = self.sent, []
        return taken


def in_a_row(*nodes):
    graph = StateGraph(State).add_sequence(list(nodes)).add_edge(START, nodes[0].__name__)
    return graph.compile()


def start(state):
    return {"log": ["start"]}


def end(state):
    return {"log": ["end"]}


def test_a_graph_survives():
    done = survives(in_a_row(start, end), {"item": "tea"})
    assert done == Survival(("the input", "the commit of step 0", "the commit of step 1", "the commit of step 2"), 16, {})
    assert str(done) == "16 trials at 4 places: all end as without harm"


def test_an_async_graph_survives():
    async def wait(state):
        return {"log": ["waited"]}

    assert survives(in_a_row(start, wait), {}).trials == 16


def test_questions_sends_loops_and_nested_graphs_survive():
    def ask(state):
        return {"log": [interrupt("Go on?")]}

    def again(state):
        return "ask" if state["log"][-1] == "again" else END

    desk = chain_of(State, ask=ask).add_conditional_edges("ask", again, ["ask", END])
    graph = graph_of(State, "S>start>desk", start=start, desk=desk.compile(), ship=lambda n: {"log": [str(n)]})
    app = graph.add_conditional_edges("desk", lambda state: [Send("ship", n) for n in range(2)], ["ship"]).compile()
    done = survives(app, {"item": "tea"}, answers=["again", "yes"])
    assert done.stored.count("the record of an answer") == 2
    assert "the commit of step 1 of graph 'desk'" in done.stored


def test_effects_are_compared_and_repeats_counted():
    outbox = Outbox()

    def mail(state):
        return {"log": [outbox.send("mail")]}

    app = in_a_row(mail, end)
    done = survives(app, {}, effects=outbox.take)
    assert done.repeated == {"mail": 1}
    assert "had again up to 1 times: mail" in str(done)
    with pytest.raises(CheckFailed) as failed:
        survives(app, {}, effects=outbox.take, once=True)
    assert str(failed.value) == (
        "killed before the commit of step 1: the effect mail was had 2 times, without harm 1; "
        "use runtime.once, or hand runtime.idempotency_key on to whoever can drop repeats"
    )


def test_a_receiver_that_drops_repeats_has_each_effect_once():
    keys = set()
    outbox = Outbox()

    def mail(state, runtime: Runtime[Any]):
        if runtime.idempotency_key not in keys:
            keys.add(runtime.idempotency_key)
            outbox.send("mail")
        return {"log": ["mailed"]}

    assert survives(in_a_row(start, mail, end), {}, effects=outbox.take, once=True).repeated == {}


def test_state_outside_of_the_graph_is_found():
    memory = {}

    def remember(state):
        memory["n"] = memory.get("n", 0) + 1
        return {"log": ["remembered"]}

    def recall(state):
        return {"log": [str(memory.pop("n", None))]}

    with pytest.raises(CheckFailed) as failed:
        survives(in_a_row(remember, recall), {})
    assert str(failed.value) == (
        "killed before the commit of step 1, the run ends otherwise\n"
        "step 2, node 'recall': the write to 'log' differs at [0]\n"
        "  recorded: '1'\n"
        "  now:      '2'"
    )


def test_another_effect_is_found():
    outbox, numbers = Outbox(), count()

    def begin(state):
        nonlocal numbers
        numbers = count(1)
        return {}

    def mail(state):
        outbox.send(f"mail {next(numbers)}")
        return {}

    told = "killed before the commit of step 2: the effect mail 2 was had 1 times, without harm 0"
    with pytest.raises(CheckFailed, match=told):
        survives(in_a_row(begin, mail), {}, effects=outbox.take)


def test_nondeterministic_nodes_are_reported_as_such():
    numbers = count()

    def draw(state):
        return {"log": [f"drew {next(numbers)}"]}

    with pytest.raises(CheckFailed, match="a node is not deterministic: .*\n.*node 'draw': the write to 'log' differs"):
        survives(in_a_row(start, draw), {})
    assert survives(in_a_row(start, draw), {}, ignore=["log"]).trials == 16


def test_nondeterministic_effects_are_reported_as_such():
    outbox, numbers = Outbox(), count()

    def mail(state):
        outbox.send(f"mail {next(numbers)}")
        return {}

    with pytest.raises(CheckFailed, match="not deterministic: the effect mail 0 was had 0 times, without harm 1"):
        survives(in_a_row(mail), {}, effects=outbox.take)


def test_errors_say_what_was_done():
    runs = count()

    def fail_at_the_third(state):
        if next(runs) == 2:
            raise ValueError("no")
        return {}

    with pytest.raises(ValueError) as failed:
        survives(in_a_row(fail_at_the_third), {})
    assert "While the graph was tried: killed before the input" in failed.value.__notes__


def test_an_unanswered_interrupt_may_stay_open():
    def ask(state):
        return Command(update={"log": [interrupt("?")]})

    assert survives(in_a_row(ask), {}).trials > 0
