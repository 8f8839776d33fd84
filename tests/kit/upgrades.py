"""Threads that stop at each place of a graph, and what becomes of them if they really go on under another one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from kit.flow_cases import Case
from kit.flow_graphs import build
from kit.graphs import read_words
from stategraph import Command, GraphChangedError, UnknownInterruptError
from stategraph.checkpoint import UnknownTypeError

MOST_STOPS = 12


class Stopped(NamedTuple):
    """A thread that has stopped.

    Attributes:
        asked: the ids of the questions that wait.
        end: what becomes of it under its own graph; see `go_on`.
    """

    id: str
    asked: tuple[str, ...]
    end: tuple[str, Any]


def compiled(text, script, saver, **options):
    """A graph in one line, whatever compile says of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(text, script).compile(saver, **options)


def config_of(thread_id):
    """A thread whose tasks run one at a time: which node reaches a join first must not be a race."""
    return {"configurable": {"thread_id": thread_id}, "max_concurrency": 1}


def stopped_threads(case: Case, saver, **options):
    """Threads of the case's graph, one stopped before each superstep; at a failure or a question too."""
    app, found = compiled(case.graph, case.script, saver, **options), []
    given = {"log": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for stop in range(MOST_STOPS):
            try:
                app.invoke(given, config_of("run"), interrupt_before="*")
            except Exception:
                pass
            given = None
            if not app.get_state(config_of("run")).next:
                break
            name = f"stop {stop}"
            saver.copy_thread("run", name)
            found.append(look_at(app, saver, name))
    return found


def look_at(app, saver, name):
    """A thread with what becomes of it."""
    asked = tuple(question.id for question in app.get_state(config_of(name)).interrupts)
    thread = Stopped(name, asked, ("", None))
    return thread._replace(end=go_on(app, saver, thread))


def go_on(app, saver, thread: Stopped):
    """What becomes of a copy of a thread: ("ended", its log), ("failed", the error's name), or ("refused", the error)
    if the graph cannot do what is stored, or does not know a question that waits.
    """
    twin = f"{thread.id} {id(app)}"
    saver.copy_thread(thread.id, twin)
    config, asked = config_of(twin), thread.asked
    given = Command(resume=dict.fromkeys(asked, "yes")) if asked else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for _ in range(MOST_STOPS):
                app.invoke(given, config)
                state = app.get_state(config)
                if not state.next:
                    break
                open_ = state.interrupts
                given = Command(resume={each.id: "yes" for each in open_}) if open_ else None
            return "ended", sorted(map(str, app.get_state(config).values.get("log", [])))
        except (GraphChangedError, UnknownInterruptError, UnknownTypeError, ValidationError) as error:
            return "refused", error
        except Exception as error:
            return "failed", type(error).__name__
        finally:
            saver.delete_thread(twin)


def rename_node(builder, name):
    """The builder, one of whose nodes now has another name: for stored threads it is gone."""

    def other(each):
        return f"new {each}" if each == name else each

    builder.nodes = {other(each): spec for each, spec in builder.nodes.items()}
    builder.edges = {(other(a), other(b)) for a, b in builder.edges}
    builder.joins = [replace(each, sources=tuple(map(other, each.sources)), target=other(each.target)) for each in builder.joins]
    for branches in builder.branches.values():
        for key, each in branches.items():
            branches[key] = each._replace(ends={result: other(end) for result, end in each.ends.items()})
    return builder


def mutations(case: Case):
    """Other versions of a case's graph, each with its script."""
    parts = case.graph.split()
    names = [*read_words(case.graph)[1]["names"]]
    yield case.graph, case.script
    for place in range(len(parts)):
        yield " ".join(parts[:place] + parts[place + 1 :]), case.script
    for place, part in enumerate(parts):
        for kind in ("any", "all", "reachable", "2"):
            if part.startswith("[") and f"]{kind}>" not in part:
                sources, target = part[1:].split("]")
                changed = f"[{sources}]{kind}>{target.split('>')[1]}"
                yield " ".join([*parts[:place], changed, *parts[place + 1 :]]), case.script
        if part.startswith("["):
            wider = part.replace("[", "[extra,")
            yield " ".join([*parts[:place], wider, *parts[place + 1 :], "S>extra"]), case.script
    for name in names:
        yield f"{case.graph} defer:{name}", case.script
        yield f"{case.graph} {name}>extra", case.script
        yield f"{case.graph} {name}>END", case.script
        yield f"{case.graph} [{names[0]},extra]any>{name}", case.script  # its tasks have other ids


def check(verdict, before, after):
    """Whether what has become of a thread fits its verdict.

    Args:
        before: what becomes of it under the old graph; None if the verdict was made without one.
    """
    if verdict == "same" and before is not None:
        return after == before
    return (verdict == "breaks") == (after[0] == "refused")
