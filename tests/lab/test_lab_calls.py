"""Nodes that run in the lab: their calls are answered from the record, by function and arguments. Five agents of
different make, whose calls fail now and then, whose questions are answered later, and that sleep.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, TypedDict

import pytest
from kit.graphs import EMPTY, Log, chain_of, thread_config
from kit.lab_agents import (
    AGENTS,
    World,
    answer_of,
    functional_agent,
    inputs_of,
    map_agent,
    memory_agent,
    question_agent,
    run_threads,
    tools_agent,
)

from stategraph import Budget, InMemorySaver, InMemoryStore, Runtime, task
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.lab import awhatif, find_threads, whatif
from stategraph.prebuilt import create_agent
from stategraph.testing import OPEN, read_thread, virtual_time


class Agent:
    """An agent with threads in a database."""

    def __init__(self, name, path, count):
        self.name, self.path, self.world = name, path, World()
        self.app = AGENTS[name](self.world)
        with SqliteSaver.from_conn_string(str(path), serde=self.app.serde) as saver, virtual_time() as clock:
            self.threads = run_threads(self.app.copy({"checkpointer": saver}), name, count, self.world, clock)
        self.done = len(self.world.effects)
        self.digest = self.hash()

    def hash(self):
        folder = sorted(self.path.parent.glob(f"{self.path.name}*"))
        return [(each.name, hashlib.sha256(each.read_bytes()).hexdigest()) for each in folder]

    def whatif(self, **options):
        """Trials of all threads, in their order; nothing was done, and nothing changed in the database."""
        with SqliteSaver.from_conn_string(str(self.path), serde=self.app.serde, read_only=True) as saver:
            trials = whatif(self.app.copy({"checkpointer": saver}), self.threads, **{"live": "*", **options})
        assert len(self.world.effects) == self.done
        assert self.hash() == self.digest
        return trials


MANY = int(os.environ.get("STATEGRAPH_EXAMPLES", "20"))
"""How many threads of each agent there are in trials. `STATEGRAPH_EXAMPLES=100` for more than 10,000 effects."""


@pytest.fixture(scope="module", params=[8, pytest.param(MANY, marks=pytest.mark.trial)])
def agents(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    return {name: Agent(name, folder / f"{name}.db", request.param) for name in AGENTS}


@pytest.mark.trial
@pytest.mark.parametrize("name", AGENTS)
def test_trials_are_kept_where_one_asks_and_can_be_run_again(agents, name, tmp_path):
    app = agents[name].app
    with SqliteSaver.from_conn_string(str(tmp_path / "kept.db"), serde=app.serde) as saver:
        trials = agents[name].whatif(saver=saver)
        kept = app.copy({"checkpointer": saver})
        for each in trials:
            assert read_thread(kept, thread_config(each.kept_as)) == each.now
            assert find_threads(kept, metadata={"whatif_of": each.thread}) == [each.kept_as]
        again = whatif(kept, [each.kept_as for each in trials], live="*" if name == "functional" else ())
    assert [each.difference for each in again] == [None] * len(trials)


def way(trial):
    """The first difference, without the number of the run."""
    found = trial.difference
    return "" if found is None else f"{found.where.removeprefix('run 1, ')}: {found.what}"


@pytest.mark.trial
@pytest.mark.parametrize("name", AGENTS)
def test_all_nodes_run_and_do_what_they_did(agents, name):
    trials = agents[name].whatif()
    assert all(trial.same for trial in trials), trials.draw_text()
    assert {call.came for trial in trials for call in trial.calls} == {"record"}


@pytest.mark.trial
def test_cohort_from_files_has_the_calls(agents, tmp_path):
    for name, agent in agents.items():
        folder = agent.whatif().save(tmp_path / f"{name}.json")
        again = whatif(agent.app, folder, live="*")
        assert len(again) == len(agent.threads)
        assert all(trial.same and trial.calls for trial in again), name
    assert [len(agent.world.effects) for agent in agents.values()] == [agent.done for agent in agents.values()]


# -- planted changes, each with an oracle made by hand ---------------------------------------------


@pytest.mark.trial
def test_changed_prompt_is_another_request_to_the_model(agents):
    agent = agents["tools"]
    for trial in agent.whatif(variant=tools_agent(agent.world, prompt="Be brief.")):
        assert way(trial) == "step 1, node 'model': call"
        assert [call.kind for call in trial.calls] == ["chat"]
        assert "chat 'scripted-1'" in trial.refused


@pytest.mark.trial
def test_equal_graph_from_the_same_factory_asks_nothing_new(agents):
    agent = agents["tools"]
    assert all(trial.same for trial in agent.whatif(variant=tools_agent(agent.world)))


def test_simulated_model_answers_what_the_record_does_not_know(agents):
    agent = agents["tools"]
    answer = {"role": "assistant", "content": "short"}
    trials = agent.whatif(variant=tools_agent(agent.world, prompt="Be brief."), calls={"chat": lambda call: answer})
    for number, trial in enumerate(trials):
        runs = len(inputs_of("tools", number))
        assert trial.steps == runs
        assert [message["content"] for message in trial.now.runs[-1].state["messages"]][1::2] == ["short"] * runs


def test_removed_tool_is_seen_in_the_request_to_the_model(agents):
    trials = agents["tools"].whatif(variant=tools_agent(agents["tools"].world, without="mail"))
    assert {way(trial) for trial in trials} == {"step 1, node 'model': call"}


def asks_for_weather(city):
    """A model that asks for the weather of a city once, and then repeats it."""

    def model(state):
        if state["messages"][-1]["role"] == "tool":
            return {"messages": {"role": "assistant", "content": state["messages"][-1]["content"]}}
        call = {"id": "new", "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
        return {"messages": {"role": "assistant", "content": "", "tool_calls": [call]}}

    return model


def test_new_call_of_a_tool_is_refused(agents):
    for trial in agents["tools"].whatif(variant={"model": asks_for_weather("Oslo")}):
        assert way(trial) == "step 1, node 'model': write to 'messages'"
        assert "tool 'weather'" in trial.refused
        assert [(call.kind, call.came, call.node) for call in trial.calls] == [("tool", "refused", "tools")]


def test_tool_is_known_by_its_arguments_whatever_the_id_of_the_call(agents):
    for trial in agents["tools"].whatif(variant={"model": asks_for_weather("Rome")}):
        messages = trial.now.runs[0].state["messages"]
        assert messages[2]["tool_call_id"] == "new"
        assert messages[3]["content"].startswith("sunny ")
        assert {call.came for call in trial.calls} == {"record"}


@pytest.mark.parametrize("limit", [20, 90])
def test_changed_threshold_differs_in_the_route_of_the_threads_between(agents, limit):
    agent = agents["questions"]
    found = set()
    for number, trial in enumerate(agent.whatif(variant=question_agent(agent.world, limit=limit))):
        price = inputs_of("questions", number)[0]["price"]
        if (price > 50) == (price > limit):
            assert trial.same
            continue
        found.add(trial.end)
        assert way(trial) == "step 1, node 'offer': route"
        if price > 50:  # it is not asked any more, and pays what it has paid
            [change] = trial.changes
            assert (change.path[0], [line[:7] for line in change.lines]) == ("log", ["- 'said"])
        else:
            assert trial.now.runs[-1].steps[-1][0].questions == ({"asks": {"pay": price}},)
    assert found == {"done" if limit == 90 else "paused"}


def test_other_answer_to_the_second_question_of_a_node(agents):
    for number, trial in enumerate(agents["questions"].whatif(answers=never)):
        asked = inputs_of("questions", number)[0]["price"] > 50
        assert trial.same is not asked
        if asked:
            assert trial.now.runs[0].state["log"][1] == f"said {answer_of({'pay': 0}, number)}, never"


def test_reordered_edge_differs_in_a_route(agents):
    agent = agents["map"]
    for trial in agent.whatif(variant=map_agent(agent.world, order="check first")):
        assert way(trial) in ("step 1, node 'study': route", "step 1, node 'study', task 1: route")
        [change] = trial.changes
        assert (change.where, change.after) == ("best", f"'{change.before[1:-1]} checked'")


def test_changed_fan_out_differs_where_there_were_more(agents):
    agent = agents["map"]
    for number, trial in enumerate(agent.whatif(variant=map_agent(agent.world, most=2))):
        more = len(inputs_of("map", number)[0]["topics"]) > 2
        assert way(trial) == ("step 1: list of tasks" if more else "")
        assert trial.end == "done"


@pytest.mark.trial
def test_change_in_the_memory_of_a_nested_graph_is_named_by_its_path(agents):
    agent = agents["memory"]
    assert all(trial.same for trial in agent.whatif(variant=memory_agent(agent.world)))
    for trial in agent.whatif(variant={"memory:polish": lambda state: {"text": "polished"}}):
        assert way(trial) == "step 1, node 'memory', step 2, node 'memory:polish': write to 'text'"
        assert trial.now.runs[-1].state["said"] == ["polished"] * 3
        assert [call.came for call in trial.calls] == ["record"] * 3


def test_changed_function_of_an_entrypoint_goes_to_the_end(agents):
    agent = agents["functional"]
    for trial in agent.whatif(variant=functional_agent(agent.world, mood="Sir, ")):
        assert trial.difference.what.startswith("write to")
        assert trial.now.runs[0].state["content"].startswith("Sir, answer ")


# -- where trials start ----------------------------------------------------------------------------


def test_trial_from_a_node_has_the_edited_state_and_runs_what_follows(agents):
    for trial in agents["questions"].whatif(from_="pay", edit={"log": ["edited"]}):
        assert trial.now.runs[0].state["log"][0] == "edited"
        assert [call.name for call in trial.calls] == ["charge"]
        assert trial.difference.what == "input"


def test_trial_from_a_later_input_keeps_the_memory_of_nested_graphs(agents):
    agent = agents["memory"]
    with SqliteSaver.from_conn_string(str(agent.path), serde=agent.app.serde, read_only=True) as saver:
        app = agent.app.copy({"checkpointer": saver})
        history = list(app.get_state_history(thread_config(agent.threads[0])))
        [_, second, _] = [each for each in history if each.metadata["source"] == "input"]
        [trial] = whatif(app, agent.threads[0], live="*", from_=second.config["configurable"]["checkpoint_id"])
        [other] = whatif(app, agent.threads[0], from_="nowhere")
    assert trial.same
    assert len(trial.calls) == 2
    assert "'nowhere'" in other.unreadable


@pytest.mark.parametrize(
    ("options", "text"),
    [({"edit": {"log": []}}, "an edit needs from_"), ({"edit": {"lag": []}, "from_": "pay"}, "no key 'lag'; did you mean 'log'")],
)
def test_edits_that_fit_nowhere_are_refused(options, text):
    app = question_agent(World()).copy({"checkpointer": InMemorySaver()})
    with pytest.raises(ValueError, match=text):
        whatif(app, 1, **options)


def test_several_judges_have_their_names(agents):
    judges = {"longer": lambda before, now: len(now["facts"]) - len(before["facts"]), "ok": lambda before, now: True}
    trials = agents["map"].whatif(variant=map_agent(agents["map"].world, most=2), judge=judges)
    assert {name for trial in trials for name in trial.scores} == {"longer", "ok"}
    fewer = sum(len(inputs_of("map", number)[0]["topics"]) > 2 for number in range(len(trials)))
    assert len(trials.worse) == fewer
    assert any(each.startswith("longer: ") for each in trials.remarks)


def test_cohort_tells_calls_and_tokens(agents):
    remarks = agents["tools"].whatif().remarks
    assert [each.partition(":")[0] for each in remarks if "tokens" in each or "calls" in each] == ["tokens", "calls"]


def test_cohort_tells_the_cost_by_a_table_of_prices(agents):
    """Of dear words the prompt's change makes none more; a simulated model has none of its own."""
    dear = {"scripted-1": (1_000_000.0, 2_000_000.0)}
    trials = agents["tools"].whatif(prices=dear)
    for trial in trials:
        given, made = trial.usage.tokens - trial.usage.calls, trial.usage.calls
        assert trial.usage.usd == given + 2 * made > 0
        assert trial.usage == trial.usage_before
    assert any(each.startswith("usd: $") for each in trials.remarks)


