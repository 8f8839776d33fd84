"""The optional parts of the package: where the engine finds them, and what to install for one, as
error texts say it. Imports nothing of the package until it is asked for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

PARTS: Final = {
    "drawing": ".visualize.draft",
    "progress": ".visualize.live.calls",
    "placement": ".executors.placement",
    "langchain": ".compat.langchain.callbacks",
}
"""Where each part is that `pregel` and `graph` ask for."""
LISTENERS: Final = {"langchain_core.callbacks": "langchain"}
"""Which part finds the listeners that a library has to a run, by the module of the library that
must be loaded for that."""


@cache
def load_part(name: str) -> Any:
    """Return the module of an optional part, imported when it is first asked for."""
    return import_module(PARTS[name], __package__)


def install_command(extra: str) -> str:
    """The commands that bring an extra, for a checkout and for a wheel.

    >>> install_command("rich")
    'pip install -e ".[rich]" in a checkout, or pip install "FILE.whl[rich]"'
    """
    return f'pip install -e ".[{extra}]" in a checkout, or pip install "FILE.whl[{extra}]"'
