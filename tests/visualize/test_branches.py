"""The branches of a thread as a tree, and the differences between two of them."""

from __future__ import annotations

import pytest
from kit import stored_threads as threads
from kit.graphs import EMPTY, thread_config

from stategraph import Command
from stategraph.visualize import branches, compare
from stategraph.visualize.render.report import draw_report


def labels(made: threads.StoredThread):
    return [node.label.replace("\n", " | ") for node in branches(*made).model.node_records]


def test_a_thread_without_forks_is_one_branch():
    assert labels(threads.map_reduce(2, failing=())) == ["branch 1, the newest | steps 0 to 3 | input, plan, fetch, gather"]


def test_a_fork_is_a_branch_that_leaves_where_it_was_made():
    tree = branches(*threads.forked())
    assert labels(threads.forked()) == [
        "steps 0 to 1 | input, draft | next: ask, check",
        "branch 1 | steps 2 to 3 | ask, check, publish",
        "branch 2, the newest | steps 2 to 4 | update_state, ask, check, publish",
    ]
    stem, one, other = (node.id for node in tree.model.node_records)
    assert [edge[:2] for edge in tree.edges] == [(stem, one), (stem, other)]


def test_a_fork_of_a_fork_leaves_its_own_branch():
    app, thread = threads.forked()
    tip = branches(app, thread).tips[2]
    before = next(s for s in app.get_state_history(thread) if s.config == tip).parent_config
    assert before is not None
    app.invoke(None, app.update_state(before, {"log": ["third"]}, as_node="draft"))
    tree = branches(app, thread)
    assert sorted(tree.tips) == [1, 2, 3] and len(tree.model.node_records) == 5
    parents = {edge.target: edge.source for edge in tree.edges}
    [stem] = {*parents.values()} - parents.keys()
    [inner] = {*parents.values()} - {stem}
    assert [parents[inner], sorted(parents.values())] == [stem, sorted([stem, stem, inner, inner])]


def test_a_paused_branch_shows_its_next_nodes():
    assert labels(threads.asked()) == ["branch 1, the newest | steps 0 to 1 | input, draft | next: ask, check"]


def test_tips_of_branches_are_configs_for_get_state_and_resume():
    app, thread = threads.forked()
    tips = branches(app, thread).tips
    assert [app.get_state(tip).values["log"][-2] for tip in tips.values()] == ["checked", "checked"]
    assert app.get_state(tips[2]).config == app.get_state(thread).config


def test_a_tree_is_printed_with_characters():
    lines = str(branches(*threads.forked())).split("\n")
    assert lines[1].split() == ["|", "steps", "0", "to", "1", "|"] and lines[3].endswith("| next: ask, check |")
    assert lines[8].split("  ")[0] == "|" and "branch 1" in lines[8] and "branch 2, the newest" in lines[8]


def test_a_comparison_shows_common_and_different_steps():
    app, thread = threads.forked()
    tips = branches(app, thread).tips
    assert str(compare(app, tips[1], tips[2])) == "\n".join([
        "both",
        "  step 0: input",
        "  step 1: draft",
        "only the first",
        "  step 2: ask, check",
        "  step 3: publish",
        "only the second",
        "  step 2: update_state",
        "  step 3: ask, check",
        "  step 4: publish",
        "state: from the first to the second",
        "  ~ log[1]: 4 → 5",
        "      - 'yes'",
        "      + 'a new draft'",
        "      + 'no'",
    ])  # fmt: skip


def test_a_branch_is_the_same_as_itself():
    app, thread = threads.forked()
    text = str(compare(app, thread, thread))
    assert text.count("  nothing") == 2 and text.endswith("no change")


def test_two_threads_can_be_compared_too():
    app, thread = threads.asked("yes")
    other = thread_config("another")
    app.invoke(EMPTY, other)
    app.invoke(Command(resume="no"), other)
    found = compare(app, thread, other)
    assert [(c.where, c.before, c.after) for c in found.changes] == [("log[1]", "'yes'", "'no'")]
    assert "both\n  nothing" in str(found)


def test_a_report_of_a_thread_with_branches_has_the_tree():
    page = draw_report(*threads.forked())
    assert "branch 2, the newest</text>" in page
    assert "branch 1" not in draw_report(*threads.asked("yes"))


def test_what_is_no_thread_is_refused():
    app, _ = threads.forked()
    with pytest.raises(ValueError, match="nothing is stored for thread 'nobody'"):
        branches(app, thread_config("nobody"))
    with pytest.raises(TypeError, match="app must be a compiled graph"):
        compare(app.builder, {}, {})  # type: ignore[arg-type]
