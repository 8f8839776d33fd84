"""The door to ormsgpack, which does the packing: how it is told to, and what stands here where it
does not load.

That is in sub-interpreters. The functions of nodes run there, and they pack nothing: so the package
can be imported, and to pack is an error.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

__all__ = ["OPTIONS", "Ext", "packb", "unpackb"]


def _in_subinterpreter() -> bool:
    if sys.version_info >= (3, 14):
        from concurrent.interpreters import get_current, get_main

        return get_current() != get_main()
    return False


try:
    import ormsgpack
    from ormsgpack import Ext, packb, unpackb
except ImportError as _error:
    if not _in_subinterpreter():
        raise
    reason: str = str(_error)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        """Say that this cannot be done here."""
        raise ImportError(f"in a sub-interpreter nothing can be stored or loaded: {reason}")

    Ext = packb = unpackb = refuse  # type: ignore[misc, assignment]  # whoever calls one hears it
    OPTIONS = 0
else:
    OPTIONS = (
        ormsgpack.OPT_PASSTHROUGH_BIG_INT
        | ormsgpack.OPT_PASSTHROUGH_DATACLASS
        | ormsgpack.OPT_PASSTHROUGH_DATETIME
        | ormsgpack.OPT_PASSTHROUGH_ENUM
        | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
        | ormsgpack.OPT_PASSTHROUGH_TUPLE
        | ormsgpack.OPT_PASSTHROUGH_UUID
    )
