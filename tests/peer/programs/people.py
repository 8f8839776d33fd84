"""Humans in the loop and journeys in time, as tutorials write them."""

import asyncio
import operator
import warnings
from typing import Annotated, Literal

from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt, NodeInterrupt, UnknownInterruptError, is_invalid_resume
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, Interrupt, interrupt
from program_cases import add, calling, case, conversation, run_cases, saying, thread
from pydantic import BaseModel
from typing_extensions import TypedDict


class State(TypedDict):
    text: str
    log: Annotated[list[str], operator.add]


def compiled(*nodes, edges=(), **options):
    graph = StateGraph(State)
    for node in nodes:
        graph.add_node(node)
    graph.add_edge(START, nodes[0].__name__)
    for one, two in edges:
        graph.add_edge(one, two)
    return graph.compile(checkpointer=InMemorySaver(), **options)


def describe(snapshot):
    tasks = [(task.name, [each.value for each in task.interrupts], task.error, task.result) for task in snapshot.tasks]
    return snapshot.values, snapshot.next, tasks, snapshot.metadata.get("step"), snapshot.metadata.get("source")


def asking():
    def human(state: State):
        answer = interrupt({"question": "edit?", "text": state["text"]})
        return {"text": answer, "log": ["human"]}

    return compiled(human)


@case
def text_is_edited_on_a_loop(note):
    async def main():
        app = asking()
        async for chunk in app.astream({"text": "draft", "log": []}, thread()):
            note(chunk)
        note(describe(await app.aget_state(thread())))
        async for chunk in app.astream(Command(resume="final"), thread(), stream_mode=["updates", "values"]):
            note(chunk)

    asyncio.run(main())


@case
def approved_or_rejected(note):
    def approval(state: State) -> Command[Literal["proceed", "cancel"]]:
        ok = interrupt({"question": "Do you approve?", "output": state["text"]})
        return Command(goto="proceed" if ok else "cancel", update={"log": [f"approval {ok}"]})

    def proceed(state: State):
        return {"log": ["proceed"]}

    def cancel(state: State):
        return {"log": ["cancel"]}

    app = compiled(approval, proceed, cancel)
    for name, answer in (("1", True), ("2", False)):
        found = app.invoke({"text": "x", "log": []}, thread(name))
        note([each.value for each in found["__interrupt__"]])
        note(app.invoke(Command(resume=answer), thread(name)))
    note(app.get_graph().draw_mermaid())


@case
def several_questions_at_once(note):
    def one(state: State):
        return {"log": [f"one {interrupt('first')}"]}

    def two(state: State):
        return {"log": [f"two {interrupt('second')}"]}

    graph = StateGraph(State)
    graph.add_node(one)
    graph.add_node(two)
    graph.add_edge(START, "one")
    graph.add_edge(START, "two")
    app = graph.compile(checkpointer=InMemorySaver())
    app.invoke({"text": "", "log": []}, thread())
    questions = app.get_state(thread()).interrupts
    note(sorted(each.value for each in questions))
    answers = {each.id: f"answer to {each.value}" for each in questions}
    note(app.invoke(Command(resume=answers), thread()))


@case
def questions_in_turn(note):
    def ask(state: State):
        name, age = interrupt("name?"), interrupt("age?")
        return {"log": [f"{name} is {age}"]}

    app = compiled(ask)
    for given in ({"text": "", "log": []}, Command(resume="Al"), Command(resume=7)):
        for chunk in app.stream(given, thread()):
            note(chunk)


@case
def questions_change_places(note):
    orders = ["ab", "ba", "ab"]

    def ask(state: State):
        return {"log": [f"{name} got {interrupt(name)}" for name in orders.pop(0)]}

    app = compiled(ask)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the drop-in says which answer was given by place
        for given in ({"text": "", "log": []}, Command(resume="one"), Command(resume="two")):
            result = app.invoke(given, thread())
            note([each.value for each in result.get("__interrupt__", ())], result["log"])


