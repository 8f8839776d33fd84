"""Makes the pictures of these pages from real programs: `make pictures`, or one kind with
`make pictures ARGS="demo page drawings terminals"`. It needs Chromium.

Each picture has a light and a dark version, `NAME.svg` and `NAME-dark.svg` (or `.webp`), except
terminals, which are dark.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from operator import add
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(HERE)]

import terminal  # noqa: E402
from kit.browser import Browser, browsing  # noqa: E402

from stategraph import (  # noqa: E402
    END,
    START,
    Command,
    CompiledStateGraph,
    InMemorySaver,
    InMemoryStore,
    Runtime,
    Send,
    SqliteSaver,
    StateGraph,
    interrupt,
)
from stategraph.examples import demo  # noqa: E402
from stategraph.lab import whatif, why  # noqa: E402
from stategraph.prebuilt import create_agent  # noqa: E402
from stategraph.testing import ScriptedModel, tool_call  # noqa: E402
from stategraph.visualize import changes, timeline  # noqa: E402

THEMES = ("light", "dark")


def place(name: str, theme: str, ending: str) -> Path:
    """Where a picture is kept."""
    return HERE / f"{name}{'-dark' if theme == 'dark' else ''}.{ending}"


def photograph(browser: Browser, path: Path, height: int | None = None) -> None:
    """Write what a page shows, as WebP."""
    clip = {"clip": {"x": 0, "y": 0, "width": 1180, "height": height, "scale": 1}} if height else {}
    found = browser.tell("Page.captureScreenshot", format="webp", quality=72, **clip)
    path.write_bytes(base64.b64decode(found["data"]))


# -- the demo --------------------------------------------------------------------------------------


def copy_library(folder: Path) -> None:
    """Copy some packages of the standard library, to be read by the demo."""
    library = Path(sysconfig.get_path("stdlib"))
    for package in sorted(library.iterdir()):
        if (package / "__init__.py").exists() and package.name not in demo.SKIPPED:
            ignored = shutil.ignore_patterns("__pycache__", "test", "tests", "idle_test")
            shutil.copytree(package, folder / package.name, ignore=ignored)


def make_demo() -> None:
    """Record the demo in a terminal; it ends with the page that it has written."""
    with tempfile.TemporaryDirectory() as folder:
        copy_library(Path(folder, "library"))
        command = Path(folder, "stategraph")
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m stategraph "$@"\n')
        command.chmod(0o755)
        frames = terminal.record(
            [str(command), "demo", "library", "--out", "demo"],
            Path(folder),
            {"Rank by": "imports\n"},
            {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
        hide = re.compile(re.escape(str(Path(folder).resolve())) + "/?")
        tidy = re.compile(r"\S*/bin/python -m stategraph")
        shown = [
            terminal.Frame(
                frame.at,
                tuple((n, tidy.sub("stategraph", hide.sub("", line))) for n, line in frame.lines),
            )
            for frame in frames
        ]
        for theme in THEMES:
            with browsing(dark=theme == "dark", size=(1180, 860)) as browser:
                browser.open(Path(folder, "demo", "report.html"))
                photograph(browser, place("report", theme, "webp"))
        page = place("report", "light", "webp").read_bytes()
        title = "The demo: a graph reads files, its process is killed, another one continues"
        (HERE / "demo.svg").write_text(terminal.draw(shown, title, page))
        with SqliteSaver.from_conn_string(str(Path(folder, "demo", "stategraph-demo.db"))) as saver:
            app = demo.build().compile(checkpointer=saver, name="demo")
            for theme in THEMES:
                picture = timeline(app, demo.THREAD).draw_svg(theme=theme)
                place("timeline", theme, "svg").write_text(picture)


# -- drawings --------------------------------------------------------------------------------------


def draw(name: str, graph: Any, xray: bool = False, **options: Any) -> None:
    """Write the drawing of a graph."""
    for theme in THEMES:
        drawing = graph.get_graph(xray=xray)
        place(name, theme, "svg").write_text(drawing.draw_svg(theme=theme, **options))


def graphs_of(page: Path) -> Iterator[CompiledStateGraph]:
    """The graphs that the program of a page makes, as far as it runs without a database."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
    program = ModuleType("page")
    sys.modules["page"] = program
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        before = Path.cwd()
        os.chdir(folder)
        os.environ.setdefault("OPENAI_API_KEY", "none")
        os.environ.setdefault("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        try:
            exec(code, program.__dict__)
        except Exception as error:
            print(f"{page.stem}: {error!r}", file=sys.stderr)
        finally:
            os.chdir(before)
    yield from (each for each in vars(program).values() if isinstance(each, CompiledStateGraph))


def make_drawings() -> None:
    """Draw the graph of each page of the cookbook, and what the guide on drawings shows."""
    for page in sorted((HERE.parent / "cookbook").glob("*.md")):
        *_, last = [None, *graphs_of(page)]
        if last is not None:
            draw(f"cookbook-{page.stem}", last, xray=page.stem == "multi-agent")
    draw("article", article().compile())
    draw("article-lr", article().compile(), direction="LR")
    outer = StateGraph(Article)
    outer.add_node("desk", article().compile())
    outer.add_node("archive", write)
    outer.add_edge(START, "desk")
    outer.add_edge("desk", "archive")
    draw("nested", outer.compile(), xray=True)
    wide = StateGraph(Article)
    for number in range(200):
        wide.add_node(f"n{number}", write)
        wide.add_edge(START, f"n{number}")
    draw("folded", wide.compile())
    joined = StateGraph(Article)
    for name in ("flights", "hotels", "book"):
        joined.add_node(name, write)
    joined.add_edge(START, "flights")
    joined.add_edge(START, "hotels")
    joined.add_edge(["flights", "hotels"], "book")
    draw("joined", joined.compile())


# -- the page --------------------------------------------------------------------------------------


class Article(TypedDict):
    """The state of the graph that the pictures of the page show."""

    topics: list[str]
    notes: Annotated[list[str], add]
    text: str


def each_topic(state: Article) -> list[Send]:
    """Start a task for each topic."""
    return [Send("research", {"topic": topic}) for topic in state["topics"]]


def research(task: dict[str, str]) -> dict[str, Any]:
    """Look something up."""
    if task["topic"] == "gold":
        raise ConnectionError("the library does not answer")
    return {"notes": [f"Of {task['topic']}, the world drinks more every year."]}


def write(state: Article) -> dict[str, Any]:
    """Write a draft."""
    return {"text": " ".join(state["notes"])}


def review(state: Article) -> Command[Any]:
    """Ask a person."""
    verdict = interrupt({"question": "Publish this?", "text": state["text"]})
    return Command(goto=END if verdict == "yes" else "write")


def article() -> StateGraph[Any]:
    """A graph with a fan-out and a question."""
    graph = StateGraph(Article)
    graph.add_node("research", research)
    graph.add_node("write", write)
    graph.add_node("review", review, destinations=["write", END])
    graph.add_conditional_edges(START, each_topic, ["research"])
    graph.add_edge("research", "write")
    graph.add_edge("write", "review")
    return graph


def height(name: str) -> int:
    """Height of a mountain in metres."""
    return {"Etna": 3369}[name]


def delete(file: str) -> str:
    """Delete a file."""
    return f"{file} is gone"


def assistant() -> CompiledStateGraph:
    """An agent, played by a script that answers what it is asked."""

    def answer(messages: list[Any]) -> Any:
        last = messages[-1]
        if last["role"] == "tool":
            return f"It is {last['content']} m high." if last["content"].isdigit() else "Done."
        if "file" in last["content"]:
            return {"tool_calls": [tool_call("delete", file="old.txt")]}
        return {"tool_calls": [tool_call("height", name="Etna")]}

    return create_agent(ScriptedModel([answer] * 50), [height, delete], approve=["delete"])


@contextmanager
def serving(graphs: dict[str, Any]) -> Iterator[str]:
    """A server on a free port of this machine."""
    import uvicorn
    from kit.cluster import free_port

    from stategraph.serve import create_app

    port = free_port()
    app = create_app(graphs, checkpointer=InMemorySaver(), store=InMemoryStore())
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def make_page() -> None:
    """Photograph the views of the server's page."""
    import httpx

    graphs = {"article": article().compile(), "assistant": assistant()}
    with serving(graphs) as url, httpx.Client(base_url=url, timeout=60) as client:

        def run(thread: str, graph: str, **body: Any) -> None:
            client.post("/threads", json={"thread_id": thread, "if_exists": "do_nothing"})
            sent = {"assistant_id": graph, **body}
            client.post(f"/threads/{thread}/runs/wait", json=sent, timeout=60)

        def say(text: str) -> dict[str, Any]:
            return {"messages": [{"role": "user", "content": text}]}

        ids = [f"0000000{n}-0000-4000-8000-000000000000" for n in range(1, 6)]
        run(ids[0], "article", input={"topics": ["gold"]})
        run(ids[1], "article", input={"topics": ["tea", "coffee"]})
        run(ids[1], "article", command={"resume": "no"})
        states = client.get(f"/threads/{ids[1]}/history").json()
        fork = next(state for state in states if state["next"] == ["write"])
        run(ids[1], "article", command={"resume": "yes"})
        notes = {"notes": ["Water is older."]}
        client.post(
            f"/threads/{ids[1]}/state", json={"values": notes, "checkpoint": fork["checkpoint"]}
        )
        run(ids[1], "article", input=None)
        run(ids[2], "assistant", input=say("How high is Etna?"))
        run(ids[3], "assistant", input=say("Delete the old file, please."))
        run(ids[4], "article", input={"topics": ["cocoa", "mate", "water"]})
        views = {
            "page-threads": "#/",
            "page-inbox": "#/inbox",
            "page-chat": f"#/thread/{ids[2]}",
            "page-question": f"#/thread/{ids[3]}",
            "page-steps": f"#/thread/{ids[1]}/steps",
            "page-graph": f"#/thread/{ids[1]}/graph",
            "page-timeline": f"#/thread/{ids[1]}/timeline",
            "page-branches": f"#/thread/{ids[1]}/branches",
            "page-state": f"#/thread/{ids[4]}/state",
        }
        for theme in THEMES:
            with browsing(dark=theme == "dark", size=(1180, 760)) as browser:
                for name, address in views.items():
                    browser._load("Page.navigate", url="about:blank")
                    browser._load("Page.navigate", url=f"{url}/{address}")
                    browser.run("new Promise(done => setTimeout(done, 1200))")
                    photograph(browser, place(name, theme, "webp"))
        with browsing(size=(400, 760)) as browser:
            browser._load("Page.navigate", url=f"{url}/#/thread/{ids[3]}")
            browser.run("new Promise(done => setTimeout(done, 1200))")
            photograph(browser, place("page-phone", "light", "webp"))


class Order(TypedDict, total=False):
    euros: int
    discount: int
    charged: int


def discount(state: Order) -> Order:
    return {"discount": 10 if state["euros"] > 100 else 0}


def charge(state: Order, runtime: Runtime) -> Order:
    return {"charged": runtime.once("charge", lambda: state["euros"] - state["discount"])}


def generous(state: Order) -> Order:
    return {"discount": 20 if state["euros"] > 200 else 10 if state["euros"] > 100 else 0}


def show_lab() -> str:
    """What the lab says of 200 orders, with other discounts."""
    graph = StateGraph(Order).add_sequence([discount, charge]).add_edge(START, "discount")
    app = graph.compile(checkpointer=InMemorySaver(), name="shop")
    for number in range(200):
        thread: Any = {"configurable": {"thread_id": f"order-{number:03}"}}
        app.invoke({"euros": 5 + number * 37 % 207}, thread)
    would = {"charge": lambda state: {"charged": state["euros"] - state["discount"]}}
    trials = whatif(app, 200, variant={"discount": generous}, effects=would)
    thread = {"configurable": {"thread_id": trials.different[0].thread}}
    shown = "\n".join([*str(trials).splitlines()[:13], "..."])
    return (
        '>>> print(whatif(app, 200, variant={"discount": generous}, effects=would))\n'
        f"{shown}\n>>> print(why(app, thread, \"charged\"))\n{why(app, thread, 'charged')}"
    )


# -- what programs print ---------------------------------------------------------------------------


def make_terminals() -> None:
    """Draw what `explain`, `changes` and the lab print."""
    app = article().compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    app.invoke({"topics": ["tea", "coffee"]}, thread)
    lines = [
        f"{node:>10}: {status.state}, {status.why}" for node, status in app.explain(thread).items()
    ]
    explain = ">>> for node, status in app.explain(thread).items(): ...\n" + "\n".join(lines)
    (HERE / "explain.svg").write_text(terminal.still(explain, "What explain prints"))
    text = f">>> print(changes(app, thread))\n{changes(app, thread)}"
    (HERE / "changes.svg").write_text(terminal.still(text, "What each step changed"))
    (HERE / "lab.svg").write_text(terminal.still(show_lab(), "What if, and why"))


MAKERS = {
    "demo": make_demo,
    "drawings": make_drawings,
    "page": make_page,
    "terminals": make_terminals,
}

if __name__ == "__main__":
    for kind in sys.argv[1:] or MAKERS:
        MAKERS[kind]()
