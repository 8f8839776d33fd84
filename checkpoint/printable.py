"""What users wrote, made fit to be printed: no text of theirs steers a terminal."""

from __future__ import annotations


def printable(text: object) -> str:
    r"""A text on one line, with everything that a terminal might obey or hide (control characters,
    line breaks, escape sequences, marks that turn the direction of writing) shown as Python escapes
    it.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    written = str(text)
    if written.isprintable():
        return written
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in written
    )


def printable_lines(text: str) -> str:
    """The same for a text of several lines that are ours."""
    return "\n".join(map(printable, text.split("\n")))
