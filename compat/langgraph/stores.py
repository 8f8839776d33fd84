"""The peer's types of stores."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

NamespacePath: TypeAlias = tuple[str | Literal["*"], ...]
NamespaceMatchType: TypeAlias = Literal["prefix", "suffix"]


class NotProvided:
    """The type of an argument that was not given."""

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_PROVIDED: Final = NotProvided()


def ensure_embeddings(embed: Any) -> Any:
    """What embeds texts; our stores take functions and LangChain's embeddings as they are."""
    return embed
