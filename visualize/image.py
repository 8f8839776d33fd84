"""An SVG as an HTML image: the one form of a picture that notebooks show whoever opens them.
Nothing is drawn here.

JupyterLab shows an SVG only in notebooks that are trusted; GitHub and nbviewer take the style
sheets out of it, or let those of several pictures mix. All of them show an image whose source is in
the page. But an image sees only the system's setting, never the theme of the page, and these
differ: so its own page is clear, and what stands on it has colours that can be read on light and on
dark.
"""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape

from .assets import read_asset

_AUTO = re.compile(r'<svg [^>]*class="[^"]*\b(sg-auto-[0-9a-f]{8})"')
_SIZE = re.compile(r'<svg [^>]*\bwidth="([\d.]+)" height="([\d.]+)"')
_CLEAR = "\n" + read_asset("image.css")
"""What stands on the page itself in tones between; what has a ground of its own keeps its
colours."""


def as_image(svg: str, alt: str) -> str:
    """The HTML of a picture, with words for those who cannot see it. One that follows a theme gets
    a clear page."""
    auto, size = _AUTO.match(svg), _SIZE.match(svg)
    if auto is not None:
        place = svg.rindex("</svg>")
        svg = f"{svg[:place]}<style>{_CLEAR.replace('NAME', auto[1])}</style>{svg[place:]}"
    # Known before the picture is, so that one that is replaced does not make the page jump.
    room = f' width="{float(size[1]):.0f}" style="max-width:100%;height:auto"' if size else ""
    data = b64encode(svg.encode()).decode()
    return f'<img alt="{escape(alt)}"{room} src="data:image/svg+xml;base64,{data}"/>'
