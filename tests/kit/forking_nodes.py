"""Functions of nodes that fork, in every way in which a child may come back. Each call brings a token and must get it
back, with the process that answers. It imports nothing that a worker has no use for.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from typing_extensions import TypedDict

from stategraph import START, StateGraph, get_stream_writer

PATIENCE = 60.0
"""Seconds after which a child that has not ended never will."""
GONE_ON = 99
"""The exit code of a child that had to be killed because it went on."""


class State(TypedDict, total=False):
    token: str
    folder: str
    answers: Annotated[list, operator.add]


def answer(state, *more):
    """The token, who answers (in a child the process differs from its session), and what else was seen."""
    return {"answers": [(state["token"], os.getpid() == os.getsid(0), *more)]}


def ended(child, patience=PATIENCE):
    """The exit code of a child."""
    due = time.monotonic() + patience
    while time.monotonic() < due:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return GONE_ON


def plain(state):
    return answer(state)


def child_returns(state):
    child = os.fork()
    if child == 0:
        return {"answers": [("of a child",)]}
    return answer(state, ended(child))


def child_raises(state):
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # what it says of its error is not for the test's output
        raise RuntimeError("of a child")
    return answer(state, ended(child))


def child_exits(state):
    child = os.fork()
    if child == 0:
        sys.exit(7)
    return answer(state, ended(child))


def child_tells(state):
    """Its child sends events for as long as it may, and says with its exit code what came of it."""
    tell = get_stream_writer()
    child = os.fork()
    if child == 0:
        try:
            tell("of a child")
        except RuntimeError as error:
            os._exit(3 if "forked" in str(error) else 4)
        os._exit(0)
    code = ended(child)
    tell(state["token"])
    return answer(state, code)


async def child_returns_to_a_loop(state):
    child = os.fork()
    if child == 0:
        return {"answers": [("of a child",)]}
    return answer(state, ended(child))


def fork_in_c():
    """A fork of which Python is not told, as an extension module makes it. The child of a process with many threads that
    run Python may wait for one of them for ever."""
    return int(ctypes.PyDLL(None).fork())


def child_of_c_returns(state):
    child = fork_in_c()
    if child == 0:
        return {"answers": [("of a child",)]}
    return answer(state, ended(child))


def _double(n):
    return 2 * n, os.getpid()


def uses_multiprocessing(state):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return answer(state, [n for n, _ in pool.map(_double, range(4))])


def uses_a_process_pool(state):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return answer(state, [n for n, _ in pool.map(_double, range(4))])


def uses_a_thread_pool(state):
    with ThreadPoolExecutor(2) as pool:
        return answer(state, [n for n, _ in pool.map(_double, range(4))])


def uses_preexec(state):
    return answer(state, subprocess.run(["true"], preexec_fn=os.getpid, close_fds=False).returncode)


def leaves_a_child(state):
    """Leaves a child behind that waits for ever."""
    return answer(state, _waiting_child(os.fork))


def leaves_a_child_of_c(state):
    """The same; it holds all that was open."""
    return answer(state, _waiting_child(fork_in_c))


def _waiting_child(fork):
    child = fork()
    if child == 0:
        while True:
            signal.pause()
    return child


def dies_beside_a_child(state):
    """Dies; an extension's child holds all that was open, so that no file and no pipe ends."""
    is_first = first(state)
    child = _waiting_child(fork_in_c)
    with Path(state["folder"], f"children-{state['token']}").open("a") as file:
        file.write(f"{child}\n")
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(state)


def first(state):
    """Whether this call came for the first time."""
    try:
        Path(state["folder"], f"first-{state['token']}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


RAW = {
    child_returns: (0,),
    child_raises: (1,),
    child_exits: (7,),
    child_tells: (3,),
    child_returns_to_a_loop: (0,),
}
"""Nodes that fork by hand, and what each has seen in the end: the exit code of its child."""
FORKING = {
    **RAW,
    child_of_c_returns: (0,),
    uses_multiprocessing: ([0, 2, 4, 6],),
    uses_a_process_pool: ([0, 2, 4, 6],),
    uses_a_thread_pool: ([0, 2, 4, 6],),
    uses_preexec: (0,),
}
"""All of them."""


def graph_of(node, **options):
    """A graph of one such node."""
    return StateGraph(State).add_node(node.__name__, node).add_edge(START, node.__name__).compile(**options)
