"""The vector index: which texts of a value are embedded, how, and how near they are to a query.

Knows values and vectors, not where either is kept. For cosines a vector is kept as a unit vector,
so that a cosine is a sum of products; an item's vectors are one string of bytes, replaced as a
whole.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from operator import mul
from typing import Any, NamedTuple

from ..channels.base import check_kind
from ..checkpoint.threads import AsyncCaller
from .base import IndexConfig
from .paths import Path, parse, walk
from .values import to_json

Vector = bytes
"""`dims` little-endian doubles; where cosines are asked for, of length 1 (or all zero)."""

_DIGITS = 12  # scores are rounded, so that noise in the last bit cannot decide an order


class Vectors(NamedTuple):
    """What embedding gave: a vector per text."""

    documents: dict[str, Vector]
    queries: dict[str, Vector]


NO_VECTORS = Vectors({}, {})


def _check_config(config: IndexConfig) -> None:
    check_kind("index", config, Mapping, "a dict with dims and embed")
    unknown = set(config) - set(IndexConfig.__annotations__)
    if unknown or "dims" not in config or "embed" not in config:
        raise ValueError(
            "an index must have dims and embed, and may have fields, text_fields and "
            f"distance_type, got {sorted(config)}"
        )
    dims, distance = config["dims"], config.get("distance_type") or "cosine"
    if not isinstance(dims, int) or isinstance(dims, bool) or dims < 1:
        raise ValueError(f"dims, the length of a vector, must be an integer >= 1, got {dims!r}")
    if distance not in _SCORES:
        raise ValueError(f"distance_type must be one of {sorted(_SCORES)}, got {distance!r}")
    fields, text_fields = config.get("fields"), config.get("text_fields")
    if fields and text_fields and fields != text_fields:
        raise ValueError(
            f"fields and text_fields mean the same and must be equal, got {fields} and "
            f"{text_fields}"
        )


class Index(AsyncCaller):
    """A checked `IndexConfig`.

    Attributes:
        mark: what is kept beside vectors to know them again: their length, below zero if they are
            kept as they were given and not as unit vectors.

    Raises:
        ValueError: a key is missing, unknown or of the wrong kind.
    """

    def __init__(self, config: IndexConfig) -> None:
        _check_config(config)
        self.dims: int = config["dims"]
        self.distance = config.get("distance_type") or "cosine"
        self.mark: int = self.dims if self.distance == "cosine" else -self.dims
        fields = config.get("fields") or config.get("text_fields") or ["$"]
        self.paths: list[Path] = parse_fields(fields)
        self._documents, self._queries = _embedders(config["embed"])

    def texts(self, value: Any, paths: Sequence[Path] | None = None) -> list[str]:
        """The texts of a value to embed, each once: strings as they are, other values as JSON.
        Nulls and empty strings have nothing to say."""
        found = chain.from_iterable(
            walk(value, path) for path in (self.paths if paths is None else paths)
        )
        return list(dict.fromkeys(filter(None, map(text_of, found))))

    def embed(self, documents: Iterable[str], queries: Iterable[str]) -> Vectors:
        """Embed; an async function runs to its end in a loop of its own.

        Raises:
            ValueError: the function did not return one finite vector of `dims` numbers per text.
        """
        texts, asked = list(dict.fromkeys(documents)), list(dict.fromkeys(queries))
        found = self._call(self._documents, texts)
        wanted = self._call(self._queries, asked)
        return Vectors(self._check(texts, found), self._check(asked, wanted))

    def _call(self, embed: _Embed, texts: list[str]) -> Any:
        # A model is not asked about nothing: a call of a service costs time and money.
        if not texts:
            return []
        return _settle(embed(texts))

    async def aembed(self, documents: Iterable[str], queries: Iterable[str]) -> Vectors:
        """`embed` for coroutines; a plain function runs on a thread of the index's own."""
        texts, asked = list(dict.fromkeys(documents)), list(dict.fromkeys(queries))
        found = await self._await(self._documents, texts)
        wanted = await self._await(self._queries, asked)
        return Vectors(self._check(texts, found), self._check(asked, wanted))

    async def _await(self, embed: _Embed, texts: list[str]) -> Any:
        if not texts:
            return []
        is_async = inspect.iscoroutinefunction(embed) or inspect.iscoroutinefunction(
            type(embed).__call__
        )
        if is_async:
            return await embed(texts)
        result = await self._acall(embed, texts)
        # A plain function may return an awaitable, as a lambda around a coroutine function does.
        return await result if inspect.isawaitable(result) else result

    def _check(self, texts: list[str], vectors: Sequence[Sequence[float]]) -> dict[str, Vector]:
        if len(vectors) != len(texts):
            raise ValueError(
                f"the embed function must return one vector per text, got {len(vectors)} for "
                f"{len(texts)}"
            )
        return {text: self._unit(vector) for text, vector in zip(texts, vectors, strict=True)}

    def _unit(self, vector: Sequence[float]) -> Vector:
        numbers = [float(number) for number in vector]
        length = math.hypot(*numbers)
        if len(numbers) != self.dims or not math.isfinite(length):
            raise ValueError(f"the embed function must return {self.dims} finite numbers per text")
        if length and self.distance == "cosine":
            numbers = [number / length for number in numbers]
        return struct.pack(f"<{self.dims}d", *numbers)

    def scores(self, query: Vector, items: Sequence[Vector | None]) -> list[float | None]:
        """For each item, given all its vectors in one string, the best score; None for one
        without."""
        found = iter(_SCORES[self.distance](query, b"".join(filter(None, items)), self.dims))
        return [self._best(vectors, found) if vectors else None for vectors in items]

    def _best(self, vectors: Vector, scores: Iterator[float]) -> float:
        best = round(max(next(scores) for _ in range(len(vectors) // (8 * self.dims))), _DIGITS)
        return max(-1.0, min(1.0, best)) if self.distance == "cosine" else best


def parse_fields(fields: object) -> list[Path]:
    """The paths of an index.

    Raises:
        ValueError: not a list of paths.
    """
    if not isinstance(fields, (list, tuple)):
        raise ValueError(f"index fields must be a list of paths, got {fields!r}")
    return [parse(field) for field in fields]


def text_of(value: Any) -> str:
    """The text that is embedded for a value; "" for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return to_json(value, sort_keys=True)


# -- calling the embed function --------------------------------------------------------------------

_Embed = Callable[[list[str]], Any]


def _embedders(embed: Any) -> tuple[_Embed, _Embed]:
    """The function for documents and the one for queries."""
    if hasattr(embed, "embed_documents"):
        return embed.embed_documents, lambda texts: [embed.embed_query(text) for text in texts]
    if hasattr(embed, "aembed_documents"):

        async def queries(texts: list[str]) -> Any:
            return [await embed.aembed_query(text) for text in texts]

        return embed.aembed_documents, queries
    if not callable(embed):
        raise ValueError(f"embed must be a function from texts to vectors, got {embed!r}")
    return embed, embed


def _settle(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_wait_for(result))
    # This thread is inside a loop, which must not be entered twice: wait on another one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _wait_for(result)).result()


async def _wait_for(result: Awaitable[Any]) -> Any:
    return await result


# -- arithmetic ------------------------------------------------------------------------------------


def _products(query: Vector, vectors: Vector, dims: int) -> list[float]:
    """The scalar product of `query` with each of the vectors."""
    if not vectors:
        return []
    numpy = _numpy()
    if numpy:
        matrix = numpy.frombuffer(vectors, "<f8").reshape(-1, dims)
        products: list[float] = (matrix @ numpy.frombuffer(query, "<f8")).tolist()
        return products
    have, want = _from_bytes(vectors), _from_bytes(query)
    return [sum(map(mul, want, have[at : at + dims])) for at in range(0, len(have), dims)]


def _nearness(query: Vector, vectors: Vector, dims: int) -> list[float]:
    """Minus the distance of `query` to each of the vectors."""
    have, want = _from_bytes(vectors), _from_bytes(query)
    return [-math.dist(want, have[at : at + dims]) for at in range(0, len(have), dims)]


_SCORES: dict[str, Callable[[Vector, Vector, int], list[float]]] = {
    "cosine": _products,
    "inner_product": _products,
    "l2": _nearness,
}


@cache
def _numpy() -> Any:
    # Deferred: only a search by meaning gains from it, and it need not be there.
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def _from_bytes(data: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(data) // 8}d", data)
