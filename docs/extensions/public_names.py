"""API pages: each public name is described once, from its docstring.

`.. public-names:: stategraph.channels` describes every name in that module's `__all__`. A name that
`stategraph` itself has is described on its page; the other pages link to it. A type in a signature
links to the name that users import, wherever its class is defined.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

MODULES = [
    "stategraph",
    "stategraph.graph",
    "stategraph.channels",
    "stategraph.checkpoint",
    "stategraph.checkpoint.sqlite",
    "stategraph.checkpoint.postgres",
    "stategraph.checkpoint.encryption",
    "stategraph.store",
    "stategraph.store.sqlite",
    "stategraph.store.postgres",
    "stategraph.executors",
    "stategraph.workers",
    "stategraph.prebuilt",
    "stategraph.otel",
    "stategraph.serve",
    "stategraph.visualize",
    "stategraph.pregel",
    "stategraph.testing",
    "stategraph.lab",
    "stategraph.upgrade",
]
"""The modules whose names are public, in the order in which a name finds its page."""


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module, in its own order."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
        ]
    return [name for name in listed if not name.startswith("__")]


def home_of_each() -> dict[str, str]:
    """Each public name with its module, and the name under which it is described."""
    homes: dict[str, str] = {}
    described: dict[tuple[int, str], str] = {}
    for module_name in MODULES:
        module = import_module(module_name)
        for name in names_of(module):
            full = f"{module_name}.{name}"
            homes[full] = described.setdefault((id(getattr(module, name)), name), full)
    return homes


HOMES = home_of_each()


def value_of(full: str) -> Any:
    module, _, name = full.rpartition(".")
    return getattr(import_module(module), name)


def defined_at() -> dict[str, str]:
    """Where each public class or function is defined, with the name under which it is described."""
    places = {}
    for home in dict.fromkeys(HOMES.values()):
        value = value_of(home)
        if inspect.isclass(value) or inspect.isroutine(value):
            places[f"{value.__module__}.{value.__qualname__}"] = home
    return places


PLACES = defined_at()
SHORT = {home.rpartition(".")[2]: home for home in reversed(HOMES.values())}

# Other packages' types are not linked to: the site is built without the network.
FOREIGN = {*sys.stdlib_module_names, "networkx", "psycopg", "psycopg_pool"}


def lines_for(full: str) -> list[str]:
    """The directive that describes one name."""
    value = value_of(full)
    if inspect.isclass(value):
        options = ["   :members:"]
        if issubclass(value, BaseException):
            options.append("   :show-inheritance:")
        return [f".. autoclass:: {full}", *options, ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {full}", ""]
    return [f".. autodata:: {full}", "   :no-value:", ""]


def table_of(names: list[str]) -> list[str]:
    """The names with the first sentence of each, above their descriptions."""
    if len(names) < 4:
        return []
    rows = [".. list-table::", "   :widths: 30 70", ""]
    for full in names:
        value, short = value_of(full), full.rpartition(".")[2]
        is_constant = not (inspect.isclass(value) or inspect.isroutine(value))
        text = constant_docs().get(short) if is_constant else inspect.getdoc(value)
        first = re.split(r"(?<=[.:])\s", " ".join((text or "").split("\n\n")[0].split()))[0]
        rows += [f"   * - :py:obj:`~{full}`", f"     - {quote_code(first.rstrip(':.'))}"]
    return [*rows, ""]


class PublicNames(SphinxDirective):
    """Every public name of a module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module_name = self.arguments[0]
        names = [f"{module_name}.{name}" for name in names_of(import_module(module_name))]
        here = [full for full in names if HOMES[full] == full]
        elsewhere = [HOMES[full] for full in names if HOMES[full] != full]
        lines = [*table_of(here), *(line for full in here for line in lines_for(full))]
        if elsewhere:
            links = ", ".join(f":py:obj:`~{full}`" for full in elsewhere)
            lines += [f"Also importable from ``{module_name}``: {links}.", ""]
        parent = nodes.Element()
        source = self.get_source_info()[0]
        self.state.nested_parse(StringList(lines, source), self.content_offset, parent)
        return parent.children


ATTRIBUTES = ("attribute", "property", "data")
TEXTS: dict[str, list[str]] = {}
"""The docstrings of attributes, while Napoleon is at them."""


