"""What a step of schedule="ready" costs, in counts."""

from __future__ import annotations

from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import ends_in, ready

from stategraph import InMemorySaver

LENGTH = 6


class WeighingSaver(InMemorySaver):
    """Notes how many bytes each commit brings."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def commit(self, commits):
        commit = commits[-1]
        values = [blob[1] for blob in commit.values.values() if blob is not None]
        writes = [blob[1] for each in commit.writes for _, blob in each.writes]
        told = [commit.metadata, commit.seen, commit.versions, commit.updated]
        dumps = self.serde.dumps
        self.sizes.append(sum(map(len, [*values, *writes, *(dumps(each)[1] for each in told)])))
        super().commit(commits)


def sizes_of(chains, saver: WeighingSaver):
    """The sizes of the commits of a run of chains side by side, of which none waits for another."""
    graph = " ".join(f"S>{'>'.join(f'c{c:02}n{n}' for n in range(LENGTH))}" for c in range(chains))
    names = [f"c{c:02}n{n}" for n in range(LENGTH) for c in range(chains)]
    nothing = dict.fromkeys(names, lambda state: {})
    app = ready(graph, nodes=nothing, saver=saver)
    with ends_in(*names):
        app.invoke(EMPTY, CONFIG)
    return saver.sizes


def test_what_a_step_stores_does_not_grow_with_what_is_under_way():
    few, many = sizes_of(2, WeighingSaver()), sizes_of(50, WeighingSaver())
    assert len(many) == 2 + 50 * LENGTH
    # The first end also stores what has started beside it.
    assert max(many[3:]) <= max(few[3:]) + 20
