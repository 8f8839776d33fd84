"""A compiled graph as a Runnable."""

import asyncio
import operator
from typing import Annotated

from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.graph import START, StateGraph
from program_cases import case, run_cases
from typing_extensions import TypedDict


class State(TypedDict):
    x: Annotated[list, operator.add]


def graph(function=lambda s: {"x": [1]}):
    made = StateGraph(State)
    made.add_node("a", function)
    made.add_edge(START, "a")
    return made.compile()


@case
def composed(note):
    app = graph()
    note(isinstance(app, Runnable), app.get_name(), app.name)
    note((app | RunnableLambda(lambda s: s["x"])).invoke({"x": [0]}))
    note((RunnableLambda(lambda s: {"x": [s]}) | app).invoke(7))
    note(app.pipe(lambda s: len(s["x"])).invoke({"x": []}))


@case
def bound(note):
    note(graph().bind(stream_mode="updates").invoke({"x": []}))
    note(graph().with_config(tags=["t"]).invoke({"x": []}))
    note(graph().with_config({"recursion_limit": 9}).invoke({"x": []}))


@case
def tried_again(note):
    tries = []

    def fail_once(state):
        tries.append(1)
        if len(tries) < 2:
            raise KeyError("x")
        return {"x": [len(tries)]}

    note(graph(fail_once).with_retry(stop_after_attempt=2, wait_exponential_jitter=False).invoke({"x": []}))


@case
def replaced_if_it_fails(note):
    note(graph(lambda s: 1 / 0).with_fallbacks([graph()]).invoke({"x": []}))


@case
def many(note):
    note(graph().map().invoke([{"x": []}, {"x": [5]}]))
    note(graph().batch([{"x": []}, {"x": [5]}]))
    note(asyncio.run(graph().abatch([{"x": []}, {"x": [5]}])))
    note(sorted(str(each) for each in graph().batch_as_completed([{"x": []}, {"x": [5]}])))


@case
def as_a_tool(note):
    made = graph().as_tool(name="adder", description="adds")
    note(made.name, made.description)
    note(made.invoke({"x": [3]}))


@case
def transformed(note):
    note(list(graph().transform(iter([{"x": []}]))))


@case
def schemas(note):
    app = graph()
    note(sorted(app.get_input_jsonschema()["properties"]), sorted(app.get_output_jsonschema()["properties"]))
    note(app.get_input_schema().model_json_schema(), app.input_schema.__name__)
    note(app.get_output_schema().model_json_schema(), app.output_schema.__name__)


if __name__ == "__main__":
    run_cases()
