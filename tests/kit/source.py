"""The package's source, as syntax trees."""

import ast
import gc
import tomllib
from functools import cache

from kit.programs import ROOT


def packages():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    return [name.removeprefix("stategraph") for name in listed]


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "." + ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FOLDERS = [ROOT.joinpath(*package.split(".")) for package in packages()]
FILES = {name_of(path): path for folder in FOLDERS for path in sorted(folder.glob("*.py"))}


@cache
def tree_of(name):
    """A file's syntax tree. Not read at import: each worker of pytest-xdist imports this file, one runs its tests."""
    gc.disable()  # it would look through all trees again and again, which takes four times as long as to make them
    tree = ast.parse(FILES[name].read_text(), str(FILES[name]))
    gc.freeze()
    gc.enable()
    return tree


if __name__ == "__main__":  # `make map`
    for name in FILES:
        told = (ast.get_docstring(tree_of(name)) or "").partition("\n\n")[0]
        print(f"{FILES[name].relative_to(ROOT)}: {' '.join(told.split())}")
