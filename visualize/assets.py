"""The style sheets, scripts and colours that lie beside the code, as text."""

from importlib.resources import files


def read_asset(name: str) -> str:
    """The text of a file in this package, named from here: "page.css", "runs/report.js"."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