# -- policies --------------------------------------------------------------------------------------


def test_policies_refuse_make_or_simulate_unknown_calls():
    called = []

    @task
    def look(word):
        called.append(word)
        return word.upper()

    def read(state):
        return {"log": [look(state["log"][0]).result()]}

    app = chain_of(Log, read=read).compile(InMemorySaver())
    app.invoke({"log": ["a"]}, thread_config("t"))
    other = {"read": lambda state: {"log": [look("b").result()]}}
    for calls, end, log in [
        ("refuse", "refused", ["a"]),
        ({"look": "live"}, "done", ["a", "B"]),
        ({"task": lambda call: call.given[0][0] * 2}, "done", ["a", "bb"]),
    ]:
        [trial] = whatif(app, "t", variant=other, calls=calls)
        assert (trial.end, trial.now.runs[0].state["log"]) == (end, log)
    assert called == ["a", "b"]


def test_call_that_the_record_has_once_is_answered_again():
    @task
    def look(word):
        return word.upper()

    app = chain_of(Log, read=lambda state: {"log": [look("a").result()]})
    app = app.compile(InMemorySaver())
    app.invoke(EMPTY, thread_config("t"))
    [trial] = whatif(app, 1, variant={"read": lambda state: {"log": [look("a").result(), look("a").result()]}})
    assert [call.came for call in trial.calls] == ["record", "again"]


