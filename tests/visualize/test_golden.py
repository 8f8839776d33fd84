"""The drawings of two dozen graphs, in every text format, compared with reviewed files.

After a change that is meant to show, `STATEGRAPH_RENEW=1 make test ARGS=tests/visualize/test_golden.py` writes them anew; look at
the difference before you commit it.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from example_graphs import DRAWN

GOLDEN = Path(__file__).parent / "golden"


def drawn(name):
    """The drawing of a graph in all forms."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some graphs look wrong on purpose
        drawing = DRAWN[name]()
    return "\n".join((drawing.draw_ascii(), drawing.draw_ascii(unicode=True), drawing.draw_mermaid(), drawing.draw_dot()))


@pytest.mark.parametrize("name", DRAWN)
def test_the_drawing_is_as_it_was(name):
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("STATEGRAPH_RENEW"):
        path.write_text(drawn(name), encoding="utf-8")
    assert drawn(name) == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.iterdir()} == set(DRAWN)


def test_drawings_do_not_depend_on_the_order_of_hashes():
    """Another process with other hashes draws the very same."""
    code = "import test_golden, sys; sys.stdout.write(''.join(map(test_golden.drawn, test_golden.DRAWN)))"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    paths = {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    env = {**os.environ, **paths, "PYTHONHASHSEED": seed}
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout
    assert shown.decode() == "".join(map(drawn, DRAWN))
