"""The index that goes along with a list of messages: a channel with it gives what the reducer gives without it, after
previews, forks, failed supersteps, and changes that nodes make in place.
"""

import copy
import os
import pickle
import threading
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import run_threads
from kit.graphs import chain_of, thread_config
from kit.programs import OF_THE_PACKAGE, ROOT, find_peer, output_of

from stategraph import (
    END,
    START,
    InMemorySaver,
    MessagesState,
    Overwrite,
    RemoveMessage,
    StateGraph,
    add_messages,
)
from stategraph.channels import MISSING, BinaryOperatorAggregate
from stategraph.graph import REMOVE_ALL_MESSAGES

CLEAR = RemoveMessage(id=REMOVE_ALL_MESSAGES)
MESSAGES = BinaryOperatorAggregate(list, add_messages)


def says(id, content=""):
    return {"role": "user", "content": content, "id": id}


IDS = st.sampled_from("12345678")
WRITES = st.lists(
    st.lists(st.one_of(st.builds(says, IDS, st.sampled_from("abc")), st.builds(RemoveMessage, IDS), st.just(CLEAR)), max_size=3),
    min_size=1,
    max_size=3,
)
IN_PLACE = st.sampled_from(["none", "pop", "append", "swap", "replace", "edit"])
"""What a node does to the list that it was given."""


def change(messages, how):
    if how == "pop" and messages:
        messages.pop()
    elif how == "append":
        messages.append(says("9", "in place"))
    elif how == "swap":
        messages.reverse()
    elif how == "replace" and messages:
        messages[0] = says("0", "in place")
    elif how == "edit" and messages:
        messages[0]["content"] += "!"


@given(st.lists(st.tuples(st.integers(0, 5), WRITES, IN_PLACE, st.booleans()), max_size=10))
def test_a_channel_with_an_index_returns_what_the_reducer_returns(steps):
    """Any channel made so far goes on, as in forks and after supersteps that failed; previews come in between."""
    channels = [MESSAGES.from_checkpoint(MISSING)]
    for which, writes, how, previewed in steps:
        channel = channels[which % len(channels)]
        change(channel.get(), how)
        try:
            expected = reduce(add_messages, copy.deepcopy(writes), copy.deepcopy(channel.get()))
        except ValueError:
            with pytest.raises(ValueError, match="no message with id"):
                channel.preview(writes)
            continue
        if previewed:
            assert channel.preview(writes) == expected
        updated = channel.copy()
        updated.update(writes)
        assert updated.get() == expected
        assert type(updated.get()) is list and updated.get() is not channel.get()
        channels.append(updated)


def test_an_overwrite_rebuilds_the_index():
    channel = MESSAGES.from_checkpoint([says("1")])
    channel.update([says("2")])
    channel.update([Overwrite([says("2", "other")])])
    channel.update([says("1"), says("2", "new")])
    assert channel.get() == [says("2", "new"), says("1")]


def test_runs_of_one_graph_share_no_index():
    one, other = MESSAGES.from_checkpoint([says("1")]), MESSAGES.from_checkpoint([says("2")])
    one.update([says("3")])
    other.update([says("1")])
    assert other.get() == [says("2"), says("1")] and one.get() == [says("1"), says("3")]


def test_routers_on_several_threads_may_preview_one_channel():
    channel = MESSAGES.from_checkpoint([says(str(n)) for n in range(200)])
    channel.update([says("new")])
    together = threading.Barrier(8)
    found = []

    def preview(n):
        together.wait(10)
        found.append(len(channel.preview([says("new", "again"), says(f"mine {n}")])))

    threads = [threading.Thread(target=preview, args=(n,)) for n in range(8)]
    run_threads(threads)
    assert found == [202] * 8


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda channel: pickle.loads(pickle.dumps(channel))])
@pytest.mark.parametrize("reducer", [add_messages, add_messages(format="openai")])
def test_a_copied_or_pickled_channel_continues(make, reducer):
    channel = BinaryOperatorAggregate(list, reducer)
    channel.update([says("1")])
    other = make(channel)
    other.update([says("2")])
    assert other.get() == [says("1"), says("2")] and channel.get() == [says("1")]


def chat(saver=None):
    """One node that adds the next number, says in the first message how many there were, and goes round up to 9."""

    def speak(state):
        messages = state["messages"]
        return {"messages": [says(str(int(messages[-1]["id"]) + 1)), says("0", f"seen {len(messages)}")]}

    def route(state):
        return END if state["messages"][-1]["id"] == "9" else "speak"

    return (
        chain_of(MessagesState, speak=speak)
        .add_conditional_edges("speak", route, ["speak", END])
        .compile(saver)
    )


def test_routers_of_nested_graphs_see_what_is_merged(drive):
    outer = StateGraph(MessagesState).add_node("inner", chat()).add_node("lost", lambda state: None)
    outer.add_conditional_edges("inner", lambda state: END if state["messages"][0]["content"] == "seen 9" else "lost")
    app = outer.add_edge(START, "inner").compile()
    assert [m["id"] for m in drive.invoke(app, {"messages": [says("0")]})["messages"]] == [*"0123456789"]


def test_forks_and_time_travel_merge_into_the_list_of_their_checkpoint(drive):
    app = chat(InMemorySaver())
    thread = thread_config("1")
    drive.invoke(app, {"messages": [says("0")]}, thread)
    past = next(s for s in app.get_state_history(thread) if len(s.values["messages"]) == 4)
    fork = app.update_state(past.config, {"messages": [RemoveMessage("1"), says("2", "edited")]})
    messages = drive.invoke(app, None, fork)["messages"]
    assert [m["id"] for m in messages] == [*"023456789"]
    assert [m["content"] for m in messages[:3]] == ["seen 8", "edited", ""]
    again = drive.invoke(app, None, past.config)["messages"]
    assert [m["id"] for m in again] == [*"0123456789"] and again[0]["content"] == "seen 9"


@pytest.mark.trial
def test_chats_go_as_on_the_peer():
    """Random writes, removals, duplicates, changes in place, forks, time travel and nested graphs, with LangChain's
    messages. `STATEGRAPH_EXAMPLES=5000` looks longer."""
    program, examples = ROOT / "tests/peer/message_peer.py", os.environ.get("STATEGRAPH_EXAMPLES", "40")
    command = find_peer(), "-P", "-W", "ignore", program, examples, "0"
    assert output_of(*command, env=OF_THE_PACKAGE, timeout=600) == "done\n"
