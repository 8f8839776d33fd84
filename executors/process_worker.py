"""What a worker process of `processes.py` does: it serves calls, one at a time.

A node may fork. Then its child has all that this process has, but only this process may use the
socket: the child of a fork closes it, and ends where the function ends (`worker.serve`). Otherwise
it would take calls that are not its own, and its answers would be taken for those of later calls.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from socket import socket

from .frames import ANSWER, CALL, EVENT, PART, REQUEST, DamagedFrame, Frame, Frames
from .worker import serve

DAMAGED = os.EX_PROTOCOL
"""The exit code of a process that received something other than a frame."""


def main(end: int, driver: int) -> None:
    """Serve calls until the driver has gone.

    Args:
        end: the file descriptor of our end of the socket.
        driver: the driver's process id.
    """
    # It came open through `exec`, but is not for programs that a node starts.
    os.set_inheritable(end, False)
    frames = Frames(socket(fileno=end))
    os.register_at_fork(after_in_child=frames.close)
    threading.Thread(target=_end_with_driver, args=(end, driver), daemon=True).start()
    lock = threading.Lock()
    parts: dict[int, bytes] = {}
    try:
        while True:
            call, payload, wanted = _receive(frames, parts)
            _serve(frames, lock, call, payload, [parts[number] for number in wanted])
    except DamagedFrame as error:
        print(f"stategraph: a worker process ends because of: {error}", file=sys.stderr)
        os._exit(DAMAGED)
    except (EOFError, OSError):
        return


def _receive(frames: Frames, parts: dict[int, bytes]) -> tuple[bytes, bytes, list[int]]:
    """The next call: its id, its payload, and the numbers of its parts. Adds the parts that are new
    to `parts`, and drops those that the driver has no more."""
    call, kind, header = frames.receive()
    if kind != CALL:
        raise DamagedFrame(f"its pipe delivered a frame of kind {kind!r} where a call must begin")
    payload, wanted, new, gone = pickle.loads(header)
    for number in gone:
        del parts[number]
    for number in new:
        _, kind, parts[number] = frames.receive(call)
        if kind != PART:
            raise DamagedFrame(f"its pipe delivered a frame of kind {kind!r} inside a call")
    return call, payload, wanted


def _serve(
    frames: Frames, lock: threading.Lock, call: bytes, payload: bytes, parts: list[bytes]
) -> None:
    """Serve a call. Events that a thread of it sends after its end are dropped, and requests
    refused: they would come amid the next call."""
    over = False
    requesting = threading.Lock()

    def send(kind: bytes, body: bytes) -> None:
        frames.put(Frame(call, kind, body))
        frames.flush()

    def send_event(event: bytes) -> None:
        with lock:
            if not over:
                send(EVENT, event)

    def send_request(request: bytes) -> bytes:
        with requesting:  # one at a time, so that the next reply is the one to it
            with lock:
                if over:
                    raise RuntimeError("the call of this node has ended: nobody waits for it")
                send(REQUEST, request)
            return frames.receive(call).body

    answer = serve(payload, parts, send_event, send_request)
    with requesting, lock:  # a thread that still waits for a reply gets it: it is not a call
        over = True
        send(ANSWER, answer)


def _end_with_driver(end: int, driver: int) -> None:
    """End when the driver has gone, in the middle of a call as well: nobody would take its result,
    and another driver may be running it by then. What the call has started ends with it, for the
    same reason."""
    poll = select.poll()
    try:
        poll.register(os.pidfd_open(driver), select.POLLIN)
    except (AttributeError, OSError):  # this system has no pidfd, or there is no driver any more
        # Then the driver's end being closed is the sign. It comes later if another process holds
        # that end.
        poll.register(end, 0)
    poll.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