async def test_coroutines_have_their_calls_answered():
    called = []

    @task
    async def look(word):
        called.append(word)
        return word.upper()

    async def read(state, runtime: Runtime):
        await runtime.asleep(0.001)
        return {"log": [await look(state["log"][0]), await runtime.aonce("pay", called.append, "paid") or "paid"]}

    app = chain_of(Log, read=read).compile(InMemorySaver())
    await app.ainvoke({"log": ["a"]}, thread_config("t"))
    [trial] = await awhatif(app, 1, live="*")
    assert trial.same
    assert called == ["a", "paid"]
    assert [call.kind for call in trial.calls] == ["task", "once"]


def test_error_of_a_recorded_call_is_raised_again():
    @task
    def fail(word):
        raise LookupError(word)

    def read(state):
        try:
            return {"log": [fail("a").result()]}
        except LookupError as error:
            return {"log": [type(error).__name__]}

    app = chain_of(Log, read=read).compile(InMemorySaver())
    app.invoke(EMPTY, thread_config("t"))
    [trial] = whatif(app, 1, live="*")
    assert trial.same
    assert [call.came for call in trial.calls] == ["record"]


def test_failed_simulation_of_a_model_never_asks_the_model(agents):
    def fail(call):
        raise LookupError("no such answer")

    agent = agents["tools"]
    for trial in agent.whatif(variant=tools_agent(agent.world, prompt="?"), calls={"chat": fail}):
        assert "no such answer" in trial.refused


