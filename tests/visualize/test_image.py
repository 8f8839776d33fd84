"""A picture as HTML: what every notebook frontend shows."""

import re
import xml.etree.ElementTree as ET
from base64 import b64decode

from kit.graphs import chain_of

from stategraph.visualize.image import as_image


def test_the_image_embeds_the_picture_and_loads_nothing():
    made = as_image("<svg>\u00e9</svg>", "a graph")
    found = re.fullmatch(r'<img alt="a graph" src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"/>', made)
    assert found and b64decode(found[1]).decode() == "<svg>\u00e9</svg>"


def test_a_themed_picture_is_transparent_and_has_its_width():
    app = chain_of(dict, a=lambda state: None).compile()
    drawing = app.get_graph()
    image = as_image(drawing.draw_svg(), "a")
    svg = b64decode(image.partition("base64,")[2].partition('"')[0]).decode()
    name = re.findall(r"sg-auto-[0-9a-f]{8}", svg)[0]
    assert f".{name} .cluster[class*=is-]>.name{{fill:var(--soft)}}" in svg  # a cluster has no ground of its own
    assert f".{name} .page,.{name} .band{{fill:none}}" in svg
    assert ET.fromstring(svg).tag.endswith("svg")
    assert re.search(r' width="\d+" style="max-width:100%;height:auto" src=', image)
    assert (
        ".page,." not in b64decode(as_image(drawing.draw_svg(theme="light"), "").partition("base64,")[2][:-3]).decode()
    )


def test_text_cannot_break_out_of_the_image():
    assert as_image("", '"><script>').startswith('<img alt="&quot;&gt;&lt;script&gt;" src=')
