"""Five agents of different make for the lab, and the world that they work in: it answers otherwise each time, fails now
and then, and counts what is done to it.
"""

from __future__ import annotations

import random
import uuid
from operator import add
from typing import Annotated, Any, TypedDict

from kit.graphs import chain_of, graph_of, thread_config
from stategraph import (
    START,
    Command,
    InMemorySaver,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from stategraph.graph import call_model
from stategraph.prebuilt import create_agent


class World:
    """What agents reach: models, services, people.

    Attributes:
        effects: what was done to it, one word each.
        faults: how often a service fails, as a part of its calls.
    """

    def __init__(self, seed=1, faults=0.15):
        self.chance = random.Random(seed)
        self.effects = []
        self.faults = faults

    def reach(self, service):
        """Have an effect there; its result is another one each time."""
        self.effects.append(service)
        if self.chance.random() < self.faults:
            raise ConnectionError(service)
        return self.chance.randrange(1_000_000)


class Model:
    """A model that asks for the weather, then for a mail, and then answers. What it says is another text each time."""

    model = "scripted-1"

    def __init__(self, world: World, mood=""):
        self.world, self.mood = world, mood

    def invoke(self, messages, tools=()):
        number = self.world.reach("model")
        said = [message.get("role") for message in messages if message.get("role") != "system"]
        since = said[::-1].index("user")
        usage = {"prompt_tokens": len(messages), "completion_tokens": 1}
        names = [each["function"]["name"] for each in tools]
        wanted = ["weather", "mail"][since:] if since < 2 else []
        for name in wanted:
            if name in names:
                call = {"name": name, "arguments": '{"city": "Rome"}' if name == "weather" else '{"text": "sunny"}'}
                calls = [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": call}]
                return {"role": "assistant", "content": "", "tool_calls": calls, "usage": usage}
        return {"role": "assistant", "content": f"{self.mood}answer {number}", "usage": usage}


def tools_agent(world: World, *, prompt="Be kind.", mood="", without=""):
    def weather(city):
        """The weather of a city."""
        return f"sunny {world.reach('weather')}"

    def mail(text):
        """Send a mail."""
        return f"sent {world.reach('mail')}"

    tools = [each for each in (weather, mail) if each.__name__ != without]
    approve = ["mail"] if without != "mail" else []
    return create_agent(Model(world, mood), tools, system_prompt=prompt, approve=approve, name="tools")


class Facts(TypedDict, total=False):
    topics: list[str]
    facts: Annotated[list[str], add]
    best: str
    check: str


def map_agent(world: World, *, most=3, order="rank first"):
    @task
    def search(topic):
        return f"{topic} {world.reach('search')}"

    def study(topic):
        return {"facts": [search(topic).result()]}

    def rank(state: Facts):
        return {"best": max(state["facts"]) + ("" if "check" not in state else " checked")}

    def check(state: Facts):
        return {"check": f"{len(state['facts'])} facts"}

    def spread(state: Facts):
        return [Send("study", topic) for topic in state["topics"][:most]]

    graph = StateGraph(Facts).add_node(study).add_node(rank).add_node(check)
    graph.add_conditional_edges(START, spread, ["study"])
    for one, two in [("study", "rank"), ("rank", "check")] if order == "rank first" else [("study", "check"), ("check", "rank")]:
        graph.add_edge(one, two)
    return graph.compile(name="map")


class Order(TypedDict, total=False):
    price: int
    log: Annotated[list[str], add]


def question_agent(world: World, *, limit=50):
    def offer(state: Order, runtime: Runtime):
        number = runtime.once("reserve", world.reach, "reserve")
        return {"log": [f"reserved {number}"]}

    def approve(state: Order):
        first = interrupt({"pay": state["price"]}, key="pay")
        return {"log": [f"said {first}, {interrupt('by card?')}"]}

    def pay(state: Order, runtime: Runtime):
        runtime.sleep(3600 * 24)
        return {"log": [f"paid {runtime.once('charge', world.reach, 'charge')}"]}

    def route(state: Order):
        return "approve" if state["price"] > limit else "pay"

    graph = graph_of(Order, "S>offer", offer=offer, approve=approve, pay=pay)
    graph.add_conditional_edges("offer", route, ["approve", "pay"]).add_edge("approve", "pay")
    return graph.compile(name="questions")


class Notes(TypedDict, total=False):
    text: str
    notes: Annotated[list[str], add]


def memory_agent(world: World, *, shout=False):
    @task
    def embed(text):
        return world.reach("embed")

    def note(state: Notes):
        number = embed(state["text"]).result()
        return {"notes": [f"{len(state.get('notes', []))} {state['text']} {number}"]}

    def polish(state: Notes):
        return {"text": state["notes"][-1].upper() if shout else state["notes"][-1]}

    inner = chain_of(Notes, note=note, polish=polish)

    class Talk(TypedDict, total=False):
        text: str
        said: Annotated[list[str], add]

    def say(state: Talk):
        return {"said": [state["text"]]}

    return graph_of(Talk, "S>memory>say", memory=inner.compile(checkpointer=True), say=say).compile(name="memory")


def functional_agent(world: World, *, mood=""):
    model = Model(world, mood)

    @task
    def ask_model(messages):
        return call_model(model, messages)

    @task
    def book(room):
        return f"room {room} {world.reach('book')}"

    @entrypoint(checkpointer=InMemorySaver())
    def agent(text, *, previous: list[Any] | None = None):
        messages = [*(previous or []), {"role": "user", "content": text, "id": str(uuid.UUID(int=len(previous or [])))}]
        answer = ask_model(messages).result()
        rooms = [book(number) for number in range(2)]
        ok = interrupt(f"book for {text}?")
        answer = {**answer, "content": f"{mood}{answer['content']} {ok}"}
        messages = [*messages, answer, *({"role": "tool", "content": room.result()} for room in rooms)]
        return entrypoint.final(value=answer, save=messages)

    return agent


AGENTS = {"tools": tools_agent, "map": map_agent, "questions": question_agent, "memory": memory_agent, "functional": functional_agent}


def inputs_of(name, number):
    """What the thread of this number is given, one after another."""
    if name == "tools":
        return [{"messages": [{"role": "user", "content": f"weather {number}?"}]} for _ in range(1 + number % 2)]
    if name == "map":
        return [{"topics": [f"t{place}" for place in range(number % 5 + 1)]}]
    if name == "questions":
        return [{"price": number * 37 % 120}]
    if name == "memory":
        return [{"text": f"{number}.{turn}"} for turn in range(3)]
    return [f"{number}.{turn}" for turn in range(2)]


def run_threads(app, name, count, world: World, clock):
    """Run threads as they are in production: calls fail and are repeated, questions are answered later."""
    threads = [f"{name}-{number}" for number in range(count)]
    for number, thread in enumerate(threads):
        config = thread_config(thread)
        for given in inputs_of(name, number):
            todo = given
            while True:
                try:
                    result = app.invoke(todo, config, version="v2")
                except ConnectionError:
                    todo = None
                    continue
                state = app.get_state(config)
                if result.interrupts:
                    todo = Command(resume={each.id: answer_of(each.value, number) for each in result.interrupts})
                elif state.next:
                    clock.advance(3600 * 25)
                    todo = None
                else:
                    break
    return threads


def answer_of(question, number):
    if isinstance(question, dict) and "tool" in question:
        return {"decision": "approve"} if number % 3 else {"decision": "reject", "message": "no mails"}
    return "yes" if number % 2 else "no"
