"""The notebooks run from top to bottom, and show what their stored outputs show."""

from __future__ import annotations

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from kit.drive import each_case
from kit.programs import ROOT

FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
KNOWN = [
    "01_tour", "02_map_reduce", "03_human_in_the_loop", "04_time_travel", "05_subgraphs", "06_pregel",
    "07_persistence_and_crash", "08_speed", "09_joins", "10_effects_and_time", "11_lab", "12_undo",
]  # fmt: skip
# What the notebooks read besides each other.
READ = ["benchmarks/goals.py", "benchmarks/results.json"]
PLACES = re.compile(
    r"/(home|root|Users|work|tmp|usr|opt|var)/|[A-Z]:\\|\bsite-packages\b|https?://(?!www\.w3\.org)|\b0x[0-9a-f]{6,}"
)
WIDEST = 92
"""Characters of a line that a notebook shows on GitHub without a scroll bar."""
SVG = "{http://www.w3.org/2000/svg}"
AGAIN = "if this is as it should be, `make notebooks` keeps the new outputs"


def stored(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text(value):
    """In a file a text is a list of its lines."""
    return value if isinstance(value, str) else "".join(value)


# -- as they are kept -----------------------------------------------------------------------------------------


def test_the_notebooks_are_those_that_the_first_one_leads_to():
    assert NAMES == KNOWN
    tour = (FOLDER / "01_tour.ipynb").read_text(encoding="utf-8")
    assert [name for name in NAMES[1:] if f"({name}.ipynb)" not in tour] == []


@each_case("name", NAMES)
def test_stored_outputs_have_no_errors_and_no_machine_names(name):
    for cell in code_cells(stored(name)):
        for output in cell["outputs"]:
            assert output["output_type"] != "error" and output.get("name") != "stderr", cell["id"]
            shown = output.get("data", {"text/plain": output.get("text", "")})
            for mime in shown:
                found = PLACES.search(text(shown[mime])) if mime != "text/html" else None
                assert not found, f"{cell['id']}: {mime} has {found and found[0]!r}"


@each_case("name", NAMES)
def test_the_files_hold_nothing_that_a_second_run_would_change(name):
    notebook = stored(name)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    assert counts == [*range(1, len(counts) + 1)], "run from top to bottom: make notebooks"


@each_case("name", NAMES)
def test_lines_of_code_fit_the_page(name):
    wide = [line for cell in code_cells(stored(name)) for line in text(cell["source"]).split("\n") if len(line) > WIDEST]
    assert not wide, wide


@each_case("name", NAMES)
def test_a_notebook_is_a_lesson_with_a_goal_a_picture_and_an_exercise(name):
    cells = stored(name)["cells"]
    assert text(cells[0]["source"]).split("\n\n")[1].startswith("**Goal.** You ")
    assert any("text/html" in output.get("data", {}) for cell in code_cells({"cells": cells}) for output in cell["outputs"])
    exercise, solution = cells[-2:]
    assert text(exercise["source"]).startswith("## Exercise\n") and "solution" in solution["metadata"]["tags"]
    assert solution["outputs"], "a solution shows that it is one"


# -- as they run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory):
    """All notebooks, run in a copy of their folder; an error is among the outputs of its cell."""
    pytest.importorskip("nbclient", reason="the notebooks run where nbclient is installed (extra: dev)")
    pytest.importorskip("ipykernel", reason="the notebooks run where ipykernel is installed (extra: dev)")
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(FOLDER, folder / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in READ:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    before = files_in(folder)
    yield runner().run_all([folder / "notebooks" / f"{name}.ipynb" for name in NAMES], keep_going=True)
    assert files_in(folder) == before, "a notebook wrote into its folder"


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def runner():
    """notebooks/run.py, which is no part of the package."""
    spec = spec_from_file_location("notebooks_run", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.trial
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(ran, name):
    failed = [
        f"{cell.id}: {output.ename}: {output.evalue}"
        for cell in code_cells(ran[name])
        for output in cell.outputs
        if output.output_type == "error"
    ]
    assert not failed, "\n".join(failed)


@pytest.mark.trial
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_it_is_kept_with(ran, name):
    for kept, new in zip(code_cells(stored(name)), code_cells(ran[name]), strict=True):
        exact = "varies" not in kept["metadata"].get("tags", ())
        assert [seen(output, exact) for output in new.outputs] == [
            seen(output, exact) for output in kept["outputs"]
        ], f"{kept['id']} shows something else; {AGAIN}"


def seen(output, exact):
    """What must be the same in every run: the kinds of output, the texts, and what is written in pictures."""
    shown = output.get("data", {"stream": output.get("text", "")})
    return output["output_type"], {mime: essence(mime, text(shown[mime]), exact) for mime in sorted(shown)}


def essence(mime, value, exact):
    if mime == "image/svg+xml":  # where things stand depends on who lays them out
        drawn = ET.fromstring(value)
        return sorted("".join(t.itertext()) for t in drawn.iter(SVG + "text")) if exact else drawn.tag
    return value if exact and mime in ("stream", "text/plain", "text/vnd.mermaid") else bool(value)
