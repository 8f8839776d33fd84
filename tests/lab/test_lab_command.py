"""`stategraph lab`: what it prints, writes and exits with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kit.graphs import thread_config

from stategraph import PostgresSaver, SqliteSaver

pytestmark = pytest.mark.trial

MODULE = '''
from typing import TypedDict
from stategraph import START, StateGraph

class State(TypedDict, total=False):
    n: int
    price: int

def charge(state):
    open("charged", "a").write("x")
    return {"price": 10 * state["n"]}

def cheaper(state):
    return {"price": 9 * state["n"]}

def is_dear(values):
    return values.get("price", 0) > 30

def no_opinion(before, now):
    return None

def raises(before, now):
    return now["none"]

def no_lower(before, now):
    return now["price"] >= before["price"]

def graph(charge=charge):
    made = StateGraph(State)
    made.add_node("double", lambda state: {"n": 2 * state["n"]})
    made.add_node("charge", charge)
    made.add_edge(START, "double")
    made.add_edge("double", "charge")
    return made.compile()

app = graph()
variant = graph(cheaper)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "shop_of_test.py").write_text(MODULE)
    scope = {}
    exec(compile(MODULE.replace('open("charged", "a").write("x")', "pass"), "shop", "exec"), scope)
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        app = scope["app"].copy({"checkpointer": saver})
        for number in range(4):
            app.invoke({"n": number}, thread_config(f"t{number}"))
    return tmp_path


def lab(folder: Path, *words: str):
    command = [sys.executable, "-P", "-W", "error", "-m", "stategraph", "lab", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_run_says_what_differs_and_charges_nobody(folder):
    done = lab(folder, "run", "shop_of_test.py:app", "--db", "threads.db", "--replace", "charge=shop_of_test:cheaper")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 threads: 1 the same, 3 different\nran: charge\n3 threads: node 'charge': write to 'price'\nthread t")
    assert not (folder / "charged").exists()


def test_threads_on_postgres_are_read_by_who_may_only_read(folder, postgres):
    import psycopg

    scope = {}
    exec(compile(MODULE.replace('open("charged", "a").write("x")', "pass"), "shop", "exec"), scope)
    with PostgresSaver.from_conn_string(postgres) as saver:
        scope["app"].copy({"checkpointer": saver}).invoke({"n": 3}, thread_config("t3"))
    with psycopg.connect(postgres, autocommit=True) as db:
        [schema] = db.execute("SELECT current_schema()").fetchone()
        db.execute("CREATE ROLE lab_reader LOGIN")
        try:
            db.execute(f"GRANT USAGE ON SCHEMA {schema} TO lab_reader")
            db.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO lab_reader")
            where = psycopg.conninfo.make_conninfo(postgres, user="lab_reader")
            done = lab(folder, "run", "shop_of_test.py:app", "--db", where, "--replace", "charge=shop_of_test:cheaper")
            assert done.stdout.startswith("1 thread: 0 the same, 1 different"), done.stderr
            done = lab(folder, "why", "shop_of_test.py:app", "price", "--db", where, "--thread", "t3")
            assert done.stdout.startswith("price = 60: step 2, charge"), done.stderr
        finally:
            db.execute("DROP OWNED BY lab_reader")
            db.execute("DROP ROLE lab_reader")


def test_trials_are_kept_in_a_file_and_asked_there(folder):
    words = ("--db", "threads.db", "--thread", "t3", "--replace", "charge=shop_of_test:cheaper", "--keep", "kept.db")
    assert lab(folder, "run", "shop_of_test.py:app", *words).returncode == 0
    with SqliteSaver.from_conn_string(str(folder / "kept.db")) as saver:
        [kept] = saver.threads(filter={"whatif_of": "t3"})
    done = lab(folder, "why", "shop_of_test.py:app", "price", "--db", "kept.db", "--thread", kept, "--report", "why.html")
    assert done.stdout.startswith("price = 54: step 2, charge\n")
    assert "<pre>price = 54: step 2, charge\n" in (folder / "why.html").read_text()


def test_threads_are_chosen_by_how_they_stand_and_by_time(folder):
    words = ("run", "shop_of_test.py:app", "--db", "threads.db")
    assert lab(folder, *words, "--status", "done", "--after", "2020-01-01", "--last", "2").stdout.startswith("2 threads: 2 the same")
    assert "has no such threads" in lab(folder, *words, "--before", "2020-01-01T12:00Z").stderr


def test_a_gate_exits_with_1(folder):
    words = ("run", "shop_of_test.py:app", "--db", "threads.db", "--variant", "shop_of_test.py:variant")
    assert lab(folder, *words, "--different", "75%").returncode == 0
    failed = lab(folder, *words, "--judge", "shop_of_test:no_lower", "--worse", "0", "--report", "out.html", "--save", "cohort.json")
    assert failed.returncode == 1
    assert "3 of 4 trials are worse, at most 0 may be" in failed.stdout
    assert "thread t3" in (folder / "out.html").read_text() and (folder / "cohort.json").read_text().count("stategraph recording") == 4
    (folder / "threads.db").unlink()
    words = ("run", "shop_of_test.py:app", "--recordings", "cohort.json", "--variant", "shop_of_test.py:variant")
    again = lab(folder, *words, "--different", "75%").stdout
    assert again.startswith("4 threads: 1 the same, 3 different") and "thread t3\n" in again
    assert lab(folder, *words, "--different", "0").returncode == 1
    chosen = lab(folder, *words, "--thread", "t9", "--different", "75%")
    assert chosen.returncode == 2 and "--recordings runs all that are there" in chosen.stderr


def test_a_judge_that_raises_does_not_exit_as_the_gate(folder):
    failed = lab(folder, "run", "shop_of_test.py:app", "--db", "threads.db", "--judge", "shop_of_test:raises", "--worse", "0")
    assert failed.returncode == 2 and "KeyError: 'none'\njudge 'raises', thread 't3'" in failed.stderr


def test_why_says_who_made_a_value(folder):
    done = lab(folder, "why", "shop_of_test.py:app", "price", "--db", "threads.db", "--thread", "t3")
    assert done.stdout.splitlines() == [
        "price = 60: step 2, charge",
        "  charge: {'n': 6} → {'price': 60}",
        "    n = 6 (was 3): step 1, double",
        "      double: {'n': 3} → {'n': 6}",
        "        n = 3: step 0, the input",
    ]


def test_questions_about_a_thread_are_answered(folder):
    def ask(name, wanted):
        done = lab(folder, name, "shop_of_test.py:app", wanted, "--db", "threads.db", "--thread", "t3")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert ask("since", "shop_of_test:is_dear") == ["since step 2 (loop: charge)"]
    assert ask("why-not", "charge") == ["step 1: double led to charge", "step 2: it ran", "now: nothing triggers it now"]
    assert ask("compare", "t2")[-1] == "  ~ price: 60 → 40"


def test_trials_that_are_refused_are_counted_apart(folder):
    done = lab(folder, "run", "shop_of_test.py:app", "--db", "threads.db", "--replace", "double=shop_of_test:cheaper", "--judge", "shop_of_test:no_lower")
    assert done.stdout.startswith("4 threads: 0 the same, 4 different (4 refused)\nran: double\nrefused: nothing is recorded of what was asked there.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--replace", "charge"), "must be NODE=MODULE:NAME, got 'charge'"),
        (("--replace", "charge=shop_of_test:none"), "must be MODULE:NAME of a function"),
        (("--replace", "chrge=shop_of_test:cheaper"), "has no node 'chrge'; did you mean 'charge'"),
        (("--recordings", "shop_of_test.py"), "not allowed with argument --db"),
        (("--thread", "t9"), "no thread could be read"),
        (("--last", "-3"), "the number of threads must be 0 or more, got -3"),
        (("--after", "yesterday"), "must be a time, got 'yesterday'"),
        (("--different", "few"), 'must be a number or a share such as "5%", got \'few\''),
        (("--judge", "shop_of_test:no_opinion"), "judge 'no_opinion' must return a number or a bool, got None (thread 't3')"),
    ],
)
def test_mistakes_are_named(folder, words, told):
    done = lab(folder, "run", "shop_of_test.py:app", "--db", "threads.db", "--different", "0", *words)
    assert done.returncode in (1, 2) and told in done.stdout + done.stderr


def test_trials_start_at_a_node_and_have_policies_for_calls(folder):
    words = ("run", "shop_of_test.py:app", "--db", "threads.db", "--thread", "t3", "--replace", "charge=shop_of_test:cheaper")
    done = lab(folder, *words, "--from", "charge", "--call", "search=live", "--call", "*=refuse")
    assert done.returncode == 0, done.stderr
    assert "node 'charge': write to 'price'" in done.stdout
    assert "cannot be run again" in lab(folder, *words, "--from", "nowhere").stdout
