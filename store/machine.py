"""Which machine this process runs on, for what means something only there. Nothing is opened
here."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@cache
def this_machine() -> str:
    """The same for all processes that share a kernel, in whatever containers."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return platform.node()


def this_network() -> str:
    """The same for all processes for which `localhost` is the same."""
    try:
        return f"{this_machine()} {os.stat(_NETWORK).st_ino}"
    except OSError:
        return this_machine()
