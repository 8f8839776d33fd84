"""Tracers that the environment and the context configure: one trace with the right parents."""

import asyncio
import gzip
import json
import os
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

RUNS = {}
LOCK = Lock()


class Collector(BaseHTTPRequestHandler):
    """What LangSmith's client sends its runs to, here on this machine."""

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        limits = {"size_limit": 100, "size_limit_bytes": 20_000_000, "scale_up_nthreads_limit": 1}
        scaling = {"scale_up_qsize_trigger": 1000, "scale_down_nempty_trigger": 4, "use_multipart_endpoint": False}
        self._answer({"batch_ingest_config": {**limits, **scaling}, "instance_flags": {}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        sent = json.loads(body)
        with LOCK:
            for run in (*sent.get("post", ()), *sent.get("patch", ())):
                known = RUNS.setdefault(run["id"], {})
                known.update({key: value for key, value in run.items() if value is not None})
        self._answer({})

    def _answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
Thread(target=server.serve_forever, daemon=True).start()
os.environ |= {
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
    "LANGSMITH_API_KEY": "none",
    "NO_PROXY": "127.0.0.1",
}

from langchain_core.messages import HumanMessage  # noqa: E402
from langchain_core.tracers.context import collect_runs, register_configure_hook  # noqa: E402
from langchain_core.tracers.langchain import wait_for_all_tracers  # noqa: E402
from langgraph.func import entrypoint, task  # noqa: E402
from langgraph.graph import START, MessagesState, StateGraph  # noqa: E402
from langgraph.prebuilt import ToolNode, tools_condition  # noqa: E402
from langsmith import traceable  # noqa: E402
from program_cases import Names, Talking, add, case, run_cases  # noqa: E402

GIVEN = {"messages": [HumanMessage("1+2?", id="q")]}


def agent():
    model = Talking(answers=[{"calls": [("add", {"a": 1, "b": 2})]}, "three it is"]).bind_tools([add])

    def llm(state):
        return {"messages": model.invoke(state["messages"])}

    graph = StateGraph(MessagesState).add_node(llm).add_node("tools", ToolNode([add]))
    graph.add_edge(START, "llm").add_conditional_edges("llm", tools_condition).add_edge("tools", "llm")
    inner = graph.compile(name="inner")
    return StateGraph(MessagesState).add_node("sub", inner).add_edge(START, "sub").compile(name="outer")


def traced(note):
    """The runs that have arrived since: as a tree, in the order in which they began."""
    wait_for_all_tracers()
    with LOCK:
        runs = dict(RUNS)
        RUNS.clear()
    note(len(runs), "runs,", len({run["trace_id"] for run in runs.values()}), "traces")
    for run in sorted(runs.values(), key=lambda run: run["dotted_order"]):
        parent = runs.get(run.get("parent_run_id"), {}).get("name")
        done = "end_time" in run or run.get("error")
        note(run["run_type"], run["name"], "in", parent, sorted(run.get("tags") or ()), bool(done), run.get("error", "")[:20])


@case
def langsmith_by_its_variables(note):
    agent().invoke(GIVEN)
    traced(note)


@case
def langsmith_on_a_loop(note):
    asyncio.run(agent().ainvoke(GIVEN))
    traced(note)


@case
def langsmith_of_a_stream(note):
    for _ in agent().stream(GIVEN, {"tags": ["mine"], "run_name": "asked"}, stream_mode="messages"):
        pass
    traced(note)


@case
def langsmith_of_a_failure(note):
    def fail(state):
        raise KeyError("no")

    try:
        StateGraph(MessagesState).add_node(fail).add_edge(START, "fail").compile().invoke(GIVEN)
    except KeyError:
        note("raised")
    traced(note)


@case
def langsmith_around_and_inside(note):
    @traceable(run_type="tool")
    def look_up(word):
        return word.upper()

    def node(state):
        return {"messages": look_up("word")}

    app = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile()

    @traceable
    def pipeline(text):
        return app.invoke({"messages": text})["messages"][-1].content

    note(pipeline("x"))
    traced(note)


@case
def langsmith_of_tasks(note):
    @task
    def double(x):
        return 2 * x

    @entrypoint()
    def workflow(numbers):
        return [double(number).result() for number in numbers]

    note(workflow.invoke([1, 2]))
    traced(note)


@case
def runs_that_are_collected(note):
    def below(run):
        return [run, *(each for child in run.child_runs for each in below(child))]

    with collect_runs() as collected:
        agent().invoke(GIVEN)
    found = [each for run in collected.traced_runs for each in below(run)]
    note(sorted(run.name for run in found if run.run_type != "chain"))
    note("outer" in [run.name for run in collected.traced_runs])
    traced(note)


class ToldNames(Names):
    """Of itself it makes an instance where a variable asks for it."""

    told = print

    def __init__(self, note=None):
        super().__init__(note or ToldNames.told)


@case
def a_handler_of_the_whole_process(note):
    handler = ContextVar("handler", default=None)
    register_configure_hook(handler, inheritable=True)
    handler.set(ToldNames(note))
    agent().invoke(GIVEN)
    handler.set(None)
    traced(note)


@case
def a_handler_that_a_variable_asks_for(note):
    ToldNames.told = note
    register_configure_hook(ContextVar("asked", default=None), True, ToldNames, "TRACE_NAMES")
    os.environ["TRACE_NAMES"] = "true"
    asyncio.run(agent().ainvoke(GIVEN))
    del os.environ["TRACE_NAMES"]
    traced(note)


if __name__ == "__main__":
    run_cases()
