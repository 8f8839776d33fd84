"""The version of LangGraph whose names and behaviour are served."""

from typing import Final

__version__: Final = "1.2.22"
