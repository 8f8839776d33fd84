"""Cohorts: one anonymised thread of each shape, which runs again like the thread it was made of, and otherwise on a graph
that would lead it elsewhere.
"""

from __future__ import annotations

from kit.graphs import Log, graph_of
from kit.pausing_graphs import asks
from kit.upgrades import config_of

from stategraph import END, Command, InMemorySaver
from stategraph.__main__ import main
from stategraph.checkpoint import UnknownTypeError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.lab import whatif
from stategraph.upgrade import prove
from stategraph.upgrade.cohort import save


def shop(most: int = 2):
    """Asks, and repeats a step while its log is short."""
    builder = graph_of(Log, "S>q>z", q=asks("q"))
    return builder.add_conditional_edges("z", lambda s: "z" if len(s["log"]) < most else END, ["z", END])


def fill(saver):
    app = shop().compile(saver)
    for name in ("Ada", "Bob", "Eve"):
        app.invoke({"log": [f"in of {name}"]}, config_of(name))
    for name in ("Ada", "Bob"):
        app.invoke(Command(resume=f"yes says {name}"), config_of(name))
    return app


def test_each_shape_is_saved_once_without_its_texts_and_runs_again_the_same(tmp_path):
    app = fill(InMemorySaver())
    saved = save(app, prove(app), tmp_path)
    assert (saved.threads, saved.left_out) == (2, {})
    texts = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "text 1" in texts and not any(name in texts for name in ("Ada", "Bob", "Eve", "yes"))
    whatif(shop().compile(), tmp_path).check(different=0)


def test_a_graph_that_leads_a_saved_thread_elsewhere_is_found(tmp_path):
    app = fill(InMemorySaver())
    save(app, prove(app), tmp_path)
    trials = whatif(shop(9).compile(), tmp_path)
    assert [len(trials), len(trials.different)] == [2, 1]


def test_a_thread_that_does_something_else_without_its_texts_is_left_out(tmp_path):
    builder = graph_of(Log, "S>a")
    builder.add_conditional_edges("a", lambda s: "a" if s["log"] == ["secret", "a"] else END, ["a", END])
    app = builder.compile(InMemorySaver())
    app.invoke({"log": ["secret"]}, config_of("t"))
    saved = save(app, prove(app), tmp_path)
    assert (saved.threads, [*saved.left_out], [*tmp_path.iterdir()]) == (0, ["t"], [])


def test_a_thread_with_a_type_that_is_gone_is_left_out(tmp_path):
    saver = InMemorySaver()
    app = fill(saver)
    proof, real = prove(app), saver.list

    def load(config, **options):
        if config["configurable"]["thread_id"] == "Bob":
            raise UnknownTypeError("Item")
        return real(config, **options)

    saver.list = load
    saved = save(app, proof, tmp_path)
    assert (saved.threads, [*saved.left_out]) == (2, ["Bob"])


def test_the_command_saves_a_cohort(tmp_path, capsys):
    db = str(tmp_path / "shop.db")
    with SqliteSaver.from_conn_string(db) as saver:
        fill(saver)
    assert main(["upgrade", f"{__name__}:shop", "--db", db, "--save", f"{tmp_path}/cohort"]) == 0
    assert f"saved 2 threads in {tmp_path}/cohort" in capsys.readouterr().out
