"""An SVG as an HTML image: the one form of a picture that notebooks show whoever opens them. Nothing is drawn here.

JupyterLab shows an SVG only in notebooks that are trusted; GitHub and nbviewer take the style sheets out of it, or let
those of several pictures mix. All of them show an image whose source is in the page.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape


def as_image(svg: str, alt: str) -> str:
    """The HTML of a picture, with words for those who cannot see it."""
    return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"/>'
