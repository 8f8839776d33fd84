"""The style sheets, scripts and colours that lie beside the code, as text."""

import re
from importlib.resources import files
from typing import Final

_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "[./]*components/([\w-]+\.js)";\n', re.M)
_SIBLING: Final = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.M)


def read_asset(name: str) -> str:
    """The text of a file in this package, named from here: "page.css", "runs/report.js"."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def list_components() -> dict[str, bytes]:
    """The modules and style sheets that pages share, by name."""
    folder = files(__package__).joinpath("components")
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def bundle_script(name: str) -> str:
    """A module with all components that it imports, as one script that imports nothing. Their
    names must differ."""
    found: dict[str, str] = {}
    text = read_asset(name)
    _collect(_IMPORT.findall(text), found)
    parts = [*found.values(), _IMPORT.sub("", text)]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _collect(names: list[str], found: dict[str, str]) -> None:
    """The components of these names, behind those that they import."""
    for name in names:
        if name in found:
            continue
        text = read_asset(f"components/{name}")
        _collect(_SIBLING.findall(text), found)
        found[name] = re.sub(r"^export ", "", _SIBLING.sub("", text), flags=re.M)
