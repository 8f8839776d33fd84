"""LangGraph's deprecation warnings: programs filter them by class."""

from __future__ import annotations


class LangGraphDeprecationWarning(DeprecationWarning):
    """Something is deprecated in LangGraph.

    Args:
        since: the version (major, minor) from which it is.
        expected_removal: the version that will not have it any more; the next major one if None.
    """

    def __init__(
        self,
        message: str,
        *args: object,
        since: tuple[int, int],
        expected_removal: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message, *args)
        self.message: str = message.rstrip(".")
        self.since = since
        self.expected_removal: tuple[int, int] = expected_removal or (since[0] + 1, 0)

    def __str__(self) -> str:
        since, removal = (f"V{v[0]}.{v[1]}" for v in (self.since, self.expected_removal))
        return f"{self.message}. Deprecated in LangGraph {since}, to be removed in {removal}."


class LangGraphDeprecatedSinceV05(LangGraphDeprecationWarning):
    """Deprecated since 0.5."""

    def __init__(self, message: str, *args: object) -> None:
        super().__init__(message, *args, since=(0, 5), expected_removal=(2, 0))


class LangGraphDeprecatedSinceV10(LangGraphDeprecationWarning):
    """Deprecated since 1.0."""

    def __init__(self, message: str, *args: object) -> None:
        super().__init__(message, *args, since=(1, 0), expected_removal=(2, 0))


class LangGraphDeprecatedSinceV11(LangGraphDeprecationWarning):
    """Deprecated since 1.1."""

    def __init__(self, message: str, *args: object) -> None:
        super().__init__(message, *args, since=(1, 1), expected_removal=(3, 0))
