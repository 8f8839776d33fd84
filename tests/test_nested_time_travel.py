"""Going back to a checkpoint inside a nested graph: what follows it runs once from there, at every level and whatever
`checkpointer` each graph has; what was there stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
from nested_travel import CALLS, KEEPS, Nest, travel


@pytest.mark.parametrize("inmost", KEEPS)
@pytest.mark.parametrize("mid", KEEPS)
def test_every_checkpoint_of_three_graphs(drive: Any, mid: Any, inmost: Any) -> None:
    """Each by one of the three calls; `make chaos` makes all of them."""
    nest = Nest(drive, mid, inmost)
    for number, stop in enumerate(nest.stops):
        if stop.turn == 1:
            travel(nest, stop, CALLS[(number + KEEPS.index(mid) + KEEPS.index(inmost)) % 3])
