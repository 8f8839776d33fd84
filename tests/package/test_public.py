"""The public API: what can be imported, whether it is documented, whether its examples run, and what it does not
load.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from kit.programs import printed

import stategraph

FACES = ["stategraph", *(f"stategraph.{room}" for room in ("channels", "pregel", "checkpoint", "store", "executors"))]
# Names the package promises; it may have more.
PROMISED = """
    StateGraph START END MessagesState add_messages RemoveMessage IsLastStep RemainingSteps entrypoint task
    Send Command Interrupt interrupt Overwrite RetryPolicy CachePolicy TimeoutPolicy
    Pregel NodeBuilder StateSnapshot PregelTask StateUpdate InMemorySaver InMemoryStore InMemoryCache
    Runtime RunControl RunnableConfig get_config get_store get_stream_writer get_runtime
    GraphRecursionError InvalidUpdateError EmptyInputError EmptyChannelError GraphInterrupt
"""
# Names that a module's head leaves behind.
HEAD = {"annotations", "TYPE_CHECKING", "Any"}
LAZY = ["networkx", "graphviz", "pydantic", "sqlite3", "psycopg", "multiprocessing", "langchain", "langchain_core", "langgraph"]
# Libraries that only some users install; modules that need them are skipped without them.
OPTIONAL = {"psycopg", "distributed", "ray", "langchain_core"}


def module_files(package, name):
    """Every module of a package and its file, found without importing any."""
    yield name, package / "__init__.py"
    for info in pkgutil.iter_modules([str(package)]):
        inner = f"{name}.{info.name}"
        if info.ispkg:
            yield from module_files(package / info.name, inner)
        elif inner != "stategraph.__main__":
            yield inner, package / f"{info.name}.py"


def all_modules():
    spec = find_spec("stategraph")
    assert spec is not None and spec.origin is not None, "not installed: run `make venv`"
    return dict(module_files(Path(spec.origin).parent, "stategraph"))


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in OPTIONAL:
            pytest.skip(f"{name} needs {missing.name}")
        raise


@pytest.mark.parametrize("face", FACES)
def test_a_face_lists_exactly_its_names(face):
    module = load(face)
    listed = list(module.__all__)
    assert len(listed) == len(set(listed)), "a name is listed twice"
    lazy = {name for name in listed if name not in vars(module)}  # loaded when first asked for
    lazily = set(getattr(module, "_LAZY", ()))  # some of them are found here but belong to other faces
    seen = lazy | {name for name in dir(module) if not name.startswith("_") and name not in HEAD}
    seen = {name for name in seen if not inspect.ismodule(getattr(module, name))} - (lazily - set(listed))
    assert set(listed) - {"__version__"} == seen
    star = {}
    exec(f"from {face} import *", star)
    assert set(listed) <= set(star)


def test_the_promised_names_are_there():
    assert set(PROMISED.split()) <= set(load("stategraph").__all__)


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_is_explained(face):
    module = load(face)
    values = {name: getattr(module, name) for name in module.__all__}
    silent = [
        name
        for name, value in values.items()
        if (inspect.isclass(value) or inspect.isroutine(value))
        # A dataclass without a docstring gets its signature for one.
        and (not value.__doc__ or value.__doc__.startswith(f"{name}("))
    ]
    assert not silent, f"no docstring: {silent}"


def with_examples():
    """The modules whose text has a prompt: doctest takes long to find that the others have none."""
    return [name for name, path in all_modules().items() if ">>> " in path.read_text()]


@pytest.mark.parametrize("name", with_examples())
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(load(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_every_module_can_be_loaded_where_what_it_needs_is_installed():
    for name in all_modules():
        try:
            load(name)
        except pytest.skip.Exception:
            pass


@pytest.mark.parametrize(
    ("name", "heavy"),
    [
        ("stategraph", {*LAZY}),
        ("stategraph.store", {"sqlite3", "numpy"}),
        ("stategraph.serve.app", {"httpx", "networkx", "psycopg"}),
    ],
)
def test_import_loads_nothing_heavy(name, heavy, tmp_path):
    load(name)  # where what it needs is installed
    code = f"import json, sys, {name}; print(json.dumps(sorted(sys.modules)))"
    assert not {module.partition(".")[0] for module in json.loads(printed(code, cwd=tmp_path))} & heavy


def test_a_name_of_another_room_is_found_here_too():
    for name, home in stategraph._LAZY.items():
        assert getattr(stategraph, name) is getattr(importlib.import_module(home), name)


def test_help_of_invoke_lists_its_options():
    text = load("stategraph").Pregel.invoke.__doc__
    options = load("stategraph.pregel.run.config").Options.__annotations__
    assert set(options) <= set(re.findall(r"`(\w+)`", text))
