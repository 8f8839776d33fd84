"""Runs that begin at the planned times of a cron expression: the routes, and the task that starts
the runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from ...workers.cron import check_cron
from ..bodies import CronBody, CronChange, CronSearch, RunBody
from ..errors import LOG, Refused
from ..handlers import Handlers, User, route
from ..records import Changes, Record, now, select
from ..runs.new_runs import begin_run, check_modes
from ..runs.runner import first_of
from ..service import Service, validate

LONGEST_SLEEP = 60.0
"""Seconds after which a change of the system clock is noticed."""
PLANS = ("schedule", "timezone", "end_time", "enabled")
"""What planned times follow from."""
FIRED = "last_run_date"
"""On a schedule: the planned time that has begun a run last."""
RETRY_SECONDS = 10.0
"""Seconds after which a schedule that could not be fired is tried again."""


class Schedules(Handlers):
    """The handlers of `/runs/crons`, and the task that starts the runs that are due."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._changed = asyncio.Event()

    # -- routes ------------------------------------------------------------------------------------

    @route("POST /runs/crons", "POST /threads/{thread_id}/runs/crons")
    async def create(self, owner: User, body: CronBody, thread_id: str | None) -> Record:
        """Create a schedule."""
        self._service.webhooks.check(body.webhook)
        check_modes(self._service, body.stream_mode)
        if thread_id is not None:
            await self._thread(thread_id, owner)
        await self._service.check_quota("crons", owner)
        assistant = await self._service.assistant(body.assistant_id, owner)
        zone = body.timezone or "UTC"
        at = now()
        record: Record = {
            "cron_id": str(uuid4()),
            "assistant_id": assistant["assistant_id"],
            "thread_id": thread_id,
            "user_id": owner,
            "schedule": body.schedule,
            "timezone": zone,
            "end_time": body.end_time,
            "enabled": body.enabled,
            "payload": body.run(),
            "metadata": body.metadata or {},
            "next_run_date": _next(body.schedule, zone, datetime.now(UTC), body.end_time),
            "created_at": at,
            "updated_at": at,
            "owner": owner or "",
        }
        await self._put(record)
        return select(record, None)

    @route("POST /runs/crons/search")
    async def search(self, owner: User, body: CronSearch) -> list[Record]:
        """Send the schedules that match."""
        return await self._search("crons", owner, body)

    @route("POST /runs/crons/count")
    async def count(self, owner: User, body: CronSearch) -> int:
        """Send how many schedules match."""
        return await self._records.count("crons", body.filter, owner)

    @route("GET /runs/crons/{cron_id}")
    async def get(self, cron: Record) -> Record:
        """Send a schedule."""
        return select(cron, None)

    @route("PATCH /runs/crons/{cron_id}")
    async def change(self, cron_id: str, owner: User, body: CronChange) -> Record:
        """Change a schedule, or the body of its runs."""
        self._service.webhooks.check(body.webhook)
        check_modes(self._service, body.stream_mode)

        async def merge() -> Record:
            old = await self._records.get("crons", cron_id, owner=owner)
            new = {**old, **body.settings(), "updated_at": now()}
            new["payload"] = {**old["payload"], **body.run()}
            validate(RunBody, new["payload"])
            if any(new[key] != old[key] for key in PLANS):  # else a time that is due stays so
                at = datetime.now(UTC)
                new["next_run_date"] = _next(new["schedule"], new["timezone"], at, new["end_time"])
            await self._put(new, old)
            return new

        return select(await self._records.change("crons", cron_id, merge), None)

    @route("DELETE /runs/crons/{cron_id}")
    async def delete(self, cron: Record) -> None:
        """Delete a schedule; its runs stay."""
        await self._records.delete("crons", cron["cron_id"])

    async def _put(self, record: Record, old: Record | None = None) -> None:
        await self._records.replace("crons", record["cron_id"], old, record)
        self._changed.set()

    # -- fire --------------------------------------------------------------------------------------

    async def fire_for_ever(self) -> None:
        """Begin the runs that are due, one for each planned time. If no server was there at several
        planned times, only the last of them is made up for."""
        while True:
            self._changed.clear()
            moment = datetime.now(UTC)
            try:
                enabled = await self._records.search("crons", filter={"enabled": True})
                times = [await self._try_to_fire(each["cron_id"], moment) for each in enabled]
            except Exception:
                LOG.exception("the schedules could not be read: they are tried again")
                times = [moment + timedelta(seconds=RETRY_SECONDS)]
            seconds = [(each - datetime.now(UTC)).total_seconds() for each in times if each]
            pause = max(0.0, min([LONGEST_SLEEP, *seconds]))
            await first_of(self._changed.wait(), timeout=pause)

    async def _try_to_fire(self, id: str, moment: datetime) -> datetime | None:
        """Fire a schedule if it is due, and return when to look at it next. An error must not keep
        others from being fired."""
        try:
            return await self._records.change("crons", id, lambda: self._fire(id, moment))
        except Exception:
            LOG.exception("the schedule %s could not be fired: it is tried again", id)
            return moment + timedelta(seconds=RETRY_SECONDS)

    async def _fire(self, id: str, moment: datetime) -> datetime | None:
        record = await self._records.find("crons", id)
        if record is None or not record["enabled"]:
            return None
        later = _next(record["schedule"], record["timezone"], moment, record["end_time"])
        after = None if later is None else datetime.fromisoformat(later)
        stored = record["next_run_date"]
        planned = None if stored is None else datetime.fromisoformat(stored)
        moved = {**record, "next_run_date": later}
        if planned is None or planned > moment:
            if after is not None and (planned is None or after < planned):
                # The clock was ahead when the planned time was stored.
                await self._records.replace("crons", id, record, moved)
                return after
            return planned
        end = record["end_time"]
        until = moment if end is None else min(moment, datetime.fromisoformat(end))
        due = check_cron(record["schedule"], record["timezone"]).last(planned, until)
        moved[FIRED] = due.isoformat()
        if record.get(FIRED) == moved[FIRED]:  # before the clock was put back
            await self._records.replace("crons", id, record, moved)
            return after
        run_id, owner = f"{id}@{due:%Y-%m-%dT%H:%M:%SZ}", record["owner"] or None
        try:
            body = validate(RunBody, record["payload"])
            # The run and the schedule are written together, so a crash neither skips a planned time
            # nor fires it twice. If several servers try, only one finds the schedule unchanged.
            also = Changes([("crons", id, moved)], [("crons", id, record)])
            await begin_run(self._service, body, record["thread_id"], owner, run_id, also)
        except Refused as refused:
            LOG.warning("the schedule %s was not fired: %s", id, refused.detail)
            if refused.status in (429, 503):  # too much, or stopping: try again later
                return moment + timedelta(seconds=RETRY_SECONDS)
            await self._records.replace("crons", id, record, moved)
        return after


def _next(text: str, zone: str, moment: datetime, end: str | None) -> str | None:
    """Return the next planned time; None if it is after the end.

    Raises:
        Refused: the expression or the zone is invalid.
    """
    try:
        planned = check_cron(text, zone).next(moment)
    except (ValueError, ImportError) as error:
        raise Refused(422, str(error)) from None
    if end is not None and planned > datetime.fromisoformat(end):
        return None
    return planned.isoformat()