def test_transaction_is_answered_from_the_record(tmp_path):
    def pay(state, runtime: Runtime):
        return {"log": [runtime.transaction("pay", lambda connection: connection.execute("SELECT 7").fetchone()[0])]}

    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        app = chain_of(Log, pay=pay).compile(saver)
        app.invoke(EMPTY, thread_config("t"))
        [trial] = whatif(app, 1, live="*")
        assert trial.same
        assert [call.kind for call in trial.calls] == ["transaction"]
        twice = {"pay": lambda state, runtime: {"log": [runtime.transaction("other", lambda connection: 1)]}}
        twice["pay"].__annotations__["runtime"] = Runtime
        [trial] = whatif(app, 1, variant=twice)
    assert "transaction 'other'" in trial.refused


def test_store_of_the_graph_is_not_written():
    store = InMemoryStore()

    def note(state, runtime: Runtime):
        runtime.store.put(("notes",), "last", {"n": len(runtime.store.search(("notes",)))})
        return {"log": ["noted"]}

    app = chain_of(Log, note=note).compile(InMemorySaver(), store=store)
    app.invoke(EMPTY, thread_config("t"))
    store.delete(("notes",), "last")
    assert whatif(app, 1, live="*")[0].same
    assert not store.search(("notes",))


def test_policies_that_are_none_are_refused():
    app = map_agent(World()).copy({"checkpointer": InMemorySaver()})
    with pytest.raises(ValueError, match='"refuse", "live", a function'):
        whatif(app, 1, calls={"look": "maybe"})


