"""The other side of `processes.py`: what a process of ours does. It serves calls, one at a time.

A node may fork. Then its child has all that this process has, but only this process may use the socket: the child of a
fork closes it, and ends where the function ends (`worker.serve`). Otherwise it would take calls that are not its own,
and its answers would be taken for those of later calls.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from socket import socket

from .frames import ANSWER, CALL, EVENT, PART, DamagedFrame, Frame, Frames
from .worker import serve

DAMAGED = os.EX_PROTOCOL
"""The exit code of a process that was sent what is no frame."""


def main(end: int, driver: int) -> None:
    """Serve calls until the driver has gone.

    Args:
        end: the file descriptor of our end of the socket.
        driver: the driver's process id.
    """
    os.set_inheritable(end, False)  # it came open through `exec`; it is not for programs that a node starts
    frames = Frames(socket(fileno=end))
    os.register_at_fork(after_in_child=frames.close)
    threading.Thread(target=_end_with_driver, args=(end, driver), daemon=True).start()
    lock = threading.Lock()
    parts: dict[int, bytes] = {}
    try:
        while True:
            payload, wanted, call = _receive(frames, parts)
            _answer(frames, lock, call, payload, [parts[number] for number in wanted])
    except DamagedFrame as error:
        print(f"stategraph: a worker process ends: {error}", file=sys.stderr)
        os._exit(DAMAGED)
    except (EOFError, OSError):
        return


def _receive(frames: Frames, parts: dict[int, bytes]) -> tuple[bytes, list[int], bytes]:
    """The next call: its payload, the numbers of its parts, and its id. Its new parts are added, those gone dropped."""
    call, kind, header = frames.receive()
    if kind != CALL:
        raise DamagedFrame(f"its pipe brings a frame of kind {kind!r} where a call begins")
    payload, wanted, new, gone = pickle.loads(header)
    for number in gone:
        del parts[number]
    for number in new:
        _, kind, parts[number] = frames.receive(call)
        if kind != PART:
            raise DamagedFrame(f"its pipe brings a frame of kind {kind!r} where a part of a call belongs")
    return payload, wanted, call


def _answer(frames: Frames, lock: threading.Lock, call: bytes, payload: bytes, parts: list[bytes]) -> None:
    """Serve a call. What a thread that it left behind tells afterwards is dropped: it would come amid the next call."""
    over = False

    def tell(event: bytes) -> None:
        with lock:
            if not over:
                frames.put(Frame(call, EVENT, event))
                frames.flush()

    answer = serve(payload, parts, tell)
    with lock:
        over = True
        frames.put(Frame(call, ANSWER, answer))
        frames.flush()


def _end_with_driver(end: int, driver: int) -> None:
    """End when the driver has gone, in the middle of a call as well: nobody would take its result, and another driver
    may be running it by then. What the call has started ends with it, for the same reason."""
    poll = select.poll()
    try:
        poll.register(os.pidfd_open(driver), select.POLLIN)
    except (AttributeError, OSError):  # this system has none, or there is no driver any more
        poll.register(end, 0)  # that it was closed: later, if another process holds the driver's end
    poll.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
