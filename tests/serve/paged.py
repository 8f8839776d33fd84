"""The graphs that tests of the server's page show, and a browser that waits for what they expect."""

from __future__ import annotations

import contextlib
import json
import operator
import socket
import threading
from typing import Annotated, Literal
from urllib.parse import urlsplit

from kit.graphs import graph_of
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from stategraph import END, START, MessagesState, StateGraph, interrupt
from stategraph.graph import stream_text

PATIENCE = 30_000  # milliseconds; then what a test waits for does not come
HOSTILE = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>'\"&amp;`${window.hacked=1}` \u202e\u0000"


class Verdict(BaseModel):
    approved: bool
    amount: int = Field(description="in cents")
    kind: Literal["gift", "order"] = "order"
    note: str = ""


class Order(TypedDict, total=False):
    item: str
    price: float
    log: Annotated[list[str], operator.add]


def make_orders():
    """check → approve and legal, which both ask → pack → ship, which fails for a bomb."""

    def check(state: Order):
        return {"log": [f"checked {state['item']}"]}

    def approve(state: Order):
        asked = {"question": f"Buy {state['item']}?", "price": state.get("price")}
        verdict = interrupt(asked, response_schema=Verdict)
        return {"log": [f"{verdict.kind} of {verdict.amount}: {verdict.approved}"]}

    def legal(state: Order):
        return {"log": [f"legal: {interrupt('Is it legal?')}"]}

    def pack(state: Order):
        return {"log": ["packed"]}

    def ship(state: Order):
        if state["item"] == "bomb":
            raise ValueError(f"cannot ship {HOSTILE}")
        return {"log": [f"shipped {state['item']}"]}

    graph = StateGraph(Order)
    for node in (check, approve, legal, pack, ship):
        graph.add_node(node)
    graph.add_edge(START, "check").add_edge("check", "approve").add_edge("check", "legal")
    graph.add_edge(["approve", "legal"], "pack").add_edge("pack", "ship").add_edge("ship", END)
    return graph.compile(name="orders")


class Speech:
    """What the model of the chat says, piece by piece, when the test lets it."""

    def __init__(self):
        self.pieces = ["It is ", "sunny ", "in Rome."]
        self.go_on = threading.Semaphore(0)

    def speak(self):
        for piece in self.pieces:
            assert self.go_on.acquire(timeout=30), "the test did not let the model speak"
            yield piece


