"""Values whose methods raise or lie, and random ordinary ones. Only what several tests share."""

from hypothesis import strategies as st


class Broken:
    """Everything that a reader could touch raises."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no eq")

    __hash__ = None  # type: ignore[assignment]

    def __len__(self):
        raise RuntimeError("no len")

    def __getattr__(self, name):
        raise RuntimeError("no " + name)


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError("no str")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
