"""The style of SVG drawings: the colours of both themes and the style sheet. It knows no graph.

All rules are scoped by a class whose name is derived from them, so that several drawings on one
page do not affect each other.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple, get_args

from .assets import read_asset

Theme = Literal["auto", "light", "dark"]
"""`auto` follows the page: the system's setting, or the theme of JupyterLab, VS Code or a
documentation site."""

FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Noto Sans',sans-serif"

_COLOURS: dict[str, tuple[str, str]] = json.loads(read_asset("colours.json"))
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}

_RULES = "\n" + read_asset("drawing.css")
# Pages that declare their theme, which takes precedence over the system's setting.
_DARK_PAGES = (
    '[data-jp-theme-light="false"]',
    ".vscode-dark",
    "body.vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
    '[data-theme="dark"]',
    '[theme="dark"]',
)
_LIGHT_PAGES = (
    '[data-jp-theme-light="true"]',
    ".vscode-light",
    ".vscode-high-contrast-light",
    '[data-theme="light"]',
    '[theme="light"]',
)


class StyleSheet(NamedTuple):
    """A style sheet, and the class that an SVG needs for it."""

    name: str
    css: str


@cache
def style_sheet(theme: Theme, rules: str = _RULES) -> StyleSheet:
    """Return the style sheet of a theme.

    Args:
        rules: the rules of another kind of picture, one per line, with colours by name, such as
            `$ink`; `$FONTS` and `$THEME` are replaced by the fonts and the name of the theme.

    Raises:
        ValueError: there is no such theme.
    """
    if theme not in get_args(Theme):
        raise ValueError(f"theme must be one of {', '.join(get_args(Theme))}, got {theme!r}")
    rules = rules.replace("$FONTS", FONTS).replace("$THEME", theme)
    name = f"sg-{theme}-{zlib.crc32(repr((LIGHT, DARK, rules)).encode()):08x}"
    if theme == "auto":
        variables = re.sub(r"\$([a-z-]+)", r"var(--\1)", rules)
        return StyleSheet(name, _auto(name) + _scope(variables, name) + _beat(name))
    colours: Mapping[str, str] = LIGHT if theme == "light" else DARK
    return StyleSheet(
        name, _scope(re.sub(r"\$([a-z-]+)", lambda found: colours[found[1]], rules), name)
    )


def _auto(name: str) -> str:
    light, dark = (
        ";".join(f"--{key}:{value}" for key, value in some.items()) for some in (LIGHT, DARK)
    )
    pages = {light: _LIGHT_PAGES, dark: _DARK_PAGES}
    said = "".join(
        f"{','.join(f'{page} .{name}' for page in some)}{{{values}}}\n"
        for values, some in pages.items()
    )
    return f".{name}{{{light}}}\n@media (prefers-color-scheme:dark){{.{name}{{{dark}}}}}\n{said}"


def _beat(name: str) -> str:
    """Return the animation of running nodes, for users who do not prefer reduced motion."""
    return (
        f"@keyframes {name}{{50%{{stroke-opacity:.35}}}}\n@media "
        "(prefers-reduced-motion:no-preference)"
        f"{{.{name} .is-running .shape{{animation:{name} 1.6s ease-in-out infinite}}}}\n"
    )


def _scope(rules: str, name: str) -> str:
    lines = []
    for rule in rules.split("\n"):
        selectors, brace, body = rule.partition("{")
        if brace:
            lines.append(",".join(f".{name} {one}" for one in selectors.split(",")) + brace + body)
    return "\n".join(lines) + "\n"
