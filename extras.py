"""What is loaded when it is first asked for: names of a package, and the optional parts, with what
to install for one, as error texts say it. Imports nothing of the package until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports a module when one of its names is first used.

    Args:
        homes: by name the module that has it, such as ".queue".
    """

    def load(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load


def install_command(extra: str) -> str:
    """The commands that bring an extra, for a checkout and for a wheel.

    >>> install_command("rich")
    'pip install -e ".[rich]" in a checkout, or pip install "FILE.whl[rich]"'
    """
    return f'pip install -e ".[{extra}]" in a checkout, or pip install "FILE.whl[{extra}]"'
