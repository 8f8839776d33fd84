"""A picture as HTML: what every notebook's frontend shows."""

from __future__ import annotations

import re
from base64 import b64decode

from stategraph.visualize.image import as_image


def test_the_image_holds_the_picture_itself_and_loads_nothing() -> None:
    made = as_image("<svg>\u00e9</svg>", "a graph")
    found = re.fullmatch(r'<img alt="a graph" src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"/>', made)
    assert found and b64decode(found[1]).decode() == "<svg>\u00e9</svg>"


def test_words_cannot_break_out_of_the_image() -> None:
    assert as_image("", '"><script>').startswith('<img alt="&quot;&gt;&lt;script&gt;" src=')
