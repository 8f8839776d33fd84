"""A session with a server in which each text is a canary, and all that its database holds afterwards."""

import sqlite3
from contextlib import closing

import psycopg
from kit import cluster
from kit.fleet import until
from kit.graphs import chain_of
from serving import Log

from stategraph import get_stream_writer, interrupt

HOOK = "http://127.0.0.1:9/hooks"
"""No server listens there, so deliveries stay in the database."""


def make_teller(words):
    """a → b: a sends to the stream and writes; b asks, and fails if the answer is no."""
    def a(state):
        get_stream_writer()({"custom": words["custom"]})
        return {"log": [words["written"]]}

    async def b(state):
        answer = interrupt({"question": words["question"]})
        if answer == "no":
            raise ValueError(words["error"])
        return {"log": [answer]}

    return chain_of(Log, a=a, b=b).compile(name="teller")


HIDDEN = (
    "input", "custom", "written", "question", "answer", "error", "edit", "api_key", "context", "run_metadata",
    "config_metadata", "assistant_config", "assistant_context", "cron_input", "cron_config", "webhook_token",
)  # fmt: skip
CLEAR = ("thread_metadata", "assistant_metadata", "assistant_name", "assistant_description", "cron_metadata", "item")


def session(client, words, hook, user=""):
    """Says each of the words where it belongs.

    Args:
        user: who the client is, if the server has users.
    """
    mine = client.assistants.create(
        "teller",
        config={"configurable": {"key": words["assistant_config"]}},
        context={"key": words["assistant_context"]},
        metadata={"m": words["assistant_metadata"]},
        name=words["assistant_name"],
        description=words["assistant_description"],
    )["assistant_id"]
    thread = client.threads.create(metadata={"m": words["thread_metadata"]})["thread_id"]
    asked = {
        "config": {"configurable": {"api_key": words["api_key"]}, "metadata": {"c": words["config_metadata"]}},
        "context": {"key": words["context"]},
        "metadata": {"m": words["run_metadata"]},
        "webhook": f"{hook}?token={words['webhook_token']}",
    }
    modes = ["updates", "custom", "values"]
    told = [*client.runs.stream(thread, mine, input={"log": [words["input"]]}, stream_mode=modes, **asked)]
    assert words["custom"] in str(told) and words["written"] in str(told)
    client.runs.wait(thread, mine, command={"resume": words["answer"]}, **asked)
    before = next(each for each in client.threads.get_history(thread) if each["next"] == ["b"])
    client.runs.wait(thread, mine, input=None, checkpoint=before["checkpoint"])
    failed = client.runs.create(thread, mine, command={"resume": "no"}, **asked)
    error = until(lambda: client.threads.get(thread)["error"])
    assert error["message"] == words["error"] and client.runs.get(thread, failed["run_id"])["status"] == "error"
    client.threads.update_state(thread, {"log": [words["edit"]]}, as_node="a")
    client.crons.create(
        "teller",
        schedule="0 0 1 1 *",
        input={"log": [words["cron_input"]]},
        config={"configurable": {"api_key": words["cron_config"]}},
        metadata={"m": words["cron_metadata"]},
    )
    client.store.put_item([user, "notes"] if user else ["notes"], "k", {"text": words["item"]})
    [found] = client.threads.search(metadata={"m": words["thread_metadata"]})
    assert found["thread_id"] == thread and found["error"]["message"] == words["error"]
    runs = client.runs.list(thread)
    assert {run["metadata"]["m"] for run in runs if run["kwargs"]["webhook"]} == {words["run_metadata"]}
    assert not any("sealed" in each for each in (found, *runs, client.assistants.get(mine), *client.crons.search()))


def rows_of(place):
    """Each value of each table of an SQLite file."""
    with closing(sqlite3.connect(place)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in db.execute(f'SELECT * FROM "{name}"'):
                yield from (each if isinstance(each, bytes) else str(each).encode() for each in row)


def tables_of(conninfo):
    """Each value of each table of a schema of Postgres."""
    with psycopg.connect(conninfo, autocommit=True) as admin:
        admin.execute("CHECKPOINT")
        names = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        for (name,) in admin.execute(names).fetchall():
            for row in admin.execute(f"SELECT * FROM {name}"):  # type: ignore[arg-type]
                yield from (each if isinstance(each, bytes) else str(each).encode() for each in row)


def texts_of(kind, place, conninfo):
    """All that a database holds: each row of each table, and its files."""
    if kind.startswith("sqlite"):
        yield from rows_of(place)
        files = place.parent.iterdir()
    else:
        yield from tables_of(conninfo)
        files = (cluster.shared().folder / "data").rglob("*")
    for file in files:
        if file.is_file():
            try:
                yield file.read_bytes()
            except PermissionError:
                continue
