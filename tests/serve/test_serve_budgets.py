"""Budgets of a served graph, by the official client: stop and resume with more, ask, degrade, and what a failed call counts."""

import pytest
from kit.graphs import graph_of
from langgraph_sdk import get_sync_client
from serving import serving

from stategraph import Budget, InMemorySaver, MessagesState
from stategraph.graph import call_model
from stategraph.serve import create_app
from stategraph.store import InMemoryStore

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


class Model:
    def __init__(self, name="large", fails=0):
        self.model, self.fails, self.calls = name, fails, 0

    def invoke(self, messages):
        self.calls += 1
        if self.calls <= self.fails:
            raise ConnectionError("the response was lost")
        return {"role": "assistant", "content": self.model, "usage": USAGE}


@pytest.fixture
def serve():
    """Serve a graph of four calls of a model with a budget, on the same threads each time; the client, and what is spent."""
    stored = {"checkpointer": InMemorySaver(), "store": InMemoryStore()}

    def begin(model, budget):
        def ask(state):
            return {"messages": [call_model(model, [])]}

        graph = graph_of(MessagesState, "S>a>b>c>d", a=ask, b=ask, c=ask, d=ask)
        app = graph.compile(budget=budget)
        return serving(create_app({"app": app}, **stored)), lambda: graph.compile(budget=budget, **stored).get_spent(
            {"configurable": {"thread_id": THREAD}}
        )

    return begin


THREAD = "6f1d3c5e-0000-4000-8000-000000000001"


def said(found):
    return [each["content"] for each in found["messages"]]


def test_a_run_that_is_stopped_is_resumed_with_more(serve):
    model = Model()
    server, spent = serve(model, Budget(calls=2))
    with server as url, get_sync_client(url=url) as client:
        client.threads.create(thread_id=THREAD)
        failed = client.runs.wait(THREAD, "app", input={"messages": []}, raise_error=False)
        assert failed["__error__"]["error"] == "BudgetExceededError"
        assert "2 of 2 calls are spent" in failed["__error__"]["message"]
        assert client.threads.get(THREAD)["status"] == "error" and model.calls == 2
        assert "__error__" in client.runs.wait(THREAD, "app", input=None, raise_error=False) and model.calls == 2
    server, spent = serve(model, Budget(calls=9))
    with server as url, get_sync_client(url=url) as client:
        assert said(client.runs.wait(THREAD, "app", input=None)) == ["large"] * 4
        assert client.threads.get(THREAD)["status"] == "idle"
    assert model.calls == 4 == spent()["calls"]


@pytest.mark.parametrize("budget", [Budget(calls=2, on_empty="ask"), Budget(calls=2, on_empty="ask", per="user")])
def test_a_person_is_asked_for_more(serve, budget):
    model = Model()
    server, spent = serve(model, [budget, Budget(calls=99)])
    config = {"configurable": {"user": "ann"}}
    with server as url, get_sync_client(url=url) as client:
        client.threads.create(thread_id=THREAD)
        [question] = client.runs.wait(THREAD, "app", input={"messages": []}, config=config)["__interrupt__"]
        assert question["value"]["question"].endswith("are spent: how much more?")
        assert client.threads.get(THREAD)["status"] == "interrupted" and model.calls == 2
        wrong = client.runs.wait(THREAD, "app", command={"resume": "much"}, config=config, raise_error=False)
        assert "__error__" in wrong and model.calls == 2, wrong
        [question] = client.runs.wait(THREAD, "app", command={"resume": 1}, config=config)["__interrupt__"]
        assert model.calls == 3
        stopped = client.runs.wait(THREAD, "app", command={"resume": 0}, config=config, raise_error=False)
        assert stopped["__error__"]["error"] == "BudgetExceededError"
    assert model.calls == 3 == spent()["calls"]


def test_a_cheaper_model_is_called(serve):
    large, small = Model(), Model("small")
    server, spent = serve(large, Budget(tokens=10, on_empty=lambda model: small))
    with server as url, get_sync_client(url=url) as client:
        client.threads.create(thread_id=THREAD)
        assert said(client.runs.wait(THREAD, "app", input={"messages": []})) == ["large", "large", "small", "small"]
    assert spent()["tokens"] == 20


def test_a_call_whose_response_was_lost_counts_as_spent(serve):
    model = Model(fails=1)
    server, spent = serve(model, Budget(calls=5))
    with server as url, get_sync_client(url=url) as client:
        client.threads.create(thread_id=THREAD)
        assert "__error__" in client.runs.wait(THREAD, "app", input={"messages": []}, raise_error=False)
        assert spent()["calls"] == 1
        assert said(client.runs.wait(THREAD, "app", input=None)) == ["large"] * 4
    assert model.calls == 5 == spent()["calls"]
