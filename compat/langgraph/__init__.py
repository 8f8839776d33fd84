"""`import langgraph` served by this engine.

Importing this package is enough: from then on `import langgraph...` finds modules that have
LangGraph's public names at its paths, also where the real package is installed. `finder` puts them
there, `table` says which name is what of ours, `absent` stands for what has no counterpart.
"""

from .finder import install, is_installed, uninstall

__all__ = ["install", "is_installed", "uninstall"]

install()
