"""Graphs described as plain data, and the code that builds and runs them on any engine with our programming model.

No engine and no test library is imported here: `api` brings the names (StateGraph, START, END, Send, Command,
Overwrite, RetryPolicy, InMemorySaver), so the very same lines drive ours and, in `peer_worker`, the one we are compared
with. Which descriptions there are is decided in `random_graphs`.

A description:

    keys     key -> "list" (reducer add), "int" (reducer add) or "last"; always has "log" (list) and "n" (int)
    bound    routers, gotos and Sends come to rest once n has reached it
    input_keys, output_keys   narrower input and output schemas, or None
    nodes    name, defer, reads (a narrower schema, or None), naps (turns of the event loop that an async body waits),
             fail_at (raises once, as soon as n is so high, or None), retry (whether it is then tried again),
             acts (what to return; the act is chosen by n), or sub (a description: the node is a graph)
    edges    [start, end]      joins    [[start, ...], end]
    routers  source, choices (lists of targets, chosen by n), bare (one target alone is not put in a list), mapped, naps
    inputs   given one after the other on one thread; {"overwrite": value} stands for an Overwrite

A target is a node's name, "__end__", or {"send": name, "arg": number}.
"""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Callable
from typing import Annotated, Any

from typing_extensions import TypedDict

Described = dict[str, Any]
Probe = Callable[[str, Any], None]

KINDS = {"list": Annotated[list, operator.add], "int": Annotated[int, operator.add], "last": object}


class Boom(Exception):
    """What a node raises on the call at which it is to fail."""


# -- building -------------------------------------------------------------------------------------------------


def build(
    graph: Described,
    api,
    *,
    is_async=False,
    saver=None,
    probe: Probe | None = None,
    kinds=KINDS,
    prefix="",
    **options,
):
    """The described graph, compiled.

    Args:
        is_async: write the bodies of nodes and routers as coroutines.
        probe: called with a node's name and input before its body runs; it may raise.
        kinds: annotation of each kind of key.
        options: for `compile`.
    """
    keys = graph["keys"]

    def schema(names):
        return TypedDict("State", {key: kinds[keys[key]] for key in names})

    narrow = {}
    if graph["input_keys"] is not None:
        narrow["input_schema"] = schema(graph["input_keys"])
    if graph["output_keys"] is not None:
        narrow["output_schema"] = schema(graph["output_keys"])
    builder = api.StateGraph(schema(keys), **narrow)
    for node in graph["nodes"]:
        name = node["name"]
        if node["sub"] is not None:
            body = build(
                node["sub"], api, is_async=is_async, probe=probe, kinds=kinds, prefix=f"{prefix}{name}/"
            )  # fmt: skip
        else:
            body = _body(node, graph, api, is_async, probe, prefix)
        settings = {"defer": node["defer"]}
        if node["reads"] is not None:
            settings["input_schema"] = schema(node["reads"])
        if node["retry"]:
            settings["retry_policy"] = api.RetryPolicy(
                initial_interval=0.001, jitter=False, max_attempts=2, retry_on=Boom
            )  # fmt: skip
        builder.add_node(name, body, **settings)
    for start, end in graph["edges"]:
        builder.add_edge(start, end)
    for starts, end in graph["joins"]:
        builder.add_edge(starts, end)
    for number, router in enumerate(graph["routers"]):
        route, path_map = _router(router, graph, api, is_async, f"route{number}")
        builder.add_conditional_edges(router["source"], route, path_map)
    return builder.compile(saver, **options)


def _body(node: Described, graph: Described, api, is_async, probe: Probe | None, prefix):
    name = node["name"]
    # Bound to the state and not to a count of calls: siblings of a task that fails may or may not have been called.
    failures = [node["fail_at"]] if node["fail_at"] is not None else []

    def act(given):
        if probe is not None:
            probe(prefix + name, given)
        if failures and given["n"] >= failures[0]:
            failures.clear()
            raise Boom(name)
        return _returned(node, graph, api, given)

    async def async_act(given):
        for _ in range(node["naps"]):
            await asyncio.sleep(0)
        return act(given)

    return async_act if is_async else act


def _returned(node: Described, graph: Described, api, given):
    """What the node makes of its input; it depends on nothing else. The marks it writes say what it has seen."""
    n = given["n"]
    act = node["acts"][n % len(node["acts"])]
    mark = f"{node['name']}{n}.{len(given.get('log', ()))}"
    if "arg" in given:
        mark += f"/{given['arg']}"
    worth = {"list": [mark], "int": 1, "last": mark}
    update = {key: worth[graph["keys"][key]] for key in act["keys"]}
    if act["overwrite"] is not None:
        key = act["overwrite"]
        update[key] = api.Overwrite([mark, "anew"] if graph["keys"][key] == "list" else n)
    goto = _targets(act["goto"], n, api) if n < graph["bound"] else []
    form = act["form"]
    if form == "none":
        return None
    if form == "send" and goto:
        return goto[0]
    if form in ("dict", "send"):
        return update
    where = goto[0] if len(goto) == 1 else goto
    if form == "command":
        return api.Command(update=update, goto=where)
    if form == "pairs":
        return api.Command(update=[*update.items(), ("log", [mark + "'"])], goto=where)
    if form == "commands":
        return [api.Command(update=update, goto=where), {"log": [mark + '"']}, None, api.Command(goto=goto)]
    if form == "sends":  # ours only
        return [update, *goto]
    raise ValueError(form)


