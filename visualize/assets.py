"""The style sheets, scripts and colours stored beside the code, as text; writes what was drawn."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeVar

Made = TypeVar("Made", str, bytes)
_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "[./]*components/([\w-]+\.js)";\n', re.M)
_SIBLING: Final = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.M)


def read_asset(name: str) -> str:
    """Return the text of a file in this package, named relative to it: "page.css",
    "render/report.js"."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def list_components() -> dict[str, bytes]:
    """Return the modules and style sheets that pages share, by name."""
    folder = files(__package__).joinpath("components")
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def bundle_script(name: str) -> str:
    """Return a module with all components that it imports, as one script without imports. The
    components' names must be distinct."""
    found: dict[str, str] = {}
    text = read_asset(name)
    _collect(_IMPORT.findall(text), found)
    parts = [*found.values(), _IMPORT.sub("", text)]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _collect(names: list[str], found: dict[str, str]) -> None:
    """Add the components with these names, each after those that it imports."""
    for name in names:
        if name in found:
            continue
        text = read_asset(f"components/{name}")
        _collect(_SIBLING.findall(text), found)
        found[name] = re.sub(r"^export ", "", _SIBLING.sub("", text), flags=re.M)


def write_file(made: Made, path: str | Path | None) -> Made:
    """Write to the file, if one is given; return what was written."""
    if path is not None:
        Path(path).write_bytes(made if isinstance(made, bytes) else made.encode(errors="replace"))
    return made
