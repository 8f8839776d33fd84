"""The look of SVG drawings: the colours of both themes and the style sheet. Nothing here knows a
graph.

All rules are scoped by a class whose name is derived from them, so that drawings share a page in
peace.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Final, Literal, NamedTuple, get_args

Theme = Literal["auto", "light", "dark"]
"""`auto` follows the page: the system's setting, or the theme of JupyterLab, VS Code or a
documentation site."""

FONTS: Final = (
    "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Noto Sans',sans-serif"
)

LIGHT: Final = {
    "page": "#ffffff",
    "ink": "#1e293b",
    "soft": "#64748b",
    "line": "#7b8798",
    "node": "#f1f5fd",
    "node-line": "#8da2c8",
    "pill": "#475569",
    "pill-ink": "#ffffff",
    "sub": "#ecfdf8",
    "sub-line": "#2b9a86",
    "cluster": "#f8fafc",
    "cluster-line": "#cbd5e1",
    "goto": "#7c3aed",
    "send": "#0369a1",
    "error": "#d03434",
    "handler": "#fef2f2",
    "doubt": "#fffbeb",
    "doubt-line": "#b7791f",
    "running": "#dbeafe",
    "running-line": "#2563eb",
    "done": "#dcfce7",
    "done-line": "#15803d",
    "failed": "#fee2e2",
    "failed-line": "#dc2626",
    "paused": "#fef3c7",
    "paused-line": "#b45309",
}
DARK: Final = {
    "page": "#16191f",
    "ink": "#e6eaf0",
    "soft": "#98a4b5",
    "line": "#8390a3",
    "node": "#232a38",
    "node-line": "#6178a3",
    "pill": "#cbd5e1",
    "pill-ink": "#16191f",
    "sub": "#17302d",
    "sub-line": "#3fb29c",
    "cluster": "#1b1f27",
    "cluster-line": "#3d4757",
    "goto": "#b39bf7",
    "send": "#5cbcf2",
    "error": "#f47c7c",
    "handler": "#382024",
    "doubt": "#33290f",
    "doubt-line": "#d9a941",
    "running": "#1c3557",
    "running-line": "#60a5fa",
    "done": "#153725",
    "done-line": "#4ade80",
    "failed": "#481d1f",
    "failed-line": "#f87171",
    "paused": "#40300c",
    "paused-line": "#fbbf24",
}

_RULES: Final = """
.page{fill:$page}
text{fill:$ink;stroke:none}
.edge .line{fill:none;stroke:$line;stroke-width:1.5;stroke-linecap:round}
.edge .tip{fill:$line;stroke:none}
.edge .label rect{fill:$page;stroke:none}
.edge .label text{fill:$soft}
.conditional .line{stroke-dasharray:5 4}
.goto .line{stroke:$goto;stroke-dasharray:5 4}
.goto .tip{fill:none;stroke:$goto;stroke-width:1.5;stroke-linecap:round;stroke-linejoin:round}
.goto .dot{fill:$goto;stroke:none}
.send .line{stroke:$send;stroke-width:1.8}
.send .tip{fill:$send}
.send .many rect{fill:$page;stroke:$send}
.send .many text{fill:$send}
.error .line{stroke:$error;stroke-width:2;stroke-dasharray:.1 4.5}
.error .tip{fill:$error}
.cluster .shape{fill:$cluster;stroke:$cluster-line}
.cluster .name{fill:$soft;font-weight:600}
.node .shape{fill:$node;stroke:$node-line;stroke-width:1.4}
.node .inner{fill:none;stroke:$node-line;stroke-width:1}
.start .shape,.end .shape{fill:$pill;stroke:$pill}
.start .name,.end .name{fill:$pill-ink;font-weight:600;letter-spacing:.04em}
.subgraph .shape{fill:$sub;stroke:$sub-line}
.subgraph .inner{stroke:$sub-line}
.join .shape{fill:$page;stroke:$line}
.join .name{fill:$soft}
.unknown .shape{fill:$doubt;stroke:$doubt-line}
.unknown .name{fill:$doubt-line;font-weight:600}
.handler .shape{fill:$handler;stroke:$error}
.deferred .shape{stroke-dasharray:5 3}
.glass{fill:none;stroke:$soft;stroke-width:1.2;stroke-linejoin:round;stroke-linecap:round}
.stop circle{fill:$paused;stroke:$paused-line;stroke-width:1.2}
.stop path{stroke:$paused-line;stroke-width:1.7;stroke-linecap:round;fill:none}
.nested .label rect,.nested .many rect{fill:$cluster}
.unreached{opacity:.5}
.badge rect{fill:$soft;stroke:$page;stroke-width:1.5}
.badge text{fill:$page;font-weight:600}
.is-waiting .shape{fill:$page;stroke:$cluster-line}
.is-waiting>.name{fill:$soft}
.is-running .shape{fill:$running;stroke:$running-line;stroke-width:2.2}
.is-done .shape{fill:$done;stroke:$done-line}
.is-failed .shape{fill:$failed;stroke:$failed-line;stroke-width:2.2}
.is-paused .shape{fill:$paused;stroke:$paused-line;stroke-width:2.2}
.cluster[class*=is-] .shape{fill:$cluster}
.is-running>.badge rect{fill:$running-line}
.is-done>.badge rect{fill:$done-line}
.is-failed>.badge rect{fill:$failed-line}
.is-paused>.badge rect{fill:$paused-line}
.is-running>.name,.is-done>.name,.is-failed>.name,.is-paused>.name{fill:$ink}
"""
# Pages that say by themselves which theme they have; they win over the system's setting.
_DARK_PAGES: Final = (
    '[data-jp-theme-light="false"]',
    ".vscode-dark",
    "body.vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
    '[data-theme="dark"]',
    '[theme="dark"]',
)
_LIGHT_PAGES: Final = (
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
    """The style sheet of a theme.

    Args:
        rules: of another kind of picture: one a line, colours by their names as `$ink`.

    Raises:
        ValueError: there is no such theme.
    """
    if theme not in get_args(Theme):
        raise ValueError(f"theme must be one of {', '.join(get_args(Theme))}, got {theme!r}")
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
    """What runs is seen to run, but for those who want no motion."""
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
