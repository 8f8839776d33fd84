"""Upgrades: what becomes of the stored threads under a new version of their graph, proved before it
is deployed."""

from .migration import Migration
from .proof import Proof, Verdict, prove

__all__ = ["Migration", "Proof", "Verdict", "prove"]
