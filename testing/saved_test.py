"""The text of a test that replays a stored thread from its recording: for the command `stategraph
pytest` and for the page of a server."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from io import BytesIO
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile

from ..checkpoint.base import RunnableConfig, coordinates
from ..graph.loader import NotFoundError
from ..pregel.app import Pregel
from ..pregel.program.program import is_async
from .recorder import list_nodes
from .recording import format_json
from .thread_reader import read_thread

_TEST: Final = '''\
"""A thread runs as it was stored. Written by stategraph."""

# The thread was {thread!r}.

{imports}from pathlib import Path

from stategraph.testing import find_graph, {replay}

HERE = Path(__file__)
GRAPH = find_graph({target})

# These nodes do not run: they give what was stored. Delete a name to run the node for real.
RECORDED = [
{recorded}]


def test_{name}() -> None:
    {call}
'''


def name_test(thread: str) -> str:
    """Return the name of the test of a thread, without its `test_`."""
    return f"thread_{re.sub(r'[^a-z0-9]+', '_', thread.lower()).strip('_')[:100] or 'stored'}"


def write_test(
    graph: Pregel[Any, Any, Any, Any], thread: str, target: str, real: Collection[str] = ()
) -> str:
    """Return the test. Its recording stands beside it, under the same name with `.json`.

    Args:
        target: how the test finds the graph, as a Python expression.
        real: the nodes that the test really runs.

    Raises:
        NotFoundError: the graph has no such node.
    """
    nodes = list_nodes(graph)
    for name in real:
        if name not in nodes:
            known = ", ".join(map(repr, nodes))
            raise NotFoundError(f"--run {name}: the graph has no such node; known: {known}")
    recorded = "".join(f"    {quote(node)},\n" for node in nodes if node not in real)
    call = 'replay(HERE.with_suffix(".json"), GRAPH, recorded=RECORDED)'
    wait = is_async(graph.program)
    return _TEST.format(
        thread=thread,
        imports="import asyncio\n" if wait else "",
        replay="areplay" if wait else "replay",
        target=target,
        recorded=recorded,
        name=name_test(thread),
        call=f"asyncio.run(a{call})" if wait else call,
    )


def zip_test(app: Pregel[Any, Any, Any, Any], config: RunnableConfig, target: str) -> bytes:
    """Return a ZIP file with the test of a stored thread, and its recording. The test finds the
    graph where `target` names it, from the folder in which pytest runs.

    Raises:
        ThreadError: as `read_thread`.
    """
    thread = coordinates(config)[0]
    found = read_thread(app, config)
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as file:
        stem = f"test_{name_test(thread)}"
        file.writestr(f"{stem}.py", write_test(app, thread, quote(target)))
        file.writestr(f"{stem}.json", format_json(found.to_json()) + "\n")
    return content.getvalue()


def quote(text: str) -> str:
    """Return a text as a Python expression, in double quotes."""
    return json.dumps(text, ensure_ascii=False)
