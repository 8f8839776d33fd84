"""What an agent under LangGraph's names does for a turn: counted, not timed."""


import side_by_side  # noqa: F401 - skips where its packages are missing
from kit.programs import OF_THE_PACKAGE, printed

PROGRAM = """
import asyncio, threading
import stategraph.compat.langgraph
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph._internal._runnable import RunnableCallable
from stategraph.compat.langgraph.listening import PeerListener
from stategraph.graph.messages.normalize import Normalizer

reads, configs, threads = [], [], set()
read, make = Normalizer.read, PeerListener.make_config
Normalizer.read = lambda self, given: (reads.append(given), read(self, given))[1]
PeerListener.make_config = lambda self, task: (configs.append(task.name), make(self, task))[1]

def say(state, config):
    threads.add(threading.current_thread())
    return {"messages": [AIMessage(f"said {len(state['messages'])}")]}

def route(state, config):
    threads.add(threading.current_thread())
    return "say" if len(state["messages"]) < 220 else END

graph = StateGraph(MessagesState)
graph.add_node("say", RunnableCallable(say))
graph.add_edge(START, "say")
graph.add_conditional_edges("say", RunnableCallable(route), ["say", END])
app = graph.compile()

async def main():
    given = {"messages": [HumanMessage(str(n)) for n in range(200)]}
    found = await app.ainvoke(given, {"recursion_limit": 100})
    assert len(found["messages"]) == 220
    assert threads == {threading.main_thread()}, threads

asyncio.run(main())
print(len(reads) <= 700, len(configs))
Normalizer.read = read
# Whatever a list holds, and whatever is written, becomes messages, also where the index does not fit.
from langgraph.types import Overwrite
graph = StateGraph(MessagesState)
graph.add_node("a", lambda state: {"messages": Overwrite([{"role": "user", "content": "x", "id": "1"}])})
graph.add_node("b", lambda state: {"messages": [("ai", "y"), {"role": "user", "content": "z", "id": "1"}]})
app = graph.add_edge(START, "a").add_edge("a", "b").compile()
print([(type(m).__name__, m.content) for m in app.invoke({"messages": "hi"})["messages"]])
# A prebuilt agent: LangChain starts asyncio tasks for models and tools; that of a sequence needs none.
import warnings; warnings.simplefilter("ignore")
from langchain_core.language_models import GenericFakeChatModel
from langgraph.prebuilt import create_react_agent
class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self
def add(a: int) -> int:
    "Add one."
    return a + 1
started = []
async def agent():
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, work, **options: (started.append(work), asyncio.Task(work, loop=loop, **options))[1])
    calls = [{"name": "add", "args": {"a": 1}, "id": "c"}]
    model = Model(messages=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))
    found = await create_react_agent(model, [add]).ainvoke({"messages": "hi"})
    return found["messages"][-1].content
print(asyncio.run(agent()), len(started) <= 9)
# Who reads messages and passes no handlers: the model is told of its run, and nobody of graph and nodes.
from langchain_core.callbacks import CallbackManager
begun, begin = [], CallbackManager.on_chain_start
CallbackManager.on_chain_start = lambda self, *given, **options: (begun.append(options), begin(self, *given, **options))[1]
graph = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [Model(messages=iter(["one two"])).invoke("hi")]})
chunks = graph.add_edge(START, "say").compile().stream({"messages": "hi"}, {"tags": ["t"]}, stream_mode="messages")
print([(chunk.content, meta["langgraph_node"], meta["tags"]) for chunk, meta in chunks if chunk.content], len(begun))
"""


def test_a_turn_of_an_agent_looks_at_new_messages_makes_one_config_a_task_and_stays_on_the_loop():
    assert printed(PROGRAM, env=OF_THE_PACKAGE).splitlines() == [
        "True 20",
        "[('HumanMessage', 'z'), ('AIMessage', 'y')]",
        "done True",
        "[('one', 'say', ['t']), (' ', 'say', ['t']), ('two', 'say', ['t'])] 0",
    ]
