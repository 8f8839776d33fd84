"""Functions of nodes that write into their worker's pipe, as a node can that means harm, or an extension that is broken."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading

from kit import forking_nodes
from kit.forking_nodes import State, answer
from stategraph.executors.frames import (
    ANSWER,
    CALL,
    EVENT,
    HEAD,
    LONGEST,
    MARK,
    Frame,
    Frames,
    new_call_id,
)
from stategraph.executors.pickling import dumps
from stategraph.executors.protocol import CallResult


def pipe():
    """The worker's end, in a worker."""
    (found,) = (each for each in gc.get_objects() if isinstance(each, Frames))
    return found


def writes_no_frame(state: State):
    pipe()._end.sendall(b"x" * 100)


def writes_too_long_a_frame(state: State):
    pipe()._end.sendall(HEAD.pack(MARK, _own_call(), ANSWER, LONGEST + 1))


def writes_a_frame_of_another_call(state: State):
    pipe().put(Frame(new_call_id(), ANSWER, b"of another call"))
    pipe().flush()


def writes_an_event_of_another_call(state: State):
    pipe().put(Frame(new_call_id(), EVENT, b"of another call"))
    pipe().flush()


def writes_amid_a_frame(state: State):
    """As two that write at once."""
    head = HEAD.pack(MARK, _own_call(), ANSWER, 1000)
    pipe()._end.sendall(head + b"a" * 500 + b"of another" + b"a" * 500 + _own_call())


def writes_a_call(state: State):
    pipe().put(Frame(_own_call(), CALL, b""))
    pipe().flush()


def cuts_its_answer(state: State):
    """A worker that dies amid its answer, while a child holds the pipe."""
    pipe()._end.sendall(HEAD.pack(MARK, _own_call(), ANSWER, 1_000_000) + b"a" * 500)
    forking_nodes.leaves_a_child_of_c(state)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs_up(state: State):
    os.close(pipe()._end.fileno())
    while True:
        signal.pause()


def _own_call():
    """The id of the call that is served."""
    frame = sys._getframe()
    while frame.f_code.co_name != "main":
        frame = frame.f_back
    return frame.f_locals["call"]  # type: ignore[no-any-return]


HOSTILE = {
    writes_no_frame: "its pipe delivered something that is not a frame: b'xxx.*; the worker was ended",
    writes_too_long_a_frame: "its pipe delivered something that is not a frame",
    writes_a_frame_of_another_call: "its pipe delivered a frame of another call",
    writes_an_event_of_another_call: "its pipe delivered a frame of another call",
    writes_amid_a_frame: "its pipe delivered a frame that does not end after its 1000 bytes",
    writes_a_call: "its pipe delivered a frame of kind b'c' in place of an answer",
    cuts_its_answer: "its process was ended by SIGKILL",
    hangs_up: "its process (closed the pipe|ended)",
}


def hostile(state: State):
    """Does as it is told, the first time or each time."""
    act, always = state["token"].split()
    if forking_nodes.first(state) or always == "True":
        globals()[act](state)
    return answer(state)


def writes_later(state: State):
    """A child of a fork of which Python is not told, and which knows how frames are written."""
    frames, call = pipe(), _own_call()
    parent_works, goes = os.pipe()
    if forking_nodes.fork_in_c() == 0:
        os.close(goes)
        os.read(parent_works, 1)  # until the parent has gone on
        frames.put(Frame(call, ANSWER, b"of a call that is over"))
        frames.flush()
        os._exit(0)
    os.close(parent_works)
    threading.Timer(0.05, os.close, (goes,)).start()
    return answer(state)


def child_speaks_at_last(state: State):
    child = os.fork()
    if child == 0:
        sys.exit("last words")
    return answer(state, forking_nodes.ended(child))


def lists_open_files(state: State):
    listed = subprocess.check_output(["ls", "-l", "/proc/self/fd"], text=True, close_fds=False)
    return answer(state, [line.rpartition("-> ")[2] for line in listed.splitlines()])


def answers_twice(state: State):
    """As a child that comes back: whoever takes answers by their order gives the second to the next call."""
    first = CallResult(value=answer(state))
    pipe().put(Frame(_own_call(), ANSWER, dumps(first)))
    pipe().flush()
    return answer(state)
