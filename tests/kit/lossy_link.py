"""A network link that delays and drops packets, where the kernel has no `netem`: two taps, and a thread between them."""

import fcntl
import heapq
import os
import selectors
import struct
import threading
import time
from random import Random

SET = 0x400454CA  # TUNSETIFF of linux/if_tun.h
TAP = 0x1002  # IFF_TAP, IFF_NO_PI


def tap(name):
    """A network card in this thread's namespace, whose cable is the file that is returned. Gone once that is closed."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, SET, struct.pack("16sH", name.encode(), TAP))
    return end


class BadLine:
    """Carries frames between two cards until it is closed.

    Args:
        ends: the cables of both cards; closed with it.
        delay: seconds, one way.
        loss: how many of the frames are lost, from 0 to 1.
    """

    def __init__(self, ends, delay, loss):
        self._ends, self._delay, self._loss = ends, delay, loss
        self._random = Random(5)
        self._under_way = []  # due, number, where to, what
        self._over, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="bad-line")
        self._thread.start()

    def close(self):
        """Both cards vanish."""
        os.close(self._stop)
        self._thread.join()
        for each in (*self._ends, self._over):
            os.close(each)

    def _carry(self):
        number, (one, other) = 0, self._ends
        with selectors.DefaultSelector() as selector:
            for each in (one, other, self._over):
                selector.register(each, selectors.EVENT_READ)
            while True:
                left = self._under_way[0][0] - time.monotonic() if self._under_way else None
                for ready in [key.fd for key, _ in selector.select(left)]:
                    if ready == self._over:
                        return
                    number += 1
                    self._take(ready, other if ready == one else one, number)
                self._deliver()

    def _take(self, source, target, number):
        frame = os.read(source, 65536)
        if self._random.random() >= self._loss:
            heapq.heappush(self._under_way, (time.monotonic() + self._delay, number, target, frame))

    def _deliver(self):
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(self._under_way)
            try:
                os.write(target, frame)
            except OSError:
                pass  # its card is not up: lost
