"""Any JSON body sent to a route of runs is answered, and never with a server error."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import asking, new_thread, routes_of
from serving import RUN, flow_app

from stategraph.serve.bodies import (
    AssistantBody,
    AssistantChange,
    CommandBody,
    CronBody,
    CronChange,
    RunBody,
)

ROUTES = [
    path
    for method, path in routes_of(flow_app().routes)
    if method == "POST" and "/runs" in path
]
NAMES = st.sampled_from(["a", "b", "flow", "log", "node", "input", "__start__", "*", "", "\x00", "$in", "é"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1, 2**66), st.floats(-1, 1), NAMES)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
SENDS = st.fixed_dictionaries({"node": NAMES}, optional={"input": JSON})
COMMANDS = st.fixed_dictionaries(
    {}, optional={name: SENDS | st.lists(SENDS | NAMES, max_size=2) | JSON for name in CommandBody.model_fields}
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("configurable", "tags", "metadata", "recursion_limit", "max_concurrency"), JSON),
)
PLACES = st.fixed_dictionaries({}, optional=dict.fromkeys(("checkpoint_id", "checkpoint_ns", "thread_id"), JSON))
SHAPED = {
    "assistant_id": st.just("flow"),
    "input": st.fixed_dictionaries({}, optional={"log": st.lists(NAMES, max_size=2), "topic": NAMES}) | JSON,
    "command": COMMANDS | JSON,
    "config": CONFIGS | JSON,
    "checkpoint": PLACES | JSON,
    "after_seconds": st.sampled_from([None, 0, -1, "x", []]),  # nobody waits for one that begins tomorrow
    "schedule": st.just("0 7 1 1 *"),
}
ALWAYS = ["assistant_id", "schedule"]
FIELDS = sorted({*RunBody.model_fields, *CronBody.model_fields} - {*ALWAYS})
BODIES = st.lists(st.sampled_from(FIELDS), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: SHAPED.get(name, JSON) for name in [*ALWAYS, *names]})
)


def test_a_misspelt_field_is_refused_with_the_nearest_name():
    for name in ("inputs", "inptu"):
        with pytest.raises(ValueError, match=f"no field '{name}'; did you mean 'input'"):
            RunBody.model_validate({"assistant_id": "flow", name: {}})
    RunBody.model_validate({"assistant_id": "flow", "checkpoint_during": True, "what_newer_clients_send": 1})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("recursion_limt", "recursion_limit"),
        ("recursionLimt", "recursion_limit"),
        ("tag", "tags"),
        ("configuable", "configurable"),
        ("max_concurency", "max_concurrency"),
    ],
)
@pytest.mark.parametrize("kind", [RunBody, AssistantBody, AssistantChange, CronBody, CronChange])
def test_a_misspelt_setting_is_refused(kind, name, meant):
    with pytest.raises(ValueError, match=f"'{name}' is not a setting; did you mean '{meant}'"):
        kind.model_validate({"assistant_id": "flow", "graph_id": "flow", "schedule": "* * * * *", "config": {name: 3}})


def test_what_programs_put_into_a_config_passes():
    """Settings of LangChain's configs, and what newer clients may send."""
    known = {
        "tags": ["x"], "metadata": {}, "callbacks": [], "run_name": "x", "run_id": "x", "max_concurrency": 2,
        "recursion_limit": 3, "configurable": {"recursion_limt": 3, "mine": 1},
    }  # fmt: skip
    others = {"thread_id": "t", "streamMode": "values", "signal": {}, "": 1, "mine": 2}
    config = RunBody(assistant_id="flow", config={**known, **others}).config
    assert config == {**known, **others}


async def test_a_setting_of_none_has_its_default():
    async with asking(flow_app()) as client:
        config = dict.fromkeys(("configurable", "tags", "recursion_limit"))
        run = {**RUN, "config": config}
        assert (await client.post("/runs/wait", json=run)).json() == {"log": ["a", "b"]}


def test_the_metadata_of_a_config_is_that_of_the_run():
    async def ask():
        async with asking(flow_app()) as client:
            thread = await new_thread(client)
            config = {"metadata": {"from": "config", "kind": "config"}}
            run = {**RUN, "config": config, "metadata": {"kind": "body"}}
            begun = (await client.post(f"/threads/{thread}/runs", json=run)).json()
            await client.get(f"/threads/{thread}/runs/{begun['run_id']}/join")
            return begun["metadata"], (await client.get(f"/threads/{thread}/state")).json()["metadata"]

    for metadata in asyncio.run(ask()):
        assert (metadata["from"], metadata["kind"]) == ("config", "body")
    with pytest.raises(ValueError, match="metadata must be an object, got 3"):
        RunBody(assistant_id="flow", config={"metadata": 3})


def test_a_setting_in_the_form_of_javascript_is_obeyed():
    async def ask(name):
        async with asking(flow_app()) as client:
            run = {**RUN, "config": {name: 1}}
            return (await client.post("/runs/wait", json=run)).json()

    for name in ("recursion_limit", "recursionLimit"):
        assert asyncio.run(ask(name))["__error__"]["error"] == "GraphRecursionError"


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/threads", [], "the body must be an object, got a list"),
        ("/threads", 3, "the body must be an object, got a number"),
        ("/threads", {"metadata": True}, "metadata: must be an object, got a boolean"),
        ("/threads", {"ttl": 0}, "ttl.ttl: "),
        ("/threads", {"ttl": {"ttl": 3, "strategy": "x"}}, "ttl.strategy: "),
        ("/runs", {"assistant_id": "flow", "command": "x"}, "command: must be an object, got a string"),
        ("/runs", {"assistant_id": "flow", "stream_mode": "x"}, "stream_mode: the stream mode 'x' is not offered; offered"),
        (
            "/runs",
            {"assistant_id": "flow", "webhook": "https://x/"},
            "webhook: webhooks are not offered: the server's operator can allow some by --webhooks or webhooks=; or wait",
        ),
    ],
)
async def test_a_refused_body_is_described_in_terms_of_json(path, body, detail):
    async with asking(flow_app()) as client:
        refused = await client.post(path, json=body)
    assert refused.status_code == 422 and refused.json()["detail"].startswith(detail)


@pytest.mark.trial
@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=15, derandomize=True, deadline=None, database=None)
@given(bodies=st.lists(BODIES, min_size=1, max_size=5))
def test_no_body_of_a_run_is_a_fault_of_the_server(path, bodies):
    async def ask():
        async with asking(flow_app()) as client:
            thread = await new_thread(client)
            run = (await client.post(f"/threads/{thread}/runs", json={"assistant_id": "flow"})).json()["run_id"]
            place = path.replace("{thread_id}", thread).replace("{run_id}", run)
            for body in bodies:
                answered = await client.post(place, json=[body] if path.endswith("batch") else body)
                assert answered.status_code < 500, answered.text

    asyncio.run(asyncio.wait_for(ask(), 30))