def make_chat(speech: Speech):
    """model ⇄ tool: asked for the weather, the model calls a tool first."""

    def model(state: MessagesState):
        last = state["messages"][-1]
        if last["role"] == "user" and "weather" in last["content"]:
            function = {"name": "weather", "arguments": '{"city": "Rome"}'}
            call = {"id": "c1", "type": "function", "function": function}
            return {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
        return {"messages": [stream_text(speech.speak(), id=f"m{len(state['messages'])}")]}

    def tool(state: MessagesState):
        told = {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": '{"sky": "clear"}'}
        return {"messages": [told]}

    def follow(state: MessagesState):
        return "tool" if state["messages"][-1].get("tool_calls") else END

    graph = graph_of(MessagesState, "S>model tool>model", model=model, tool=tool)
    return graph.add_conditional_edges("model", follow, ["tool", END]).compile(name="chat")


class Reader:
    """Somebody who reads the page: goes to addresses, waits for texts, types."""

    def __init__(self, browser, url):
        self.browser, self.url = browser, url

    def go(self, place):
        """Load the page at an address as "#/inbox"."""
        self.leave()
        self.browser._load("Page.navigate", url=f"{self.url}/{place}")
        self.until("document.querySelector('main').childElementCount > 0")

    def leave(self):
        """Show nothing, so that nothing of the page goes on."""
        self.browser._load("Page.navigate", url="about:blank")

    def until(self, condition):
        """Wait until a JavaScript expression is true."""
        script = f"""new Promise((resolve) => {{
            const end = Date.now() + {PATIENCE};
            const look = () => {{
                let found = false;
                try {{ found = Boolean({condition}); }} catch (error) {{ }}
                if (found || Date.now() > end) resolve(found);
                else setTimeout(look, 15);
            }};
            look();
        }})"""
        found = self.browser.run(script)
        assert found, f"this did not come true: {condition}; the page says {self.text()!r}, the console {self.browser.said}"

    def sees(self, *texts, within="main"):
        """Wait until the page shows these texts."""
        for text in texts:
            self.until(f"document.querySelector({json.dumps(within)})?.innerText.includes({json.dumps(text)})")

    def misses(self, text, within="main"):
        """Wait until the page shows a text no more."""
        self.until(f"!document.querySelector({json.dumps(within)})?.innerText.includes({json.dumps(text)})")

    def asks_for(self, end):
        """Wait until the page has asked for an address with this end, and a moment longer."""
        for _ in range(PATIENCE // 20):
            self.browser.run("new Promise(done => setTimeout(done, 20))")
            if any(each.endswith(end) for each in self.browser.asked_for):
                return
        raise AssertionError(f"nothing was asked for that ends with {end}: {self.browser.asked_for}")

    def text(self):
        return str(self.browser.run("document.body.innerText"))

    def press_button(self, label, within="body"):
        """Click a button or link by its label, when it is there."""
        find = (
            f"[...document.querySelectorAll({json.dumps(within + ' button, ' + within + ' a')})]"
            f".find(each => each.textContent.trim() === {json.dumps(label)} && !each.disabled)"
        )
        self.until(find)
        self.browser.run(f"(() => {{ document.querySelector('[data-wanted]')?.removeAttribute('data-wanted'); {find}.setAttribute('data-wanted', ''); }})()")
        self.click("[data-wanted]")

    def click(self, selector):
        """Click an element, when it is there and has stopped moving."""
        self.until(f"document.querySelector({json.dumps(selector)})")
        self.browser.run(
            f"""new Promise((resolve) => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "center"}});
                let before = "", calm = 0;
                const look = () => {{
                    const now = JSON.stringify(element.getBoundingClientRect());
                    calm = now === before ? calm + 1 : 0;
                    before = now;
                    if (calm > 5) resolve();
                    else setTimeout(look, 16);
                }};
                look();
            }})"""
        )
        self.browser.click(selector)

    def write(self, selector, text):
        """Type a text into a field, in place of what is there."""
        self.click(selector)
        self.browser.run("document.activeElement.select?.()")
        self.browser.tell("Input.insertText", text=text)

    def field(self, label, within="main"):
        """The selector of a field, by its label."""
        script = (
            f"(() => {{ const found = [...document.querySelectorAll({json.dumps(within + ' label')})]"
            f".find(each => each.firstChild.textContent.trim() === {json.dumps(label)} || each.textContent.trim() === {json.dumps(label)});"
            "const input = found?.control; if (!input) return null;"
            "input.id ||= 'wanted' + Math.random().toString(36).slice(2); return '#' + input.id; })()"
        )
        self.until(script)
        return str(self.browser.run(script))

    def choose(self, selector, label):
        """Choose an option of a list."""
        self.until(f"[...document.querySelector({json.dumps(selector)}).options].some(each => each.textContent.trim() === {json.dumps(label)})")
        self.browser.run(
            f"(() => {{ const list = document.querySelector({json.dumps(selector)});"
            f"list.value = [...list.options].find(each => each.textContent.trim() === {json.dumps(label)}).value;"
            "list.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )


class Relay:
    """Stands between a browser and a server, and can be cut."""

    def __init__(self, url):
        self._server = ("127.0.0.1", urlsplit(url).port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open, self._threads = [], []
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                near.close()
                continue
            far = socket.create_connection(self._server)
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._copy, args=(source, target), daemon=True))
                self._threads[-1].start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """End all connections, and take no new ones."""
        self._is_cut = True
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self):
        """Take connections again."""
        self._is_cut = False

    def close(self):
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()


@contextlib.contextmanager
def relaying(url):
    """A relay to a server for the time of a `with`."""
    relay = Relay(url)
    try:
        yield relay
    finally:
        relay.close()
