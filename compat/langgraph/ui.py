"""Events for a user interface, kept in the state beside the messages."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias
from uuid import uuid4

from typing_extensions import TypedDict

from ...pregel.running import running


class UIMessage(TypedDict):
    """A component to show, with its properties."""

    type: Literal["ui"]
    id: str
    name: str
    props: dict[str, Any]
    metadata: dict[str, Any]


class RemoveUIMessage(TypedDict):
    """A component to take away."""

    type: Literal["remove-ui"]
    id: str


AnyUIMessage: TypeAlias = UIMessage | RemoveUIMessage


def push_ui_message(
    name: str,
    props: dict[str, Any],
    *,
    id: str | None = None,
    metadata: dict[str, Any] | None = None,
    message: Any = None,
    state_key: str | None = "ui",
    merge: bool = False,
) -> UIMessage:
    """Show a component: sent to the `custom` stream at once and written to the state.

    Args:
        merge: `props` are merged into those of the component with this id.
        state_key: None to send it only.

    Raises:
        RuntimeError: called outside of a node.
    """
    task = running("push_ui_message()")
    config = task.config
    event: UIMessage = {
        "type": "ui",
        "id": id or str(uuid4()),
        "name": name,
        "props": props,
        "metadata": {
            "merge": merge,
            "run_id": config.get("run_id"),
            "tags": config.get("tags"),
            "name": config.get("run_name"),
            **(metadata or {}),
            **({"message_id": message.id} if getattr(message, "id", None) else {}),
        },
    }
    _send(task, state_key, event)
    return event


def delete_ui_message(id: str, *, state_key: str = "ui") -> RemoveUIMessage:
    """Take a component away.

    Raises:
        RuntimeError: called outside of a node.
    """
    event: RemoveUIMessage = {"type": "remove-ui", "id": id}
    _send(running("delete_ui_message()"), state_key, event)
    return event


def _send(task: Any, state_key: str | None, event: Any) -> None:
    task.writer(event)
    if state_key is not None:
        task.writes.append((state_key, event))


def ui_message_reducer(left: Any, right: Any) -> list[Any]:
    """Merge events: one with a known id replaces the old one, or is merged into it.

    Raises:
        ValueError: a component is taken away that is not there.
    """
    merged = list(left) if isinstance(left, list) else [left]
    for event in right if isinstance(right, list) else [right]:
        at = next((i for i, old in enumerate(merged) if old["id"] == event["id"]), None)
        if event["type"] == "remove-ui":
            if at is None:
                raise ValueError(f"there is no UI message with id {event['id']!r} to remove")
            del merged[at]
        elif at is None:
            merged.append(event)
        elif event.get("metadata", {}).get("merge"):
            merged[at] = {**event, "props": {**merged[at]["props"], **event["props"]}}
        else:
            merged[at] = event
    return merged
