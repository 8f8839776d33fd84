"""Random graphs on ours and on the released peer (LangGraph), as a black box: the same supersteps, the same state.

What our design mends is left out of the graphs, line by line in `random_graphs`. `STATEGRAPH_EXAMPLES=5000` looks longer,
`STATEGRAPH_PEER_PYTHON` names another Python to find the peer in, `STATEGRAPH_REQUIRE_PEER=1` forbids to skip.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kit.graph_specs import Described, build, is_matter_of_time, whole_story
from kit.programs import find_peer
from kit.random_graphs import graphs

import stategraph

HERE = Path(__file__).resolve().parent
EXAMPLES = int(os.environ.get("STATEGRAPH_EXAMPLES", 4 * settings.default.max_examples))
PATIENCE = 60  # seconds for one graph; it takes some hundredths

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")  # random graphs need not make sense


class Peer:
    """The other engine, in its own process."""

    def __init__(self, python):
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(HERE / "peer_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answers = queue.SimpleQueue()
        self._last_words = []
        self._ears = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._hear_errors, daemon=True),
        ]
        for ear in self._ears:
            ear.start()

    def _listen(self):
        for line in self._process.stdout or ():
            self._answers.put(line)
        self._answers.put("")

    def _hear_errors(self):
        for line in self._process.stderr or ():
            self._last_words[-30:] = [*self._last_words[-29:], line]

    def tell(self, graph: Described, is_async):
        """The story of this graph there."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its last words say why
            self._process.stdin.write(json.dumps({"graph": graph, "is_async": is_async}) + "\n")
            self._process.stdin.flush()
        answer = self._answers.get(timeout=PATIENCE)
        if not answer:
            self._ears[1].join(timeout=1)
            pytest.fail("the peer's process has ended:\n" + "".join(self._last_words))
        told = json.loads(answer)
        assert isinstance(told, list), told
        return told

    def close(self):
        """End the process and what listens to it."""
        assert self._process.stdin and self._process.stdout and self._process.stderr
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for ear in self._ears:
            ear.join()
        self._process.stdout.close()
        self._process.stderr.close()


@pytest.fixture(scope="module")
def peer():
    found = Peer(find_peer())
    yield found
    found.close()


def comparable(ours, theirs, is_async):
    """Both stories as far as they can be the same."""
    mine, other = [], []
    for a, b in zip(ours, theirs, strict=False):
        errors = a.get("error"), b.get("error")
        if "GraphRecursionError" in errors:
            # D2: they take one superstep more before they raise, and more still when the call resumes another.
            if errors[0] == errors[1] and not mine:
                count = len(a["steps"]) - 1  # the last may have been cut short by a nested graph that loops
                shown = min(len(a["values"]), len(b["values"]))
                mine.append((a["steps"][:count], a["values"][:shown]))
                other.append((b["steps"][:count], b["values"][:shown]))
            return mine, other
        if None not in errors and errors[0] != errors[1]:
            # D7: if several tasks fail, they raise the first to finish.
            return [*mine, (a["steps"], a["values"])], [*other, (b["steps"], b["values"])]
        mine.append(a)
        other.append(b)
        if is_async and errors == ("Boom", "Boom"):
            # D7: a task cancelled there between its writes and its router counts as finished, so that resuming
            # forgets where it was to go.
            return mine, other
    if len(ours) != len(theirs):
        return [*mine, len(ours)], [*other, len(theirs)]
    return mine, other


@pytest.mark.trial
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(graph=graphs(peer=True, failures=True), is_async=st.booleans())
def test_random_graphs_run_as_on_the_peer(peer, graph, is_async):
    assume(not orders_deferred(graph))
    theirs = peer.tell(graph, is_async)
    ours = whole_story(graph, stategraph, is_async=is_async)
    assume(not is_matter_of_time(ours, theirs))
    mine, other = comparable(ours, theirs, is_async)
    assert mine == other


def orders_deferred(graph: Described):
    """Whether deferred nodes wake in order of dependency here, and all together there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = build(graph, stategraph).program
    return any(each.flow is not None for each in (program, *(nested.program for nested in program.nested.values())))
