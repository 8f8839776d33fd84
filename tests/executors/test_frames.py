"""Frames: a message is received whole or not at all, and only under its call's id."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

import pytest

from stategraph.executors.frames import (
    ANSWER,
    EVENT,
    HEAD,
    LONGEST,
    MARK,
    DamagedFrame,
    Frame,
    Frames,
    new_call_id,
)

ID, OTHER = b"0" * 16, b"1" * 16
ONE = HEAD.pack(MARK, ID, ANSWER, 3) + b"one" + ID


def frames_of(end: socket.socket):
    """What never waits."""

    def wait(events, due):
        poll = select.poll()
        poll.register(end, events)
        if not poll.poll(0):
            raise TimeoutError

    end.setblocking(False)
    return Frames(end, wait)


@pytest.fixture
def ends():
    """An end to write bytes to, and the frames that come of them."""
    there, here = socket.socketpair()
    with there, here:
        yield there, frames_of(here)


def test_each_call_has_an_id_of_its_own():
    assert len({new_call_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize("cut", range(len(ONE)))
def test_a_frame_is_received_once_it_is_whole(ends, cut):
    there, frames = ends
    there.sendall(ONE[:cut])
    with pytest.raises(TimeoutError):
        frames.receive(ID)
    there.sendall(ONE[cut:] + ONE)
    assert frames.receive(ID) == frames.receive() == Frame(ID, ANSWER, b"one")
    assert frames.is_quiet


@pytest.mark.parametrize("cut", range(len(ONE)))
def test_a_frame_that_is_cut_is_none(ends, cut):
    there, frames = ends
    there.sendall(ONE[:cut])
    there.close()
    with pytest.raises(EOFError):
        frames.receive(ID)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"x" * 100, "not a frame"),
        (ONE[1:] + ONE, "not a frame"),
        (HEAD.pack(MARK, ID, ANSWER, LONGEST + 1), "not a frame"),
        (HEAD.pack(MARK, OTHER, ANSWER, 3), "of another call"),
        (HEAD.pack(MARK, ID, ANSWER, 4) + b"one" + ID + ONE, "does not end after its 4 bytes"),
        (HEAD.pack(MARK, ID, ANSWER, 2) + b"one" + ID, "does not end after its 2 bytes"),
        (HEAD.pack(MARK, ID, ANSWER, 3) + b"one" + OTHER, "does not end after its 3 bytes"),
    ],
)
def test_what_is_no_frame_of_this_call_is_never_received(ends, sent, why):
    there, frames = ends
    there.sendall(sent)
    for _ in range(2):
        with pytest.raises(DamagedFrame, match=why):
            frames.receive(ID)


def test_memory_grows_with_received_bytes_and_not_with_the_announced_size(ends):
    there, frames = ends
    there.sendall(HEAD.pack(MARK, ID, ANSWER, LONGEST) + b"a little")
    with pytest.raises(TimeoutError):
        frames.receive(ID)
    assert len(frames._unread) == HEAD.size + 8


@pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 5_000_000])
def test_what_does_not_fit_into_the_pipe_is_sent_as_there_is_room(ends, size):
    there, frames = ends
    reader = frames_of(there)
    sent = [Frame(ID, EVENT, bytes(size)), Frame(ID, ANSWER, b"end")]
    for frame in sent:
        frames.put(frame)
    found = []
    while len(found) < 2:
        with suppress(TimeoutError):
            frames.flush()
        with suppress(TimeoutError):
            found.append(reader.receive(ID))
    assert found == sent and frames.is_quiet and reader.is_quiet
