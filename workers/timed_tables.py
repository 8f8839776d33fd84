"""The tables and statements for delayed jobs, debounced inputs and schedules. Constants only;
`tables` includes them.

The database's clock, never a machine's own, decides when something is due.
"""

from __future__ import annotations

# A schedule's `next_at` is the first planned time that has not fired. It advances in the
# transaction that stores the jobs, so each planned time fires once. `revision` changes with the
# schedule.
TIMED_MIGRATIONS = (
    (
        "ALTER TABLE stategraph_jobs ADD COLUMN run_at TIMESTAMPTZ",
        """
        CREATE INDEX stategraph_jobs_timed
            ON stategraph_jobs (graph, run_at) WHERE state IN ('delayed', 'sleeping')
        """,
        "DROP INDEX stategraph_jobs_live",
        """
        CREATE INDEX stategraph_jobs_live ON stategraph_jobs (lane)
            WHERE state IN ('waiting', 'running', 'parked', 'sleeping')
        """,
    ),
    (
        "ALTER TABLE stategraph_jobs ADD COLUMN debounced_since TIMESTAMPTZ",
        """
        CREATE UNIQUE INDEX stategraph_jobs_debounced ON stategraph_jobs (graph, sha256(thread_id))
            WHERE debounced_since IS NOT NULL AND attempt = 0 AND state IN ('delayed', 'waiting')
        """,
    ),
    (
        """
        CREATE TABLE stategraph_schedules (
            graph BYTEA NOT NULL,
            name BYTEA NOT NULL,
            cron BYTEA NOT NULL,
            zone BYTEA NOT NULL,
            missed BYTEA NOT NULL,
            thread_id BYTEA,
            priority BIGINT NOT NULL,
            task BYTEA NOT NULL,
            revision BIGINT NOT NULL DEFAULT 0,
            next_at TIMESTAMPTZ NOT NULL,
            last_at TIMESTAMPTZ,
            PRIMARY KEY (graph, name)
        )
        """,
        "CREATE INDEX stategraph_schedules_next ON stategraph_schedules (graph, next_at)",
    ),
)

# The job of a thread whose input a debounced one replaces: it has not been started. There is at
# most one.
_DEBOUNCED = """
    graph = $1 AND sha256(thread_id) = sha256($2) AND debounced_since IS NOT NULL AND attempt = 0
        AND state IN ('delayed', 'waiting')
"""
# In how many seconds the next delayed or sleeping job of the graph $1 is due.
_SECONDS_TO_NEXT = """
    SELECT extract(epoch FROM run_at - now())::float8 FROM stategraph_jobs
    WHERE graph = $1 AND state IN ('delayed', 'sleeping') AND run_at > now()
    ORDER BY run_at LIMIT 1
"""
# In how many seconds the next schedule of the graph $1 fires.
_SECONDS_TO_FIRE = """
    SELECT extract(epoch FROM next_at - now())::float8 FROM stategraph_schedules
    WHERE graph = $1 AND next_at > now() ORDER BY next_at LIMIT 1
"""
# Whether a schedule must be looked at. One that has fired a time which is still to come did so
# while the database's clock was ahead: its next time is set back.
_IS_DUE = "(next_at <= now() OR last_at > now() + interval '1 minute')"
_SCHEDULE = """
    name, cron, zone, missed, thread_id, priority, extract(epoch FROM next_at)::float8,
    extract(epoch FROM last_at)::float8
"""

