"""Upgrades: what becomes of the stored threads under a new version of their graph, proved before it
is deployed."""

from .proof import Proof, Verdict, prove

__all__ = ["Proof", "Verdict", "prove"]