@case
def tool_calls_are_reviewed(note):
    @tool
    def weather(city: str):
        """The weather of a city."""
        return f"sunny in {city}"

    model = calling("weather", {"city": "sf"}, "it is sunny")

    def call_llm(state: MessagesState):
        return {"messages": [model.bind_tools([weather]).invoke(state["messages"])]}

    def review(state) -> Command[Literal["call_llm", "run_tool"]]:
        last = state["messages"][-1]
        answer = interrupt({"question": "Is this correct?", "tool_call": last.tool_calls[-1]})
        if answer["action"] == "continue":
            return Command(goto="run_tool")
        changed = {"role": "ai", "content": last.content, "id": last.id}
        changed["tool_calls"] = [{**last.tool_calls[-1], "args": answer["data"]}]
        return Command(goto="run_tool", update={"messages": [changed]})

    def run_tool(state):
        calls = state["messages"][-1].tool_calls
        return {
            "messages": [
                {"role": "tool", "name": c["name"], "content": weather.invoke(c), "tool_call_id": c["id"]} for c in calls
            ]
        }

    def route(state) -> Literal["review", END]:
        return "review" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node(call_llm)
    graph.add_node("run_tool", lambda state: {"messages": [m | {"content": str(m["content"].content)} for m in run_tool(state)["messages"]]})
    graph.add_node("review", review)
    graph.add_edge(START, "call_llm")
    graph.add_conditional_edges("call_llm", route)
    graph.add_edge("run_tool", "call_llm")
    app = graph.compile(checkpointer=InMemorySaver())
    for event in app.stream({"messages": [{"role": "user", "content": "weather?"}]}, thread(), stream_mode="updates"):
        note(event)
    note(app.get_state(thread()).next)
    for event in app.stream(Command(resume={"action": "update", "data": {"city": "nyc"}}), thread(), stream_mode="updates"):
        note(event)
    note(conversation(app.get_state(thread()).values))


@case
def a_tool_asks(note):
    @tool
    def human_assistance(query: str) -> str:
        """Ask a human."""
        return interrupt({"query": query})["data"]

    app = create_react_agent(
        calling("human_assistance", {"query": "how?"}, "thanks"), [human_assistance], checkpointer=InMemorySaver()
    )
    note(app.invoke({"messages": [("user", "help")]}, thread())["__interrupt__"][0].value)
    note(app.get_state(thread()).next)
    note(conversation(app.invoke(Command(resume={"data": "like so"}), thread())))


@case
def breakpoints(note):
    def step_1(state: State):
        return {"log": ["1"]}

    def step_2(state: State):
        return {"log": ["2"]}

    def step_3(state: State):
        return {"log": ["3"]}

    edges = [("step_1", "step_2"), ("step_2", "step_3")]
    app = compiled(step_1, step_2, step_3, edges=edges, interrupt_before=["step_3"], interrupt_after=["step_1"])
    for chunk in app.stream({"text": "x", "log": []}, thread(), stream_mode="values"):
        note(chunk)
    note(describe(app.get_state(thread())))
    for chunk in app.stream(None, thread(), stream_mode="values"):
        note(chunk)
    app.update_state(thread(), {"text": "edited", "log": ["by hand"]})
    note(describe(app.get_state(thread())))
    for chunk in app.stream(None, thread(), stream_mode="updates"):
        note(chunk)
    note(describe(app.get_state(thread())))


@case
def breakpoints_of_one_run(note):
    def a(state: State):
        return {"log": ["a"]}

    def b(state: State):
        return {"log": ["b"]}

    app = compiled(a, b, edges=[("a", "b")])

    async def main():
        note(await app.ainvoke({"text": "x", "log": []}, thread(), interrupt_before="*"))
        for _ in range(2):
            note(await app.ainvoke(None, thread(), interrupt_before="*"))
        note(describe(await app.aget_state(thread())))

    asyncio.run(main())


@case
def an_agent_stops_before_its_tools(note):
    app = create_react_agent(
        calling("add", {"a": 1, "b": 2}, "three"), [add], interrupt_before=["tools"], checkpointer=InMemorySaver()
    )
    note(conversation(app.invoke({"messages": [("user", "1+2")]}, thread())))
    note(app.get_state(thread()).next)
    last = app.get_state(thread()).values["messages"][-1]
    last.tool_calls[0]["args"]["a"] = 40
    app.update_state(thread(), {"messages": [last]})
    note(conversation(app.invoke(None, thread())))


@case
def dynamic_breakpoints(note):
    def check(state: State):
        if len(state["text"]) > 3:
            raise NodeInterrupt(f"too long: {state['text']}")
        return {"log": ["fine"]}

    app = compiled(check)
    note([each.value for each in app.invoke({"text": "longer", "log": []}, thread())["__interrupt__"]])
    note(describe(app.get_state(thread())))
    app.update_state(thread(), {"text": "ok"})
    note(app.invoke(None, thread()))
    note(issubclass(NodeInterrupt, GraphInterrupt))


