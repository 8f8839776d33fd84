"""Run by `make wheel` in a clean venv far from the checkout: does the wheel hold the package alone, and run?

Not a pytest file: it must pass with nothing installed but the wheel and what the wheel asks for.
"""

import operator
import tomllib
from importlib.metadata import files
from pathlib import Path
from typing import Annotated, TypedDict

import stategraph
from stategraph import END, START, StateGraph

CHECKOUT = Path(__file__).resolve().parents[2]


def listed():
    """What pyproject.toml promises: each listed package's modules, and the files that are listed as its data."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = set()
    for package in settings["packages"]:
        folder = CHECKOUT.joinpath(*package.split(".")[1:])
        for kind in ("*.py", *settings["package-data"].get(package, ())):
            found |= {f"{package.replace('.', '/')}/{file.relative_to(folder)}" for file in folder.glob(kind)}
    return found


def installed():
    """What the wheel put there, without its own papers, the command and the bytecode made since."""
    paths = {str(path) for path in files("stategraph") or ()}
    ours = {path for path in paths if ".dist-info/" not in path and not path.endswith(".pyc")}
    assert any(path.endswith("/bin/stategraph") for path in ours), "the command is not installed"
    return {path for path in ours if not path.endswith("/bin/stategraph")}


class State(TypedDict):
    total: Annotated[int, operator.add]
    log: Annotated[list[str], operator.add]


def count(state: State):
    return {"total": 1, "log": [f"count {state['total']}"]}


def close(state: State):
    return {"log": ["close"]}


def enough(state: State):
    return "close" if state["total"] >= 3 else "count"


def main():
    assert not Path(stategraph.__file__).is_relative_to(CHECKOUT), "this is the checkout, not the wheel"
    assert installed() == listed(), f"differs from pyproject.toml: {sorted(installed() ^ listed())}"
    builder = StateGraph(State)
    builder.add_node("count", count)
    builder.add_node("close", close)
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", enough, ["count", "close"])
    builder.add_edge("close", END)
    result = builder.compile().invoke({"total": 0, "log": []})
    assert result == {"total": 3, "log": ["count 0", "count 1", "count 2", "close"]}, result
    print(f"wheel ok: {len(listed())} files, a graph ran in {Path(stategraph.__file__).parent}")


if __name__ == "__main__":
    main()