def never(question):
    """Another answer to the second question of the agent that asks."""
    return "never" if question.value == "by card?" else OPEN


def changes_of(name, world):
    """Four planted changes of an agent."""
    if name == "tools":
        short = {"chat": lambda call: {"role": "assistant", "content": "short"}}
        brief = {"variant": tools_agent(world, prompt="Be brief."), "calls": short}
        cities = [{"variant": {"model": asks_for_weather(city)}} for city in ("Oslo", "Rome")]
        return [brief, {"variant": tools_agent(world, without="mail")}, *cities]
    if name == "map":
        variants = [map_agent(world, order="check first"), *(map_agent(world, most=most) for most in (1, 2))]
        return [{"variant": each} for each in [*variants, {"rank": lambda state: {"best": "none"}}]]
    if name == "questions":
        limits = [{"variant": question_agent(world, limit=limit)} for limit in (20, 90)]
        return [*limits, {"answers": never}, {"from_": "pay", "edit": {"log": ["edited"]}}]
    if name == "memory":
        return [{"variant": {"memory:polish": lambda state, text=text: {"text": text}}} for text in "abcd"]
    return [{"variant": functional_agent(world, mood=f"{mood}, ")} for mood in ("Sir", "Dear", "Well", "So")]


@pytest.mark.trial
def test_no_effect_of_many_threads_happens_again(tmp_path):
    effects = 0
    for name in AGENTS:
        agent = Agent(name, tmp_path / f"{name}.db", MANY)
        trials = agent.whatif()
        assert all(trial.same for trial in trials), trials.draw_text()
        assert sum(trial.seconds for trial in trials) < 30  # 200 threads in a minute
        for change in changes_of(name, agent.world):
            assert agent.whatif(**change).different, change
        effects += 5 * agent.done
    assert effects > 100 * MANY


def test_trials_of_a_graph_with_a_budget_spend_nothing():
    class Model:
        def invoke(self, messages, **options):
            return {"role": "assistant", "content": "hello", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    app = create_agent(Model(), checkpointer=InMemorySaver(), budget=Budget(calls=1))
    thread = thread_config("1")
    app.invoke({"messages": [{"role": "user", "content": "hi"}]}, thread)
    [trial] = whatif(app, ["1"], live="*")
    assert trial.same, trial.difference
    assert app.get_spent(thread)["calls"] == 1


class Timed(TypedDict, total=False):
    n: int
    at: Any


def test_a_node_that_reads_a_clock_of_its_own_is_named():
    ticks = iter(range(100))

    def build(note):
        graph = chain_of(Timed, note=note).compile(InMemorySaver())
        graph.invoke({"n": 1}, thread_config("1"))
        return graph

    def note(state):
        return {"at": next(ticks)}

    [trial] = trials = whatif(build(note), 1, live="*")
    assert trial.nondeterministic == "note" and "1 thread: node 'note' was given the same, so it reads" in trials.draw_text()
    [trial] = whatif(build(note), 1, variant={"note": lambda state: {"at": -1}})
    assert trial.difference is not None and not trial.nondeterministic


def test_a_clock_that_is_read_once_says_the_recorded_time():
    def note(state, runtime: Runtime):
        return {"at": runtime.once("now", time.time)}

    app = chain_of(Timed, note=note).compile(InMemorySaver())
    app.invoke({"n": 1}, thread_config("1"))
    [trial] = whatif(app, 1, live="*")
    assert trial.same and not trial.nondeterministic
    [trial] = whatif(app, 1, live="*", edit={"n": 2}, from_="note", calls={"now": "live"})
    assert trial.difference.what == "input" and not trial.nondeterministic
