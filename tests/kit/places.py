"""Calls an app in this process, on workers, or on a server, alike: for rules that hold in each of these places."""

import asyncio
from contextlib import contextmanager

from kit.fleet import working
from stategraph import Command, InMemorySaver
from stategraph.workers import Queue

EVERYWHERE = ("here", "async", "workers", "server")


class Failed(Exception):
    """A run has ended with an error."""


@contextmanager
def calling(place, app, url=""):
    """A function that runs the app on a thread: it is given the thread's name and the input, and returns the values, with
    "__interrupt__" if the run asks.

    Args:
        url: of a database, for workers.
    """
    app = app.copy({"name": "app"})
    if place == "workers":
        with Queue.from_conn_string(url, app) as queue, working(app, url, 2):

            def call(thread, given):
                ended = queue.result(thread, run_id=queue.submit(thread, given), wait=120)
                if ended.error is not None:
                    raise Failed(ended.error)
                return {"__interrupt__": ended.interrupts} if ended.interrupts else ended.unwrap()

            yield call
    elif place == "server":
        from starlette.testclient import TestClient

        from stategraph.serve import create_app

        with TestClient(create_app({"app": app}), base_url="http://localhost") as client:

            def call(thread, given):
                client.post("/threads", json={"thread_id": thread, "if_exists": "do_nothing"}).raise_for_status()
                asked = {"command": {"resume": given.resume}} if isinstance(given, Command) else {"input": given}
                answer = client.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "app", **asked})
                found = answer.json()
                if answer.is_error or "__error__" in found:
                    raise Failed(found)
                return found

            yield call
    else:
        app = app.copy({"checkpointer": InMemorySaver()})

        def call(thread, given):
            try:
                config = {"configurable": {"thread_id": thread}}
                return asyncio.run(app.ainvoke(given, config)) if place == "async" else app.invoke(given, config)
            except (RuntimeError, TimeoutError) as error:
                raise Failed(error) from error

        yield call