TIMED_STATEMENTS = {
    "debounced": f"SELECT run_id FROM stategraph_jobs WHERE {_DEBOUNCED}",
    # Never later than $7 seconds after the first of the inputs merged into this job.
    "replace_debounced": f"""
        WITH moved AS (
            SELECT id, now() + make_interval(secs => least(
                $6::float8, $7::float8 - extract(epoch FROM now() - debounced_since)::float8
            )) AS run_at
            FROM stategraph_jobs WHERE {_DEBOUNCED} AND run_id = $3 FOR UPDATE
        )
        UPDATE stategraph_jobs AS job SET priority = $4, task = $5, run_at = moved.run_at,
            state = CASE WHEN moved.run_at > now() THEN 'delayed' ELSE 'waiting' END
        FROM moved WHERE job.id = moved.id
        RETURNING extract(epoch FROM job.run_at)::float8
    """,
    "submit_debounced": """
        INSERT INTO stategraph_jobs
            (graph, thread_id, run_id, priority, task, lane, run_at, state, debounced_since)
        VALUES ($1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7), 'delayed', now())
        ON CONFLICT DO NOTHING
        RETURNING extract(epoch FROM run_at)::float8
    """,
    # For a job that waits for its time, the notice says in how many seconds it is due.
    "notify_delay": """
        SELECT pg_notify('stategraph_work', $1::bigint::text || '+' || greatest(
            0, coalesce($2::float8, $3::float8 - extract(epoch FROM now()))
        ))
    """,
    # Makes due jobs claimable, by the database's clock; also tells whether a newer release has
    # changed the tables.
    "wake": f"""
        WITH due AS MATERIALIZED (
            SELECT id FROM stategraph_jobs
            WHERE graph = $1 AND state IN ('delayed', 'sleeping') AND run_at <= now()
            ORDER BY run_at LIMIT $2 FOR UPDATE SKIP LOCKED
        ),
        woken AS (
            UPDATE stategraph_jobs SET state = 'waiting'
            WHERE id = ANY(ARRAY(SELECT id FROM due)) RETURNING id
        )
        SELECT (SELECT count(*) FROM woken), least(({_SECONDS_TO_NEXT}), ({_SECONDS_TO_FIRE})),
            (SELECT most FROM stategraph_limits WHERE graph = $1),
            EXISTS (SELECT FROM stategraph_schedules WHERE graph = $1 AND {_IS_DUE}),
            EXISTS (
                SELECT FROM stategraph_migrations
                WHERE (part = 'workers'::bytea AND version > $3)
                    OR (part = 'threads'::bytea AND version > $4)
            )
    """,
    "clock": "SELECT extract(epoch FROM now())::float8",
    # A schedule that is submitted again unchanged keeps its position.
    "schedule": """
        INSERT INTO stategraph_schedules AS known
            (graph, name, cron, zone, missed, thread_id, priority, task, next_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, to_timestamp($9::float8))
        ON CONFLICT (graph, name) DO UPDATE SET cron = $3, zone = $4, missed = $5, thread_id = $6,
            priority = $7, task = $8, revision = known.revision + 1,
            next_at = CASE
                WHEN known.cron = $3 AND known.zone = $4 THEN known.next_at
                ELSE excluded.next_at
            END
        RETURNING extract(epoch FROM next_at)::float8
    """,
    "unschedule": "DELETE FROM stategraph_schedules WHERE graph = $1 AND name = $2",
    "schedules": f"SELECT graph, {_SCHEDULE} FROM stategraph_schedules ORDER BY graph, name",
    "due_schedules": f"""
        SELECT {_SCHEDULE}, task, revision, extract(epoch FROM now())::float8
        FROM stategraph_schedules WHERE graph = $1 AND {_IS_DUE} ORDER BY next_at, name
    """,
    # A second worker finds that the schedule has advanced, and stores nothing. The run ids, made
    # from the planned times, prevent duplicates once more.
    "fire": """
        WITH moved AS (
            UPDATE stategraph_schedules SET next_at = to_timestamp($5::float8),
                last_at = coalesce(to_timestamp($6::float8), last_at)
            WHERE graph = $1 AND name = $2 AND revision = $3 AND next_at = to_timestamp($4::float8)
            RETURNING name
        ),
        made AS (
            INSERT INTO stategraph_jobs (graph, lane, thread_id, run_id, priority, task)
            SELECT $1::bytea, given.* FROM moved,
                unnest($7::bigint[], $8::bytea[], $9::bytea[], $10::bigint[], $11::bytea[])
                    AS given (lane, thread_id, run_id, priority, task)
            ON CONFLICT (sha256(run_id), sha256(thread_id)) DO NOTHING
            RETURNING id
        )
        SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM made)
    """,
}