def _targets(targets, n, api):
    # A Send's n is further on than the sender's, so that senders that send to each other come to rest.
    return [
        api.Send(t["send"], {"n": n + 2, "log": ["sent"], "arg": t["arg"]}) if isinstance(t, dict) else t
        for t in targets
    ]


def _router(router: Described, graph: Described, api, is_async, name):
    choices, mapped = router["choices"], router["mapped"]

    def label(target):
        return f"to {target}" if mapped and isinstance(target, str) else target

    def route(state: dict[str, Any]):
        n = state["n"]
        targets = [label(t) for t in (choices[n % len(choices)] if n < graph["bound"] else ["__end__"])]
        found = _targets(targets, n, api)
        return found[0] if router["bare"] and len(found) == 1 else found

    async def async_route(state: dict[str, Any]):
        for _ in range(router["naps"]):
            await asyncio.sleep(0)
        return route(state)

    names = ["__end__", *(node["name"] for node in graph["nodes"])]
    chosen = async_route if is_async else route
    chosen.__name__ = name
    return chosen, {label(t): t for t in names} if mapped else None


def given(value, api):
    """An input as the engine takes it."""
    if not isinstance(value, dict):
        return value
    return {k: api.Overwrite(v["overwrite"]) if isinstance(v, dict) else v for k, v in value.items()}


# -- running --------------------------------------------------------------------------------------------------

MODES = ["values", "updates", "tasks"]


def chunks(app, value, config: Any, is_async, **options):
    """All chunks of a run, and the name of the error that ended it."""
    found = []

    async def read():
        async for chunk in app.astream(value, config, **options):
            found.append(chunk)

    try:
        if is_async:
            asyncio.run(read())
        else:
            found.extend(_each(app.stream(value, config, **options), found))
    except Exception as error:
        return found, type(error).__name__
    return found, None


def _each(stream, found):
    """Append chunk by chunk, so that those before an error are kept."""
    for chunk in stream:
        found.append(chunk)
    return []


def story(found, error, *, resumed=False):
    """A run's chunks, made comparable: `values` in order; per superstep the tasks in order and their updates sorted,
    for siblings finish in any order. What a superstep that failed had come to is left out; so is which tasks of the
    first superstep of a resumed run had finished before."""
    values, steps, ended = [], [], True
    for mode, data in found:
        if mode == "values":
            values.append(data)
        elif mode == "tasks" and "triggers" in data:
            if ended:
                steps.append({"tasks": [], "updates": []})
                ended = False
            steps[-1]["tasks"].append([data["name"], data["input"], sorted(data["triggers"])])
        elif mode == "tasks":
            ended = True
        elif mode == "updates":
            (steps[-1] if steps else steps.append({"tasks": [], "updates": []}) or steps[-1])["updates"].append(data)
    if error is not None and steps:
        steps[-1]["updates"] = []
    if resumed and steps:
        steps[0]["tasks"] = []
    for step in steps:
        for update in step["updates"]:
            update.pop("__metadata__", None)
        step["updates"].sort(key=lambda update: json.dumps(plain(update), sort_keys=True))
    return plain({"values": values, "steps": steps, "error": error})


def plain(value):
    """As data that JSON can carry, the same for both engines' classes."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return {"$": type(value).__name__, "value": plain(getattr(value, "value", None))}


def history(app, config: Any):
    """The thread's checkpoints, oldest first: source, step, what comes next, values."""
    return plain(
        [
            [s.metadata["source"], s.metadata["step"], sorted(s.next), s.values]
            for s in reversed(list(app.get_state_history(config)))
        ]
    )


def whole_story(
    graph: Described, api, *, is_async, bodies_async=None, more_steps=0
):
    """Each input in turn on one thread, resumed after each failure of a node; then the history, and `invoke`.

    Of the calls for one input the first and the last are told: how many there are between depends on which siblings
    had been called when one failed.

    Args:
        is_async: run it in the async world; `bodies_async`, else this, says how nodes and routers are written.
        more_steps: added to the recursion limit, for an engine that counts otherwise.
    """
    bodies = is_async if bodies_async is None else bodies_async
    app = build(graph, api, is_async=bodies, saver=api.InMemorySaver())
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": graph["limit"] + more_steps}
    # The peer's default durability stores joins as they are when it comes to writing them, not as they were.
    options = {"stream_mode": MODES, "durability": "sync"}
    told = []
    for value in graph["inputs"]:
        told.append(story(*chunks(app, given(value, api), config, is_async, **options)))
        last = told[-1]
        for _ in range(10):
            if last["error"] != "Boom":
                break
            last = story(*chunks(app, None, config, is_async, **options), resumed=True)
        if last is not told[-1]:
            told.append(last)
        if last["error"] is not None:
            return told
        told.append({"next": sorted(app.get_state(config).next)})
    told.append({"history": history(app, config)})
    app = build(graph, api, is_async=bodies)
    told.append(outcome(app, given(graph["inputs"][0], api), config, is_async))
    return told


def is_matter_of_time(one: list[Described], other: list[Described]):
    """Whether two stories differ in which task of a step failed first: one that raised, or one whose graph ran out of
    steps."""
    errors = [[each["error"] for each in told if each.get("error")] for told in (one, other)]
    return errors[0] != errors[1] and all(each[-1:] == ["GraphRecursionError"] for each in errors)


def outcome(app, value, config: Any, is_async, **options):
    """What `invoke` returns or raises."""
    try:
        if is_async:
            result = asyncio.run(app.ainvoke(value, config, **options))
        else:
            result = app.invoke(value, config, **options)
    except Exception as error:
        return {"error": type(error).__name__}
    return {"result": plain(result)}
