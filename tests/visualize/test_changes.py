"""The changes of each step of a thread, and their writers."""

from kit import stored_threads as threads

from stategraph.visualize.trace.changes import changes
from stategraph.visualize.trace.diff import DiffLimits


def test_each_step_shows_its_changes_and_their_writers():
    found = changes(*threads.map_reduce(2, failing=()))
    assert [(s.number, s.nodes, [c.where for c in s.changes], s.writers) for s in found.steps] == [
        (0, ("input",), ["log"], {"log": ("input",)}),
        (1, ("plan",), ["log"], {"log": ("plan",)}),
        (2, ("fetch",), ["log"], {"log": ("fetch",)}),
        (3, ("gather",), ["count"], {"count": ("gather",)}),
    ]


def test_a_key_that_two_nodes_wrote_names_both():
    assert changes(*threads.asked("yes")).steps[2].writers == {"log": ("ask", "check")}


def test_the_view_as_text():
    assert changes(*threads.asked()).draw_text().split("\n") == [
        "step 0: input",
        "  + log: []",
        "step 1: draft",
        "  ~ log: 1 appended",
        "      + 'draft'",
        "step 2: ask, check (waits for an answer)",
        "  ~ log: 1 appended, 2 in all",
        "      + 'checked'",
        "  ask asks: {'publish?': 'draft'}",
    ]


def test_the_error_of_a_step_is_shown_with_its_changes():
    found = changes(*threads.failed())
    assert "(failed)" in found.draw_text() and "not finished" not in found.draw_text()
    assert "  bad raised ValueError: </script><b>boom</b>" in found.draw_text().split("\n")
    assert "<p><b>bad raised ValueError: &lt;/script&gt;&lt;b&gt;boom&lt;/b&gt;</b></p>" in found.draw_html()


def test_an_update_and_a_fan_out_are_named():
    heads = [line for line in changes(*threads.forked()).draw_text().split("\n") if line.startswith("step")]
    assert heads[2] == "step 2: update_state"
    assert "step 2: fetch \u00d79" in changes(*threads.map_reduce(9)).draw_text()


def test_a_step_names_the_checkpoint_that_it_made():
    app, thread = threads.asked()
    found = changes(app, thread)
    assert [s.checkpoint for s in found.steps][-2:] == [
        app.get_state(thread).config["configurable"]["checkpoint_id"],
        None,
    ]


def test_limits_are_kept():
    text = changes(*threads.map_reduce(50, failing=()), DiffLimits(lines=2)).draw_text()
    assert "… 48 more" in text


def test_the_view_shows_itself_in_a_notebook():
    found = changes(*threads.failed())
    shown = found._repr_mimebundle_()
    assert shown["text/plain"] == found.draw_text()
    assert "<h4>step 0: input</h4><p><b>log</b> <ins>[]</ins></p>" in shown["text/html"]
    assert "<script" not in shown["text/html"]
    assert repr(found) == "<Changes of 'failing', thread 't': 2 steps>"
