"""Reserved names and namespaces are made and parsed in `pregel/names.py`; no other file of the product spells one.

Reads the source with `ast`, like test_layers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from kit.graphs import Count, chain_of, thread_config
from kit.source import FILES, ROOT, tree_of

from stategraph import START, Command, InMemorySaver, StateGraph, interrupt
from stategraph.channels import Overwrite
from stategraph.checkpoint import records
from stategraph.pregel import names

BELOW = {
    "__overwrite__": "channels/aggregate.py",
    "branch:to:": "checkpoint/records.py",
    **dict.fromkeys(
        (*records.CONTROL_WRITES, records.NO_WRITES, records.RETURN, records.DIGEST, records.MADE_BY, records.CONTINUES),
        "checkpoint/records.py",
    ),
}
"""Names that rooms below `names.py` need, and the file that spells them."""

PRODUCT = {
    name: str(path.relative_to(ROOT))
    for name, path in FILES.items()
    if name.split(".")[1] not in ("examples", "testing", "compat")  # programs of users, hostile texts, the peer's names
}


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every text in the code, parts of f-strings included; no docstrings."""
    silent = {
        id(line.value)
        for node in ast.walk(tree)
        for body in (getattr(node, "body", None), getattr(node, "orelse", None))
        if isinstance(body, list)
        for line in body
        if isinstance(line, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node


def spelled(name):
    """(text, line) of each text that a module spells."""
    yield from ((str(node.value), node.lineno) for node in texts(tree_of(name)))


PYTHONS = {"__", "__copy__", "__metadata__"}
"""What Python gives a meaning of its own."""
PREFIXES = (*names.ROUTING, "__pregel_", "__error_handler__", "__default_error_handler__")


@pytest.mark.trial
def test_a_reserved_name_is_spelled_in_one_file():
    reserved = {
        text
        for text, _ in spelled(".pregel.names")
        if text.startswith(("__", "stategraph", "join:")) and text not in PYTHONS
    }
    guarded = (*reserved, *BELOW, *PREFIXES)
    wrong = [
        f"{where}:{line}: {text!r}"
        for name, where in PRODUCT.items()
        if name != ".pregel.names" and any(word in FILES[name].read_text() for word in guarded)  # few are: parsing takes long
        for text, line in spelled(name)
        if (text in reserved or text in BELOW or text.startswith(PREFIXES)) and BELOW.get(text) != where
    ]
    assert not wrong, "\n".join(["import these from pregel/names.py:", *wrong])


@pytest.mark.trial
def test_namespaces_are_parsed_in_one_file():
    """Text methods with the separators of namespaces belong into names.py. The `module:name` of a command line is none."""
    parsing = {"split", "rsplit", "partition", "rpartition", "join", "startswith", "endswith", "isdigit"}
    wrong = []
    for name, where in PRODUCT.items():
        if name in (".pregel.names", ".graph.loader") or name.split(".")[1] not in ("pregel", "graph"):
            continue
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in parsing:
                marks = [ast.unparse(part) for part in (node.func.value, *node.args)]
                if node.func.attr == "isdigit" or {"'|'", "':'", "NS_SEP", "NS_END"}.intersection(marks):
                    wrong.append(f"{where}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(["pregel/names.py has functions for this:", *wrong])


@pytest.mark.parametrize("name", ["7", "\u00b2"])  # str.isdigit holds for both, int() takes the first only
def test_a_node_named_like_a_number_may_hold_a_graph_with_a_history(name, drive):
    def ask(state: Count):
        return {"n": state["n"] + interrupt("how many?")}

    inner = chain_of(Count, ask=ask).compile(checkpointer=True)
    middle = chain_of(Count, inner=inner).compile(checkpointer=True)
    app = StateGraph(Count).add_node(name, middle).add_edge(START, name).compile(InMemorySaver())
    config = thread_config("1")
    drive.invoke(app, {"n": 1}, config)
    nested = app.get_state(config, subgraphs=True).tasks[0].state
    assert nested.next == ("inner",)
    assert nested.tasks[0].state.next == ("ask",)
    assert app.get_state(nested.config).next == ("inner",)
    assert drive.invoke(app, Command(resume=2), config) == {"n": 3}


def test_a_name_that_would_be_parsed_as_a_number_is_refused(drive):
    inner = chain_of(Count, a=lambda state: None).compile(checkpointer=True)
    middle = StateGraph(Count).add_node("7", inner).add_edge(START, "7").compile(checkpointer=True)
    app = chain_of(Count, m=middle).compile(InMemorySaver())
    with pytest.raises(ValueError, match="the name of node '7' must not be a number"):
        drive.invoke(app, {"n": 1}, thread_config("1"))


def test_overwrites_and_control_names_are_reserved():
    for name in (Overwrite(1).type, records.ERROR, names.TASKS, names.INPUT, names.NS_SEP, names.NS_END):
        assert names.is_reserved(name)
    assert not names.is_reserved("plan")
