"""LangGraph's types of stores."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from langchain_core.embeddings import Embeddings

from ...store import BaseStore, Result
from ...store.namespaces import check_namespace
from ...store.paths import parse, walk
from ...store.vectors import text_of

NamespacePath: TypeAlias = tuple[str | Literal["*"], ...]
NamespaceMatchType: TypeAlias = Literal["prefix", "suffix"]
EmbeddingsFunc: TypeAlias = Callable[[Sequence[str]], list[list[float]]]
AEmbeddingsFunc: TypeAlias = Callable[[Sequence[str]], Awaitable[list[list[float]]]]


class NotProvided:
    """The type of an argument that was not given."""

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_PROVIDED: Final = NotProvided()


class EmbeddingsLambda(Embeddings):
    """A function of texts as LangChain's embeddings; a coroutine function is only awaited."""

    def __init__(self, func: EmbeddingsFunc | AEmbeddingsFunc) -> None:
        self._is_async = inspect.iscoroutinefunction(func)
        self._func: Any = func

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of texts.

        Raises:
            TypeError: the function has to be awaited.
        """
        if self._is_async:
            raise TypeError("the function that embeds is async: await aembed_documents()")
        vectors: list[list[float]] = self._func(texts)
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """`embed_documents` for coroutines."""
        if not self._is_async:
            return self.embed_documents(texts)
        vectors: list[list[float]] = await self._func(texts)
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        """`embed_query` for coroutines."""
        return (await self.aembed_documents([text]))[0]


def ensure_embeddings(embed: Any) -> Embeddings:
    """LangChain's embeddings of a function, or of a text such as `openai:text-embedding-3-small`.

    Raises:
        ValueError: nothing is given.
    """
    if embed is None:
        raise ValueError("embed must be a function, an Embeddings or the name of a model, got None")
    if isinstance(embed, str):
        from langchain.embeddings import init_embeddings  # type: ignore[import-not-found]

        return init_embeddings(embed)
    return embed if isinstance(embed, Embeddings) else EmbeddingsLambda(embed)


def tokenize_path(path: str) -> list[str]:
    """The steps of a path into a value; each index is one."""
    return re.findall(r"\{[^}]*\}|\[[^]]*\]|[^.\[\]{}]+", path)


def get_text_at_path(obj: Any, path: str | list[str]) -> list[str]:
    """The texts at a path of a value, as they are embedded."""
    joined = path if isinstance(path, str) else ".".join(path).replace(".[", "[")
    return [text for text in map(text_of, walk(obj, parse(joined))) if text]


def validate_op_namespace(op: Any) -> None:
    """Check the namespace of an operation.

    Raises:
        InvalidNamespaceError: it has a segment that cannot be stored.
    """
    check_namespace(getattr(op, "namespace", ()), empty_ok=True)


class AsyncBatchedBaseStore(BaseStore):
    """A store of someone's own that defines `abatch`; sync methods wait for the loop on which it
    was made, so they are called on other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def batch(self, ops: Iterable[Any]) -> list[Result]:
        """`abatch`, waited for."""
        return asyncio.run_coroutine_threadsafe(self.abatch(ops), self._loop).result()
