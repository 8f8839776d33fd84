"""HTML and SVG out of templates that escape what they are given, unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .labels import drop_illegal


class Markup(str):
    """A text that is HTML or SVG."""

    __slots__ = ()


def fill(template: str, *values: object, **named: object) -> Markup:
    """Return a template, as for `str.format`, with values in its places: markup as it is, the items
    of a list one after another, and everything else as escaped text.

    >>> print(fill("<p>{}: {}</p>", "a < b", [fill("<b>{}</b>", n) for n in (1, 2)]))
    <p>a &lt; b: <b>1</b><b>2</b></p>
    """
    told = {name: as_markup(value) for name, value in named.items()}
    return Markup(template.format(*map(as_markup, values), **told))


def as_markup(value: object) -> Markup:
    """Return a value as markup; characters that XML cannot represent become �."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str):
        return Markup("".join(map(as_markup, value)))
    return Markup(escape(drop_illegal(str(value))))
