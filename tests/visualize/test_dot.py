"""DOT text that Graphviz accepts, and what happens if Graphviz is missing, broken or hangs."""

import shutil
import warnings
from importlib.util import find_spec
from itertools import pairwise

import pytest
from example_graphs import DRAWN, graph, joined

from stategraph.visualize import dot
from stategraph.visualize.dot import (
    GraphvizMissingError,
    GraphvizWarning,
    draw_dot,
    draw_png,
)
from stategraph.visualize.drawing import Drawing

HAS_DOT, HAS_PYGRAPHVIZ = shutil.which("dot") is not None, find_spec("pygraphviz") is not None
needs_dot = pytest.mark.skipif(not HAS_DOT, reason="no dot on the PATH")
needs_pygraphviz = pytest.mark.skipif(not HAS_PYGRAPHVIZ, reason="pygraphviz is not installed")
needs_any = pytest.mark.skipif(not (HAS_DOT or HAS_PYGRAPHVIZ), reason="no Graphviz")


def chain():
    return joined(graph("a", "b"), ("a", "b")).compile().get_graph().model


@pytest.fixture
def no_path(monkeypatch, tmp_path):
    """A PATH of one empty folder, which is returned."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder, script):
    """Put a `dot` there."""
    path = folder / "dot"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# -- the text -------------------------------------------------------------------------------------------------


def test_the_text_needs_no_graphviz(no_path):
    assert "\ta -> b\n" in draw_dot(chain())


def test_names_without_special_characters_are_not_escaped():
    names = ["<b>bold</b>", "back\\nslash", 'say "hi"', "node", "edge", "a-b"]
    text = draw_dot(joined(graph(*names), *pairwise(names)).compile(name="<x>").get_graph().model)
    for label in ('"<b>bold</b>"', '"back\\\\nslash"', '"say \\"hi\\""', '"node"', '"edge"', '"a-b"'):
        assert f"[label={label}" in text, label


@needs_dot
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_graphviz_takes_the_text_of_every_kind_of_graph(name):
    model = DRAWN[name]().model
    assert dot.run_graphviz(draw_dot(model), "canon") is not None


# -- pictures -------------------------------------------------------------------------------------------------


@needs_pygraphviz
def test_pygraphviz_does_where_there_is_no_dot(no_path):
    assert draw_png(chain()).startswith(b"\x89PNG")


# -- without --------------------------------------------------------------------------------------------------


def test_a_png_without_any_graphviz_says_what_to_install(no_path, monkeypatch):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    with pytest.raises(GraphvizMissingError, match=r'apt install graphviz.*pip install -e "\.\[graphviz\]"') as raised:
        draw_png(chain())
    assert isinstance(raised.value, RuntimeError) and "not installed" in str(raised.value)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no fonts >&2; exit 3", "exit code 3: no fonts"),
        ("kill -9 $$", "exit code -9"),
        ("exit 0", "exit code 0"),
        ("while :; do :; done", "timed out"),
    ],
)
def test_a_broken_graphviz_warns_and_there_is_no_picture(
    no_path, monkeypatch, script, reason
):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    monkeypatch.setattr(dot, "TIMEOUT", 0.2)
    program(no_path, script)
    with pytest.warns(GraphvizWarning, match=reason), pytest.raises(GraphvizMissingError, match="gives no result"):
        draw_png(chain())


def test_graphviz_is_called_only_when_it_is_asked_for(no_path, monkeypatch):
    """So that a drawing is the same on every machine."""
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    program(no_path, f"echo called >>{no_path}/calls; exit 1")
    drawing = Drawing(chain())
    assert drawing.draw_svg() and drawing.draw_html() and drawing._repr_mimebundle_() and drawing.draw_dot() and drawing.draw_ascii()
    drawing.save(no_path / "x.svg")
    assert not (no_path / "calls").exists()
    for ask in (drawing.draw_png, drawing.draw_mermaid_png):
        with pytest.warns(GraphvizWarning), pytest.raises(GraphvizMissingError):
            ask()
    assert (no_path / "calls").read_text().count("called") == 2


def test_a_file_that_is_no_program_is_done_without(no_path, monkeypatch):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    program(no_path, "")
    (no_path / "dot").write_bytes(b"\x00\x01")
    with pytest.warns(GraphvizWarning), pytest.raises(GraphvizMissingError):
        draw_png(chain())


@needs_pygraphviz
def test_pygraphviz_steps_in_for_a_broken_dot(no_path):
    program(no_path, "exit 1")
    with pytest.warns(GraphvizWarning):
        assert draw_png(chain()).startswith(b"\x89PNG")


@needs_any
def test_a_graphviz_that_works_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert draw_png(chain())
