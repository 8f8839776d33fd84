"""LangGraph's deprecation warnings: programs filter them by class."""

from __future__ import annotations


class LangGraphDeprecationWarning(DeprecationWarning):
    """Something is deprecated in LangGraph.

    Args:
        since: the version (major, minor) from which it is.
        expected_removal: the version that will not have it any more; the next major one if None.
    """

    since: tuple[int, int] = (1, 0)
    expected_removal: tuple[int, int] = (2, 0)

    def __init__(
        self,
        message: str,
        *args: object,
        since: tuple[int, int] | None = None,
        expected_removal: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message, *args)
        self.message: str = message.rstrip(".")
        if since is not None:
            self.since, self.expected_removal = since, expected_removal or (since[0] + 1, 0)

    def __str__(self) -> str:
        since, removal = (f"V{v[0]}.{v[1]}" for v in (self.since, self.expected_removal))
        return f"{self.message}. Deprecated in LangGraph {since}, to be removed in {removal}."


class LangGraphDeprecatedSinceV05(LangGraphDeprecationWarning):
    """Deprecated since 0.5."""

    since, expected_removal = (0, 5), (2, 0)


class LangGraphDeprecatedSinceV10(LangGraphDeprecationWarning):
    """Deprecated since 1.0."""

    since, expected_removal = (1, 0), (2, 0)


class LangGraphDeprecatedSinceV11(LangGraphDeprecationWarning):
    """Deprecated since 1.1."""

    since, expected_removal = (1, 1), (3, 0)
