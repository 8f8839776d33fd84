"""Whatever JSON a client sends to a route of runs, it is answered, and never with a fault of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stategraph.serve import create_app
from stategraph.serve.bodies import CommandBody, CronBody, RunBody

from .in_process import asking, routes_of
from .serving import Gates, make_flow

ROUTES = [
    path
    for method, path in routes_of(create_app({"flow": make_flow(Gates())}).routes)
    if method == "POST" and "/runs" in path
]
NAMES = st.sampled_from(["a", "b", "flow", "log", "node", "input", "__start__", "*", "", "\x00", "$in", "é"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1, 2**66), st.floats(-1, 1), NAMES)
JSON: Any = st.recursive(
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


def test_a_field_whose_name_is_almost_that_of_a_known_one_is_refused() -> None:
    with pytest.raises(ValueError, match="no field 'inputs'; did you mean 'input'"):
        RunBody.model_validate({"assistant_id": "flow", "inputs": {}})
    RunBody.model_validate({"assistant_id": "flow", "checkpoint_during": True, "what_newer_clients_send": 1})


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=15, derandomize=True, deadline=None, database=None)
@given(bodies=st.lists(BODIES, min_size=1, max_size=5))
def test_no_body_of_a_run_is_a_fault_of_the_server(path: str, bodies: list[Any]) -> None:
    async def ask() -> None:
        async with asking(create_app({"flow": make_flow(Gates())})) as client:
            thread = (await client.post("/threads", json={})).json()["thread_id"]
            run = (await client.post(f"/threads/{thread}/runs", json={"assistant_id": "flow"})).json()["run_id"]
            place = path.replace("{thread_id}", thread).replace("{run_id}", run)
            for body in bodies:
                answered = await client.post(place, json=[body] if path.endswith("batch") else body)
                assert answered.status_code < 500, answered.text

    asyncio.run(asyncio.wait_for(ask(), 30))
