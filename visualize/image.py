"""An SVG as an HTML image: the only picture format that every notebook viewer shows. Draws nothing.

JupyterLab shows an SVG only in trusted notebooks; GitHub and nbviewer remove its style sheet, or
let those of several pictures interfere. All of them show an image whose source is in the page. But
an image sees only the system's setting, never the theme of the page, and these may differ: so its
background is transparent, and what is drawn on it has colours that are legible on light and on
dark.
"""

from __future__ import annotations

import re
from base64 import b64encode

from .assets import read_asset
from .markup import Markup, fill

_AUTO = re.compile(r'<svg [^>]*class="[^"]*\b(sg-auto-[0-9a-f]{8})"')
_SIZE = re.compile(r'<svg [^>]*\bwidth="([\d.]+)" height="([\d.]+)"')
_CLEAR = "\n" + read_asset("image.css")
"""Elements directly on the page get intermediate tones; those with a background of their own keep
their colours."""


def as_image(svg: str, alt: str) -> str:
    """Return a picture as HTML, with a text alternative. A picture that follows a theme gets a
    transparent background."""
    auto, size = _AUTO.match(svg), _SIZE.match(svg)
    if auto is not None:
        place = svg.rindex("</svg>")
        svg = f"{svg[:place]}<style>{_CLEAR.replace('NAME', auto[1])}</style>{svg[place:]}"
    # The size is known before the picture is loaded, so that replacing it does not make the page
    # jump.
    room = f' width="{float(size[1]):.0f}" style="max-width:100%;height:auto"' if size else ""
    data = b64encode(svg.encode()).decode()
    form = '<img alt="{}"{} src="data:image/svg+xml;base64,{}"/>'
    return fill(form, alt, Markup(room), data)
