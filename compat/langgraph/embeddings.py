"""LangChain's contract of what embeds texts."""

from langchain_core.embeddings import Embeddings

__all__ = ["Embeddings"]
