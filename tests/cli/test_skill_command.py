"""`stategraph skill` prints the page for coding agents; tests/docs runs its program."""

import inspect
import re

import stategraph
import stategraph.pregel
from stategraph.__main__ import main


def test_it_prints_the_page_and_names_only_what_there_is(capsys):
    assert main(["skill"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("---\nname: stategraph\n")
    imported = re.findall(r"^from stategraph import (.+)$", text, re.MULTILINE)
    assert all(hasattr(stategraph, name) for line in imported for name in line.split(", "))


def test_dir_lists_what_users_import():
    assert {"StateGraph", "SqliteSaver", "timeline", "workers"} <= set(dir(stategraph))
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(stategraph))


def test_dir_of_a_graph_lists_no_internals():
    app = stategraph.StateGraph(int).add_node("twice", lambda n: 2 * n).add_edge(stategraph.START, "twice").compile()
    names = set(dir(app))
    assert {"invoke", "stream", "get_state", "explain", "post", "get_graph"} <= names
    assert not {"coerce_state", "output_form", "program", "spec"} & names


def test_no_parameter_of_a_graph_is_private():
    known = inspect.signature(stategraph.pregel.Pregel).parameters
    assert len(known) > 20 and not [name for name in known if name.startswith("_")]