@cache
def constant_docs() -> dict[str, str]:
    """The docstrings below constants. A constant's own `__doc__` is that of its type."""
    docs: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "stategraph" or not getattr(module, "__file__", None):
            continue
        body = ast.parse(inspect.getsource(module)).body
        for statement, below in pairwise(body):
            match statement, below:
                case (
                    ast.Assign(targets=[ast.Name(id)]) | ast.AnnAssign(target=ast.Name(id)),
                    ast.Expr(ast.Constant(str(text))),
                ):
                    docs.setdefault(id, text)
    return docs


def quote_code(text: str) -> str:
    """Docstrings quote code in single backticks, as Markdown does; a letter may follow directly."""
    text = re.sub(r"(?<![`:\\])`([^`]+)`(?!`)", r"``\1``\\ ", text)
    return re.sub(r"``\\ (?=[\s.,;:!?)\]'\"]|$)", "``", text)


SHARED = re.compile(r"( +)(\w+(?:, \w+)+): (.*)")


def share_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a docstring; one that describes several names, as `before, after: ...`, is
    kept for the first of them, and the others refer to it: Napoleon would repeat it for each."""
    waiting: list[str] = []
    for line in lines:
        found = SHARED.fullmatch(line)
        indent = len(line) - len(line.lstrip())
        if waiting and (found or not line or indent <= len(waiting[0]) - len(waiting[0].lstrip())):
            yield from waiting
            waiting = []
        if found:
            first, *others = found[2].split(", ")
            yield f"{found[1]}{first}: (and `{'`, `'.join(others)}`) {found[3]}"
            waiting = [f"{found[1]}{name}: see `{first}`." for name in others]
        else:
            yield line
    yield from waiting


def read_docstring(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Bring a docstring into the form that Napoleon and Sphinx read."""
    if what == "data":
        lines[:] = inspect.cleandoc(constant_docs().get(name.rpartition(".")[2], "")).split("\n")
    lines[:] = quote_code("\n".join(share_lines(lines))).split("\n")
    if what in ATTRIBUTES:
        TEXTS[name] = lines[:]


def keep_sentence(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes "By id: the node" for a type and its meaning; here it is a sentence."""
    if what in ATTRIBUTES:
        lines[:] = TEXTS.pop(name)


def show_constants(
    app: Any, what: str, name: str, of: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A default that is a constant of its module shows the value: `pool_size=10`."""
    known = getattr(inspect.unwrap(of), "__globals__", None) if inspect.isroutine(of) else None
    if not signature or not known:
        return signature, result

    def value(found: re.Match[str]) -> str:
        default = known.get(found[1])
        return f"={default!r}" if isinstance(default, (int, float, str)) else found[0]

    return re.sub(r"=([A-Z][A-Z_]+)\b", value, signature), result


def is_foreign(target: str) -> bool:
    """Whether a type is another package's; those imported for type checkers come without module."""
    if "." in target:
        return target.partition(".")[0] in FOREIGN
    homes = ("collections.abc", "contextlib", "datetime", "pathlib", "types", "typing", "uuid")
    return any(hasattr(import_module(home), target) for home in homes)


def is_internal(target: str) -> bool:
    """Whether a type is the engine's own: a type variable, or a record that users do not import."""
    home, _, name = target.rpartition(".")
    if home:
        return hasattr(sys.modules.get(home), name)
    ours = [each for place, each in sys.modules.items() if place.partition(".")[0] == "stategraph"]
    return any(name in vars(module) for module in ours)


def link_to_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """A type in a signature leads to the name that users import."""
    target = node.get("reftarget", "").removeprefix("~")
    home = PLACES.get(target) or SHORT.get(target.rpartition(".")[2])
    if node.get("refdomain") != "py":
        return None
    if home is None:
        known = is_foreign(target) or is_internal(target)
        return text if known else None
    shown = nodes.literal if isinstance(text, nodes.literal) else nodes.inline
    label = shown("", home.rpartition(".")[2])
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", home, node, label)


def drop_overloads(analyze: Callable[[ModuleAnalyzer], None]) -> Callable[[ModuleAnalyzer], None]:
    """Overloads are for type checkers: readers want the one signature with all parameters."""

    def analyze_without_overloads(self: ModuleAnalyzer) -> None:
        analyze(self)
        self.overloads = {}

    return analyze_without_overloads


def setup(app: Sphinx) -> dict[str, bool]:
    ModuleAnalyzer.analyze = drop_overloads(ModuleAnalyzer.analyze)
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
    app.connect("autodoc-process-docstring", keep_sentence, priority=600)
    app.connect("autodoc-process-signature", show_constants)
    app.connect("missing-reference", link_to_public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
