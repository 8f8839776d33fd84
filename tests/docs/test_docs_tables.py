"""What has a name has a row in the docs: every channel, stream mode and kind of join, and all that is stored beside a
checkpoint or in its metadata. No row is left over."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import pytest

import stategraph.channels
from stategraph.channels import BaseChannel
from stategraph.checkpoint import records
from stategraph.checkpoint.records import CheckpointMetadata
from stategraph.pregel import names as reserved
from stategraph.pregel.program.flow import JOIN_KINDS
from stategraph.pregel.types import StreamMode

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows(page, title):
    """The names in the first column of the table under this title."""
    text = (DOCS / page).read_text()
    [section] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table, f"docs/{page} has no table under {title!r}"
    return re.findall(r"^\| `(\w+)` \|", table[0], re.MULTILINE)


def channel_names():
    public = [(name, getattr(stategraph.channels, name)) for name in stategraph.channels.__all__]
    return [name for name, kind in public if isinstance(kind, type) and issubclass(kind, BaseChannel)]


def constants(module, begin: str) -> set[str]:
    """The texts of a module's constants that begin so."""
    values = [value for name, value in vars(module).items() if name.isupper()]
    return {value for value in values if isinstance(value, str) and value.startswith(begin)}


# In the metadata of a task's config, which is not stored.
OF_TASKS = {reserved.STEP, reserved.NODE, reserved.TRIGGERS, reserved.PATH, reserved.CHECKPOINT_NS}
METADATA = {*CheckpointMetadata.__annotations__, *constants(records, "stategraph_"), *constants(reserved, "stategraph_")}
METADATA -= {reserved.METADATA_PREFIX}


@pytest.mark.parametrize(
    ("page", "title", "names"),
    [
        ("reference/channels.md", "Channels", set(channel_names()) - {"BaseChannel"}),
        ("reference/channels.md", "Joins", set(JOIN_KINDS)),
        ("reference/streaming.md", "Which mode for what", set(get_args(StreamMode))),
        ("reference/threads.md", "Task records", constants(records, "__") - {records.SLOT}),
        ("reference/threads.md", "Metadata of a checkpoint", METADATA - OF_TASKS),
    ],
    ids=["channels", "joins", "stream modes", "control writes", "metadata"],
)
def test_each_has_one_row_and_no_row_is_left_over(page, title, names: Collection[str]):
    found = rows(page, title)
    missing, left = sorted(set(names) - set(found)), sorted(set(found) - set(names))
    assert not missing, f"docs/{page}, under {title!r}: add a row for {missing}"
    assert not left, f"docs/{page}, under {title!r}: {left} does not exist any more"
    assert len(found) == len(set(found)), f"docs/{page}, under {title!r}: a row stands twice"
