"""The layout in character cells: the same layers as in px, whole numbers, and no overlapping lines."""

from __future__ import annotations

from itertools import combinations

import pytest
from example_graphs import DRAWN
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import each_case

from stategraph.visualize.layout.cells import (
    CellSizes,
    LevelRun,
    TooWideError,
    arrange_cells,
    assign_tracks,
)
from stategraph.visualize.layout.geometry import GraphLayout
from stategraph.visualize.layout.measure import Size
from stategraph.visualize.layout.pixels import arrange
from stategraph.visualize.model import GraphModel

FLAT = [
    "chain", "one_router", "two_in_a_circle", "tool_agent", "join", "fan", "deferred", "map_reduce", "breakpoints",
    "command_goto", "destinations", "unknown_router", "unreachable", "two_routers", "raw_pregel", "hostile_names",
]  # fmt: skip


def in_cells(model: GraphModel, widest=1000):
    edges = tuple(edge for edge in model.edge_records if edge.source != edge.target)
    sizes = {node.id: Size(9, 3) for node in model.node_records}
    model = GraphModel(model.name, model.node_records, edges)
    return arrange_cells(model, CellSizes(sizes, [len(edge.label) for edge in edges]), widest)


def layers(layout: GraphLayout):
    """The nodes of each layer, from the top: those that overlap in height."""
    found = []
    for box in sorted(layout.boxes.values(), key=lambda box: box.middle[1]):
        if found and found[-1][0].bottom > box.y:
            found[-1][1].add(box.id)
        else:
            found.append((box, {box.id}))
    return [ids for _, ids in found]


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_text_and_svg_show_the_same_layers(name):
    model = DRAWN[name]().model
    assert layers(in_cells(model)) == layers(arrange(model))


@each_case("name", FLAT)
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_boxes_are_separated_by_whole_cells(name):
    boxes = list(in_cells(DRAWN[name]().model).boxes.values())
    assert all(value == int(value) for box in boxes for value in box[1:])
    for one, other in combinations(boxes, 2):
        beside = one.right <= other.x or other.right <= one.x
        assert beside or one.bottom <= other.y or other.bottom <= one.y


def test_what_does_not_fit_is_an_error():
    model = DRAWN["wide"]().model
    with pytest.raises(TooWideError):
        in_cells(model, 100)
    assert in_cells(model, 200).width <= 200


# -- tracks -------------------------------------------------------------------------------------------------


def drawn_cells(ends):
    """Every cell of every line in a gap, with the direction in which it is drawn there."""
    tracks = assign_tracks(ends)
    bottom = max(tracks.values(), default=0) + 1
    cells = set()
    for line, (x, to) in ends.items():
        y = -1
        for run in sorted((run for run in tracks if run.line == line), key=lambda run: run.part):
            assert run.x == x
            cells |= {(line, x, row, "upright") for row in range(y, tracks[run] + 1)}
            cells |= {(line, column, tracks[run], "level") for column in range(min(x, run.to), max(x, run.to) + 1)}
            x, y = run.to, tracks[run]
        assert x == to
        cells |= {(line, x, row, "upright") for row in range(y, bottom + 1)}
    return [(x, y, way) for _, x, y, way in cells]


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(*[st.permutations([3 * i for i in range(n)])] * 2)))
def test_no_line_overlaps_another_after_columns_are_swapped(columns):
    cells = drawn_cells(dict(enumerate(zip(*columns, strict=True))))
    assert len(cells) == len(set(cells))


def test_a_straight_line_needs_no_track():
    assert assign_tracks({0: (4, 4), 1: (9, 9)}) == {}
    assert assign_tracks({0: (4, 7)}) == {LevelRun(4, 7, 0): 0}
