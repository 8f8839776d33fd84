"""Tell what a planted bug does from a bug that was planted badly."""

import re

MISFITS = (AttributeError, ImportError, NameError, TypeError)
"""What Python raises where a patch does not fit the code that it was made for: the code was renamed, or is called otherwise."""
_NAMED = re.compile(rf"\b({'|'.join(each.__name__ for each in MISFITS)}|ModuleNotFoundError|UnboundLocalError)\b")


def is_misfit(failure):
    """Whether a failure, or its text, says that the patch does not fit. That is no sign that anyone would notice the bug."""
    if isinstance(failure, BaseExceptionGroup):
        return all(map(is_misfit, failure.exceptions))
    return bool(_NAMED.search(failure)) if isinstance(failure, str) else isinstance(failure, MISFITS)
