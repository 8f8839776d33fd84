"""Makes `import langgraph...` find the modules that `table` describes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any, Final

from .table import MODULES, find_name, public_names

ROOT: Final = "langgraph"
SEPARATE: Final = ("prebuilt",)
"""Packages below `langgraph` that come in distributions of their own, and are used as they are."""
TOOL_NODE: Final = f"{ROOT}.prebuilt.tool_node"
SHARED: Final = (ROOT, f"{ROOT}.cache", f"{ROOT}.checkpoint", f"{ROOT}.store")
"""Packages in which others publish modules: what the table does not have there is theirs."""


class TableLoader(Loader):
    """Makes a module whose names are looked up in the table when they are first used."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__
        names = public_names(path)

        def get(name: str) -> Any:
            if name.startswith("__") and name not in names:
                raise AttributeError(name)
            value = find_name(path, name)
            setattr(module, name, value)
            return value

        module.__doc__ = f"The public names of {path}, served by stategraph."
        module.__all__ = names  # type: ignore[attr-defined]
        module.__getattr__ = get  # type: ignore[method-assign]
        module.__dir__ = lambda: [*names]  # type: ignore[method-assign]


class Finder(MetaPathFinder):
    """Serves the modules of the table, and the real packages of `SEPARATE` and in `SHARED`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        root, _, below = fullname.partition(".")
        if root != ROOT:
            return None
        parent = fullname.rpartition(".")[0]
        if below.partition(".")[0] in SEPARATE or (parent in SHARED and fullname not in MODULES):
            real = find_real(fullname, path)
            if real is not None and fullname == TOOL_NODE:
                _use_own_executor(real)
            if real is not None or fullname not in MODULES:
                return real
        if fullname in MODULES:
            return spec_from_loader(fullname, TableLoader(), is_package=True)
        return None


def find_real(fullname: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Find an installed module; those in a package of the table lie in any folder of the path."""
    parent = fullname.rpartition(".")[0]
    if parent in SHARED:
        path = [f"{entry}/{parent.replace('.', '/')}" for entry in sys.path]
    return PathFinder.find_spec(fullname, path)


def _use_own_executor(spec: ModuleSpec) -> None:
    """Let LangGraph's tool node call a single tool without a thread."""
    loader: Any = spec.loader
    load = loader.exec_module

    def exec_module(module: Any) -> None:
        from .tools import ToolExecutor

        load(module)
        module.get_executor_for_config = ToolExecutor

    loader.exec_module = exec_module


_FINDER = Finder()


def install() -> None:
    """Let `import langgraph...` find this engine from now on. Calling it again changes nothing.

    Raises:
        ImportError: the real package was imported before.
    """
    if is_installed():
        return
    module = sys.modules.get(ROOT)
    if module is not None or any(name.startswith(ROOT + ".") for name in sys.modules):
        raise ImportError(
            "langgraph must be imported after stategraph.compat.langgraph, but the real package "
            "is loaded already. Make `import stategraph.compat.langgraph` the first import of the "
            "program, or start it by `python -m stategraph langgraph app.py`."
        )
    sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Let `import langgraph...` find the real package again. Modules that have imported names of
    ours keep them."""
    if not is_installed():
        return
    sys.meta_path.remove(_FINDER)
    for name in [n for n in sys.modules if n == ROOT or n.startswith(ROOT + ".")]:
        del sys.modules[name]


def is_installed() -> bool:
    """Whether `import langgraph...` finds this engine."""
    return _FINDER in sys.meta_path
