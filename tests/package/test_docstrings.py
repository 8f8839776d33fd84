"""What a docstring says of a parameter or an attribute is said of one that exists: renaming one, or a word of the prose in all
files, must not leave the other behind.

Reads the source with `ast`, like test_layers.
"""

from __future__ import annotations

import ast
import re

import pytest
from kit.source import FILES, ROOT, tree_of

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
SECTION = r"(?m)^(?:Args|Attributes|Raises|Returns):\n"
NO_FIELDS = {"Enum", "Exception", "Generic", "NamedTuple", "Protocol", "object"}
"""Bases whose names say nothing about those of a class."""


def entries(node: Documented):
    """The names that the sections "Args" and "Attributes" tell of."""
    text = ast.get_docstring(node) or ""
    for section in re.findall(r"(?ms)^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", text):
        for entry in re.findall(r"(?m)^    (\S[^:\n]*):", section):
            yield from (name.strip("*` ") for name in re.split(r", ?| and ", entry))


def names(node: Documented) -> set[str]:
    """A function's parameters; of a class all names in its body, also as arguments of a dataclass with private fields."""
    if not isinstance(node, ast.ClassDef):
        return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    found = set()
    for each in ast.walk(node):
        for field in ("arg", "attr", "id", "name"):
            found.add(getattr(each, field, None))
        if isinstance(each, ast.Constant) and isinstance(each.value, str):  # __slots__
            found.add(each.value)
    names = {name for name in found if isinstance(name, str)}
    return names | {name.removeprefix("_") for name in names}


def inherits(node: Documented):
    bases = getattr(node, "bases", ())
    return not NO_FIELDS.issuperset(ast.unparse(base).split("[")[0] for base in bases)


@pytest.mark.trial
def test_each_documented_parameter_and_attribute_exists():
    unknown = [
        f"{FILES[module].relative_to(ROOT)}:{node.lineno} {node.name}: {name}"
        for module in FILES
        for node in ast.walk(tree_of(module))
        if isinstance(node, Documented) and not inherits(node)
        for name in entries(node)
        if name not in names(node)
    ]
    assert not unknown, "\n".join(unknown)


@pytest.mark.trial
def test_a_section_of_a_docstring_is_indented_to_its_end():
    """A line at the margin right below an entry is the end of one that was wrapped wrongly."""
    margins = [
        f"{FILES[module].relative_to(ROOT)}:{node.lineno} {node.name}"
        for module in FILES
        for node in ast.walk(tree_of(module))
        if isinstance(node, Documented)
        and re.search(SECTION + r"(?:(?: .*)?\n)*? .*\n\S", ast.get_docstring(node) or "")
    ]
    assert not margins, "\n".join(margins)
