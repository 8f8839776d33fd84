"""The hash function behind ids, keys and labels: BLAKE2b, from Python's own C code.

`hashlib` has the same function, but loads OpenSSL first, which takes a tenth of the time that a
small program needs to its first result (benchmark P26).
"""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # a Python that was built without it
    from hashlib import blake2b

__all__ = ["blake2b"]
