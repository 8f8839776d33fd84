"""Functions instead of graphs: a plain function whose task results are stored, so that a resumed
run does not repeat them.

    python -m stategraph.examples.functional [CITY ...]

A weather report runs on one thread for three days. On the first day the station breaks down
in the middle; the same run resumes later and does only what is missing. Each day sees what the day
before saved.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from stategraph import (
    CachePolicy,
    Command,
    InMemoryCache,
    InMemorySaver,
    Pregel,
    entrypoint,
    interrupt,
    task,
)
from stategraph import RunnableConfig as Config

calls: Counter[str] = Counter()  # how often each task's function really ran
broken: dict[str, bool] = {"on": True}  # the station, until it is repaired


@task
def measure(city: str, day: int) -> int:
    """Return the degrees in a city (not the true ones). Since this is a task, its result is stored
    with the run at once."""
    calls["measure"] += 1
    return len(city) + day


@task(cache_policy=CachePolicy())
def altitude(city: str) -> int:
    """Return the altitude in metres. For equal arguments the result comes from the cache, also on
    other days and threads."""
    calls["altitude"] += 1
    return len(city) * 100


@task
def send(text: str) -> str:
    """Send the report. On the first day the station breaks down here."""
    calls["send"] += 1
    if broken["on"]:
        raise ConnectionError("the station does not answer")
    return f"sent: {text}"


def build() -> Pregel:
    """Build the entrypoint. It is a graph of one node: invoke, stream, get_state and the rest work
    as on any graph."""

    @entrypoint(checkpointer=InMemorySaver(), cache=InMemoryCache())
    def report(cities: list[str], *, previous: Any = None) -> entrypoint.final[str, dict[str, Any]]:
        """Report the weather. Every resume starts at the first line; finished tasks return their
        stored results at once."""
        calls["report"] += 1
        before = previous or {"day": 0, "degrees": None}
        day = before["day"] + 1
        degrees = [
            measure(city, day) for city in cities
        ]  # a call starts the task and returns a future
        heights = [altitude(city) for city in cities]
        at_sea = [d.result() + h.result() // 100 for d, h in zip(degrees, heights, strict=True)]
        warmest = max(at_sea)
        text = f"day {day}, {cities[at_sea.index(warmest)]} {warmest}°"
        if before["degrees"] is not None:
            text += f" (yesterday {before['degrees']}°)"
        if day > 1 and not interrupt(f"send {text!r}?"):  # asks the caller
            text += ", not sent"
        else:
            text = send(text).result()
        # The caller gets the text, the next run on this thread gets `save` as its `previous`.
        return entrypoint.final(value=text, save={"day": day, "degrees": warmest})

    return report


def count() -> str:
    """Return how often each function ran since the last call."""
    shown = ", ".join(f"{name} {calls[name]}" for name in ("report", "measure", "altitude", "send"))
    calls.clear()
    return f"  ran: {shown}"


def main(cities: list[str]) -> None:
    """Run three days."""
    app = build()
    thread: Config = {"configurable": {"thread_id": "weather"}}
    try:
        app.invoke(cities, thread)
    except ConnectionError as error:
        print(f"stopped: {error}\n{count()}")
    broken["on"] = False
    print("the same run again, from where it stopped")
    print(app.invoke(None, thread))  # no new input: go on with what is stored
    print(count())
    for yes in (True, False):
        question = app.invoke(cities, thread)["__interrupt__"][0]
        print(f"asked: {question.value}\n{count()}")
        print(app.invoke(Command(resume=yes), thread))
        print(count())


if __name__ == "__main__":
    main(sys.argv[1:] or ["Rome", "Helsinki"])