@case
def travelling_in_time(note):
    def topic(state: State):
        return {"text": state.get("text") or "socks", "log": ["topic"]}

    def joke(state: State):
        return {"log": [f"joke about {state['text']}"]}

    app = compiled(topic, joke, edges=[("topic", "joke")])
    note(app.invoke({}, thread()))
    states = list(app.get_state_history(thread()))
    for state in states:
        note(describe(state))
    chosen = states[1]
    config = app.update_state(chosen.config, {"text": "chickens"})
    note(sorted(config["configurable"]))
    note(app.invoke(None, config))
    note(app.invoke(None, chosen.config))
    note([describe(state) for state in app.get_state_history(thread())])
    note([state.next for state in app.get_state_history(thread(), filter={"source": "fork"})])
    note([state.next for state in app.get_state_history(thread(), limit=2)])
    note([state.next for state in app.get_state_history(thread(), before=chosen.config)])


@case
def travelling_in_time_on_a_loop(note):
    def a(state: State):
        return {"log": ["a"]}

    def b(state: State):
        return {"log": ["b"]}

    app = compiled(a, b, edges=[("a", "b")])

    async def main():
        await app.ainvoke({"text": "x", "log": []}, thread())
        states = [state async for state in app.aget_state_history(thread())]
        note([describe(state) for state in states])
        replayed = next(state for state in states if state.next == ("b",))
        async for chunk in app.astream(None, replayed.config, stream_mode="debug"):
            note(chunk["type"], chunk["step"])
        await app.aupdate_state(thread(), {"log": ["late"]}, as_node="a")
        note(describe(await app.aget_state(thread())))
        note(await app.ainvoke(None, thread()))

    asyncio.run(main())


@case
def a_past_answer_is_changed(note):
    app = asking()
    app.invoke({"text": "draft", "log": []}, thread())
    app.invoke(Command(resume="one"), thread())
    before = next(s for s in app.get_state_history(thread()) if s.next == ("human",))
    note(describe(before))
    forked = app.update_state(before.config, {"text": "other draft"})
    note(app.invoke(None, forked)["__interrupt__"][0].value)
    note(app.invoke(Command(resume="two"), thread()))


@case
def questions_of_a_subgraph(note):
    def inner(state: State):
        return {"log": [f"inner {interrupt('inner?')}"]}

    sub = StateGraph(State)
    sub.add_node("inner", inner)
    sub.add_edge(START, "inner")
    graph = StateGraph(State)
    graph.add_node("before", lambda state: {"log": ["before"]})
    graph.add_node("sub", sub.compile())
    graph.add_edge(START, "before")
    graph.add_edge("before", "sub")
    app = graph.compile(checkpointer=InMemorySaver())
    for chunk in app.stream({"text": "", "log": []}, thread(), subgraphs=True):
        note([level.partition(":")[0] for level in chunk[0]], chunk[1])
    snapshot = app.get_state(thread(), subgraphs=True)
    note(describe(snapshot), describe(snapshot.tasks[0].state))
    note(app.invoke(Command(resume="yes"), thread()))


@case
def answer_and_update_at_once(note):
    def ask(state: State):
        return {"log": [f"{state['text']} {interrupt('?')}"]}

    app = compiled(ask)
    app.invoke({"text": "old", "log": []}, thread())
    note(app.invoke(Command(resume="a", update={"text": "new"}), thread()))
    try:
        bare = StateGraph(State)
        bare.add_node(ask)
        bare.add_edge(START, "ask")
        bare.compile().invoke(Command(resume="x"), thread())
    except Exception as error:
        note(type(error).__name__)


@case
def questions_as_values(note):
    question = Interrupt(value="v", id="i")
    note(question, question.id, question.value)
    note(Command(resume=1), Command(goto=["a"], update={"x": 1}, graph=Command.PARENT))
    saying("x")


@case
def an_answer_that_does_not_fit_is_told_apart(note):
    class Verdict(BaseModel):
        good: bool

    def ask(state: State):
        return {"text": str(interrupt("good?", response_schema=Verdict))}

    app = compiled(ask)
    app.invoke({"text": "", "log": []}, thread())
    for answer in ({"good": "perhaps"}, 3):
        try:
            app.invoke(Command(resume=answer), thread())
        except ValueError as error:
            note(type(error).__name__, is_invalid_resume(error))
    note(app.invoke(Command(resume={"good": True}), thread()))
    made = UnknownInterruptError("nothing waits", reason="not_pending", interrupt_ids=["a"])
    note(made, made.reason, list(made.interrupt_ids), list(made.pending_ids), is_invalid_resume(made), is_invalid_resume(ValueError()))


if __name__ == "__main__":
    run_cases()
