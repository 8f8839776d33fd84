"""Frames: how calls, events and answers cross the socket between a driver and one of its processes.
Bytes only.

A frame names its call before and after its body. So nothing that another process has written into
the socket, or read out of it, is taken for an answer: either the name is not the one that is
expected, or the frame does not end where it says. Nothing is skipped and nothing searched for:
after one damaged frame the socket is of no more use.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Callable
from socket import socket
from typing import NamedTuple

CALL, PART, EVENT, ANSWER = b"c", b"p", b"e", b"."
REQUEST, REPLY = b"q", b"r"
"""The kinds: a call and its parts go to the worker; its events, its requests and its answer come
back. A reply to each request goes to the worker."""
MARK = b"sgf1"
HEAD = struct.Struct(">4s16scQ")
ID_BYTES = 16
LONGEST = 2**40
"""Bytes that no body exceeds: a frame that says so is not one of ours."""
READ_BYTES = 256 * 1024
"""Bytes to read at once: about what a socket holds. Memory is taken as bytes come, whatever length
a frame says."""
JOINED_BYTES = 64 * 1024
"""Bodies with fewer bytes are copied, to be sent in one call with head and tail."""

Wait = Callable[[int, float | None], None]
"""Waits until the socket can be read (`select.POLLIN`) or written (`select.POLLOUT`), or until a
deadline.

Args: the event, and the deadline by `time.monotonic()`; None for none.
Raises TimeoutError, or EOFError where the other side has ended."""


class DamagedFrame(Exception):
    """What came is not a frame, or not one of this call."""


class Frame(NamedTuple):
    """One message: the id of its call, its kind, and what it brings."""

    call: bytes
    kind: bytes
    body: bytes


def new_call_id() -> bytes:
    """An id that no other call has, in any process, and that nobody can guess."""
    return os.urandom(ID_BYTES)


def _no_wait(events: int, due: float | None) -> None:
    """The socket blocks by itself."""


class Frames:
    """One end of a socket.

    Args:
        wait: for a socket that does not block.
    """

    def __init__(self, end: socket, wait: Wait = _no_wait) -> None:
        self._end = end
        self._wait = wait
        self._unsent: deque[memoryview] = deque()
        self._unread = bytearray()

    def close(self) -> None:
        """Close this end, here only: a process that shares it keeps it."""
        self._end.close()

    def put(self, frame: Frame) -> None:
        """Queue a frame for the next `flush`."""
        call, kind, body = frame
        head = HEAD.pack(MARK, call, kind, len(body))
        chunks = (head + body + call,) if len(body) < JOINED_BYTES else (head, body, call)
        self._unsent.extend(map(memoryview, chunks))

    def flush(self, due: float | None = None) -> None:
        """Send what is queued. After a TimeoutError it may be called again, and goes on where it
        was.

        Raises:
            TimeoutError: the other side has not taken all of it.
            EOFError, OSError: the other side has ended.
        """
        while self._unsent:
            chunk = self._unsent[0]
            try:
                sent = self._end.send(chunk)
            except BlockingIOError:
                self._wait(select.POLLOUT, due)
                continue
            if sent < len(chunk):
                self._unsent[0] = chunk[sent:]
            else:
                self._unsent.popleft()

    def receive(self, call: bytes | None = None, due: float | None = None) -> Frame:
        """The next frame. After a TimeoutError it may be called again, and goes on where it was.

        Args:
            call: the id of the call that it must belong to; None for any.

        Raises:
            DamagedFrame: it belongs to another call, or is not a frame at all.
            TimeoutError: it has not come.
            EOFError, OSError: the other side has ended.
        """
        self._read(HEAD.size, due)
        mark, found, kind, size = HEAD.unpack_from(self._unread)
        if mark != MARK or size > LONGEST:
            head = bytes(self._unread[: HEAD.size])
            raise DamagedFrame(f"its pipe delivered something that is not a frame: {head!r}")
        if call is not None and found != call:
            raise DamagedFrame("its pipe delivered a frame of another call")
        end = HEAD.size + size
        self._read(end + ID_BYTES, due)
        if self._unread[end : end + ID_BYTES] != found:
            raise DamagedFrame(
                f"its pipe delivered a frame that does not end after its {size} bytes"
            )
        body = bytes(memoryview(self._unread)[HEAD.size : end])
        del self._unread[: end + ID_BYTES]
        return Frame(found, kind, body)

    def _read(self, size: int, due: float | None) -> None:
        """Read until at least so many bytes are buffered."""
        while len(self._unread) < size:
            self._wait(select.POLLIN, due)
            try:
                chunk = self._end.recv(READ_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                raise EOFError("the pipe was closed")
            self._unread += chunk

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is buffered, neither to be received nor to be sent."""
        return not self._unread and not self._unsent
