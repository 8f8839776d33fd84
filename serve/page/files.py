"""The files of the page at `/`, stored beside the code, and their response headers.

The files contain no data: the page uses the same API as all clients, as the user that `auth` finds
in its requests. So everybody may fetch the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...visualize.assets import list_components
from ...visualize.render.timeline_svg import RULES
from ...visualize.theme import DARK, LIGHT, style_sheet
from ..errors import Refused
from ..handlers import Handlers, route
from ..service import Service

POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    ]
)
"""The Content-Security-Policy: the page runs only its own scripts and connects only to its own
server. No string becomes HTML or a script, but for what DOMPurify parses before it cleans it: its
Trusted Types policy can be created once."""

_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class Asset(NamedTuple):
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


class PageFiles(Handlers):
    """The handlers of `/` and of the files in `/page`."""

    asks_auth = False

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._assets: Mapping[str, Asset] = read_assets()

    @route("GET /", "GET /page/{file}")
    async def send(self, request: Request, file: str | None) -> Response:
        """Send a file of the page, or 304 if the browser already has it."""
        name = file or "index.html"
        asset = self._assets.get(name)
        if asset is None:
            raise Refused(404, f"the page has no file {name!r}")
        headers = {**_HEADERS, "ETag": asset.etag}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)


def read_assets() -> dict[str, Asset]:
    """Return the files of the page by name, including the components that it shares with reports
    and the style sheets of drawings."""
    texts = {
        each.name: each.read_bytes()
        for folder in ("static", "vendor")
        for each in files(__package__).joinpath(folder).iterdir()
        if Path(each.name).suffix in _TYPES
    }
    drawings = style_sheet("auto").css + style_sheet("auto", RULES).css
    made = {"colours.css": draw_colours().encode(), "drawings.css": drawings.encode()}
    return {
        name: Asset(content, _TYPES[Path(name).suffix], f'"{sha256(content).hexdigest()[:32]}"')
        for name, content in {**texts, **list_components(), **made}.items()
    }


def draw_colours() -> str:
    """Return the style sheet with the colours of both themes: the system's theme applies, unless
    the page sets one."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in colours.items())
        for colours in (LIGHT, DARK)
    )
    return (
        f":root{{color-scheme:light;{light}}}\n"
        "@media (prefers-color-scheme:dark){"
        f':root:not([data-theme="light"]){{color-scheme:dark;{dark}}}}}\n'
        f':root[data-theme="dark"]{{color-scheme:dark;{dark}}}\n'
    )
