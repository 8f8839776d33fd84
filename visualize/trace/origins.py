"""Finds what tasks were called with that have started at an earlier checkpoint.

With schedule="ready", a task may run on across checkpoints.
"""

from __future__ import annotations

from typing import Any

from ...checkpoint.base import UNDER_WAY, BaseCheckpointSaver, address, coordinates
from ...pregel.app import Pregel
from ...pregel.schedule.slots import find_origin, find_under_way
from ...pregel.types import PregelTask, StateSnapshot


class OriginInputs:
    """The inputs of tasks as their origins show them. A task that is still running when a
    checkpoint is made has not read that checkpoint, but the one at which it started."""

    def __init__(self, app: Pregel) -> None:
        self._app = app
        # By namespace, of the snapshot that was asked about last: which task has which origin, and
        # what these origins show. Consecutive snapshots have most origins in common.
        self._known: dict[str, tuple[str, dict[str, str], dict[str, dict[str, Any]]]] = {}

    def find(self, snapshot: StateSnapshot, task: PregelTask) -> Any:
        """Return what a task was called with that a snapshot shows."""
        if UNDER_WAY not in (snapshot.metadata or {}):
            return task.input
        _, ns, id = coordinates(snapshot.config)
        if ns not in self._known or self._known[ns][0] != id:
            self._read(snapshot)
        _, origins, inputs = self._known[ns]
        return inputs.get(origins.get(task.id, ""), {}).get(task.id, task.input)

    def _read(self, snapshot: StateSnapshot) -> None:
        thread_id, ns, id = coordinates(snapshot.config)
        _, _, before = self._known.get(ns, ("", {}, {}))
        origins = self._list_origins(snapshot)
        inputs = {
            origin: before[origin] if origin in before else self._read_inputs(thread_id, ns, origin)
            for origin in {*origins.values()}
        }
        self._known[ns] = id or "", origins, inputs

    def _list_origins(self, snapshot: StateSnapshot) -> dict[str, str]:
        """Return the origins of the tasks that are running in a snapshot, also of those that handle
        their errors."""
        saver = self._app.checkpointer
        found = saver.get_tuple(snapshot.config) if isinstance(saver, BaseCheckpointSaver) else None
        if found is None:
            return {}
        return {
            id: find_origin(found.checkpoint, slot)
            for slot, known in find_under_way(found.checkpoint).items()
            for id in (known["id"], known["handler"])
            if id is not None
        }

    def _read_inputs(self, thread_id: str, ns: str, origin: str) -> dict[str, Any]:
        try:
            shown = self._app.get_state(address(thread_id, ns, origin))
        except ValueError:  # it was deleted, so its tasks start again, at the checkpoint shown
            return {}
        return {task.id: task.input for task in shown.tasks}
