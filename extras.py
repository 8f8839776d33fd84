"""What to install for an optional part, as error texts say it. Imports nothing."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """The commands that bring an extra, for a checkout and for a wheel.

    >>> install_command("rich")
    'pip install -e ".[rich]" in a checkout, or pip install "FILE.whl[rich]"'
    """
    return f'pip install -e ".[{extra}]" in a checkout, or pip install "FILE.whl[{extra}]"'
